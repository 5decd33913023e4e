package relock

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/undo"
	"github.com/relock-go/relock/internal/wake"
)

// A trial is a client whose Redis is the test: each request waits for its answer, or for the end of its
// context. Time stands still while all wait. Only messages come from a server.
type trial struct {
	t       *testing.T
	session *session
	hub     *notedHub

	mu       sync.Mutex
	requests []*request // that wait for an answer
	undone   []undone
	holds    []*asker
}

// notedHub notes on which channels a message should have come, and on which one might have.
type notedHub struct {
	*wake.Hub
	missed, suspects []string
}

func (h *notedHub) Missed(channel string)  { h.missed = append(h.missed, channel) }
func (h *notedHub) Suspect(channel string) { h.suspects = append(h.suspects, channel) }

// begin runs test in a bubble. A goroutine that is left over fails it.
func begin(t *testing.T, test func(b *trial)) {
	t.Helper()
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, backend *redistest.Backend) {
		o := defaultSettings()
		b := &trial{t: t, hub: &notedHub{Hub: wake.NewHub(backend.Client(t), hubConfig)}}
		b.session = newSession(nil, b.hub, &o, clock.System)
		s := b.session
		s.patience = time.Second
		s.uses = func(string) bool { return false }
		s.undos = []*undo.Queue{undo.New(s.life(), b.settle)}
		t.Cleanup(func() {
			if !s.closed() {
				close(s.closing)
			}
			s.endBackground(nil)
			b.hub.Close()
		})
		test(b)
	})
}

// loseSubscriptions has no message arrive for holds that come from now on.
func (b *trial) loseSubscriptions() {
	b.hub.Close()
}

// undone is what a name may have, that is being given up.
type undone struct {
	field      string
	lasts      time.Duration
	unobserved bool
}

func (b *trial) settle(n undo.Name) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range b.undone {
		if u.field == n.Field { // a copy may come late: it is released once more
			return true
		}
	}
	b.undone = append(b.undone, undone{n.Field, b.session.now().Until(n.Until), n.Unobserved})
	return true
}

// A request is one for all keys, that waits for its answer.
type request struct {
	by     *asker
	field  string
	opts   redisexec.CallOptions
	answer chan answer
}

type answer struct {
	grant protocol.Grant
	out   redisexec.Outcome
}

// An asker is a hold whose requests the test answers.
type asker struct {
	*hold
	b        *trial
	record   *record
	late     bool   // its grants come too late
	onAnswer func() // before the attempt has it

	contended int
}

// asking is the protocol of an asker; nothing but Acquire is to be called.
type asking struct {
	protocol.Protocol
	h *asker
}

func (p *asking) Acquire(ctx context.Context, opts redisexec.CallOptions, _ *keys.Set, field string, _ *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	h, b := p.h, p.h.b
	q := &request{by: h, field: field, opts: opts, answer: make(chan answer, 1)}
	b.mu.Lock()
	b.requests = append(b.requests, q)
	b.mu.Unlock()
	sent := b.session.now()
	select {
	case a := <-q.answer:
		if h.onAnswer != nil {
			h.onAnswer()
		}
		if a.out.Sent = sent; h.late {
			a.out.Sent = sent.After(-trialTTL)
		}
		return a.grant, a.out
	case <-ctx.Done():
		return protocol.Grant{}, redisexec.Outcome{Sent: sent, Err: lockerr.Ended(ctx), Ambiguous: true}
	}
}

const trialTTL = 10 * time.Second

// wants returns a hold that stands at the places of its keys.
func (b *trial) wants(owner string, names ...string) *asker {
	b.t.Helper()
	target := new(keys.Set)
	require.NoError(b.t, target.Init("", names))
	h := &asker{b: b}
	m := &Mutex{session: b.session, kind: &kind{lock: KindMutex, protocol: &asking{h: h}}, target: target, settings: defaultSettings().settings}
	m.settings.TTL, m.settings.SafetyPoll = trialTTL, 4*time.Second
	m.settings.apply(nil)
	m.settings.hooks.Contended = func(Event) { h.contended++ }
	h.record = newRecord(b.t.Context(), m)
	h.hold = newHold(b.session, m.kind, keys.Owner{Fixed: owner}, target, &m.settings, true)
	require.True(b.t, h.register())
	for _, p := range h.queueEntries {
		if p.gate.listeners == 0 { // the test listens, so no confirmation is to come
			p.gate.listen()
		}
	}
	synctest.Wait()
	b.holds = append(b.holds, h)
	return h
}

// listens is how many listeners there are but the test itself.
func (b *trial) listens() (n int) {
	counted := make(map[*gate]bool)
	for _, h := range b.holds {
		for _, p := range h.queueEntries {
			if !counted[p.gate] {
				counted[p.gate] = true
				n += p.gate.listeners - 1
			}
		}
	}
	return n
}

// isGiven has the holder before hand its keys over to h.
func (h *asker) isGiven() {
	sent := h.b.session.now()
	if h.late {
		sent = sent.After(-trialTTL)
	}
	h.receive(keys.Name{Field: "given:" + h.owner.Fixed}, sent, trialTTL, 0)
}

type result struct {
	granted bool
	err     error
}

// locks has h wait for its keys, until ctx ends; tries has it try.
func (h *asker) locks(ctx context.Context) <-chan result { return h.runs(ctx, true) }
func (h *asker) tries() <-chan result                    { return h.runs(h.b.t.Context(), false) }

func (h *asker) runs(ctx context.Context, waits bool) <-chan result {
	ended := make(chan result, 1)
	h.waits = waits
	go func() {
		granted, err := h.acquire(ctx, h.record)
		ended <- result{granted, err}
	}()
	return ended
}

// asks returns the request under way, which is h's.
func (b *trial) asks(h *asker) *request {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Len(b.t, b.requests, 1, "requests under way")
	require.Same(b.t, h, b.requests[0].by)
	return b.requests[0]
}

// sleeps asserts that no request is under way.
func (b *trial) sleeps() {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.requests)
}

// answers answers h's request, and waits for what comes of that. It returns the field that was asked for.
func (b *trial) answers(h *asker, a answer) (field string) {
	b.t.Helper()
	r := b.asks(h)
	b.mu.Lock()
	b.requests = nil
	b.mu.Unlock()
	r.answer <- a
	synctest.Wait()
	return r.field
}

// granted grants h its keys.
func (b *trial) granted(h *asker) (field string) {
	b.t.Helper()
	return b.answers(h, answer{grant: protocol.Grant{Held: true, Token: 7}})
}

// taken answers that the first key is another client's for so long.
func (b *trial) taken(h *asker, left time.Duration) (field string) {
	b.t.Helper()
	return b.answers(h, answer{grant: protocol.Grant{Holder: "other:1", TTL: left}})
}

func (b *trial) fails(h *asker, out redisexec.Outcome) (field string) {
	b.t.Helper()
	if out.Err == nil {
		out.Err = errMissed
	}
	return b.answers(h, answer{out: out})
}

// gets asserts that an attempt has ended, and how; no other waits.
func (b *trial) gets(ended <-chan result, granted bool, errs ...error) error {
	b.t.Helper()
	err := b.getsAmongOthers(ended, granted, errs...)
	require.Zero(b.t, b.listens(), "it listens still")
	return err
}

// getsAmongOthers is gets while others listen.
func (b *trial) getsAmongOthers(ended <-chan result, granted bool, errs ...error) error {
	b.t.Helper()
	synctest.Wait()
	select {
	case r := <-ended:
		require.Equal(b.t, granted, r.granted)
		if len(errs) == 0 {
			require.NoError(b.t, r.err)
		}
		for _, want := range errs {
			require.ErrorIs(b.t, r.err, want)
		}
		return r.err
	default:
		b.t.Fatal("it goes on")
		return nil
	}
}

// goesOn asserts that an attempt has not ended.
func (b *trial) goesOn(ended <-chan result) {
	b.t.Helper()
	synctest.Wait()
	require.Empty(b.t, ended)
}

// stands asserts how h stands in the queue of its first key.
func (h *asker) stands(want queue.State) {
	h.b.t.Helper()
	state, _ := h.queueEntries[0].ticket.State()
	require.Equal(h.b.t, want, state)
}

// undoes asserts what is being undone of h.
func (h *asker) undoes(want ...undone) {
	h.b.t.Helper()
	synctest.Wait()
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	var its []undone
	for _, u := range h.b.undone {
		if strings.HasSuffix(u.field, ":"+h.owner.Fixed) {
			its = append(its, u)
		}
	}
	require.Equal(h.b.t, want, its)
}

// nothingLeft asserts that h has no name and no ticket, and what is being undone.
func (h *asker) nothingLeft(undoing ...undone) {
	h.b.t.Helper()
	require.Empty(h.b.t, h.name.Field)
	for _, p := range h.queueEntries {
		state, _ := p.ticket.State()
		require.Equal(h.b.t, queue.Gone, state)
	}
	h.undoes(undoing...)
}
