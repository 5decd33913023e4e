package acquire

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A trial is a client whose Redis is the test: each request waits for its answer, or for the end of its
// context. Time stands still while all wait.
type trial struct {
	t        *testing.T
	env      *Env
	registry *Registry
	closing  chan struct{}

	mu       sync.Mutex
	requests []*request // that wait for an answer
	missed   []string   // channels on which a message should have come
	suspects []string   // and on which one might have
	listens  int        // listeners there are
	live     bool       // messages arrive
	seen     map[string]*hold
}

// begin runs test in a bubble. A goroutine that is left over fails it.
func begin(t *testing.T, test func(b *trial)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &trial{t: t, closing: make(chan struct{}), live: true, seen: make(map[string]*hold)}
		began := time.Now()
		b.registry = gate.NewRegistry[Hold](nil)
		b.env = &Env{
			Now:      func() clock.Instant { return clock.Instant{}.After(time.Hour + time.Since(began)) },
			Patience: time.Second, Identities: identity.NewSource(), Closing: b.closing, Hub: (*hub)(b),
			Uses: func(string) bool { return false },
			Holder: func(_ *keys.Set, _ int, field string) Hold {
				if h := b.seen[field]; h != nil {
					return h
				}
				return nil
			},
		}
		test(b)
	})
}

type hub trial

func (b *hub) Missed(channel string)  { b.missed = append(b.missed, channel) }
func (b *hub) Suspect(channel string) { b.suspects = append(b.suspects, channel) }

// Listen, Unlisten and Listening are of the Listener.
func (b *trial) Listen()         { b.mu.Lock(); defer b.mu.Unlock(); b.listens++ }
func (b *trial) Unlisten()       { b.mu.Lock(); defer b.mu.Unlock(); b.listens-- }
func (b *trial) Listening() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.live }

// A request is one for all keys, that waits for its answer.
type request struct {
	by     *hold
	field  string
	opts   redisexec.CallOptions
	answer chan answer
}

type answer struct {
	grant protocol.Grant
	out   redisexec.Outcome
}

// redis is the protocol of a hold; nothing but Acquire is to be called.
type redis struct {
	protocol.Protocol
	b *trial
	h *hold
}

func (r *redis) Acquire(ctx context.Context, opts redisexec.CallOptions, _ *keys.Set, field string, _ *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	q := &request{by: r.h, field: field, opts: opts, answer: make(chan answer, 1)}
	r.b.mu.Lock()
	r.b.requests = append(r.b.requests, q)
	r.b.mu.Unlock()
	sent := r.b.env.Now()
	select {
	case a := <-q.answer:
		if r.h.onAnswer != nil {
			r.h.onAnswer()
		}
		a.out.Sent = sent
		return a.grant, a.out
	case <-ctx.Done():
		return protocol.Grant{}, redisexec.Outcome{Sent: sent, Err: lockerr.Ended(ctx), Ambiguous: true}
	}
}

// A hold is what keys are for.
type hold struct {
	b        *trial
	owner    keys.Owner
	attempt  Attempt
	target   *keys.Set
	places   []Place
	terms    *protocol.Terms
	replicas redisexec.Replicas

	name      identity.Name
	late      bool // its grant does not count
	rejected  int
	contended int
	onWait    func()
	onAnswer  func() // before the attempt has it
	undone    []undone
	remaining time.Duration // negative: it is not held
}

// undone is what a name may have, that is being given up.
type undone struct {
	field      string
	lasts      time.Duration
	unobserved bool
}

const ttl = 10 * time.Second

// wants returns a hold that stands at the places of its keys, with an attempt that has begun.
func (b *trial) wants(owner string, names ...string) *hold {
	b.t.Helper()
	h := &hold{b: b, owner: keys.Owner{Fixed: owner}, target: new(keys.Set), terms: &protocol.Terms{TTL: ttl, SafetyPoll: 4 * time.Second}}
	require.NoError(b.t, h.target.Init("", names))
	h.begins()
	for _, key := range h.target.Keys {
		p := AtGate(b.registry.Enter(gate.ID{Key: key}, ""))
		p.Messages, p.Ticket = b, p.Queue.Ticket(h, h.attempt.Alarm())
		h.places = append(h.places, p)
	}
	return h
}

func (h *hold) begins() {
	h.attempt.Begin(h.b.env, h, Wish{Target: h.target, Protocol: &redis{b: h.b, h: h}, Terms: h.terms, Replicas: h.replicas})
}

func (h *hold) Owner() keys.Owner { return h.owner }
func (h *hold) Attempt() *Attempt { return &h.attempt }
func (h *hold) Named() bool       { return h.name.Field != "" }
func (h *hold) RaiseSoon()        {}
func (h *hold) Late() bool {
	if h.late {
		h.Reject()
	}
	return h.late
}

func (h *hold) Receive(n identity.Name, _ clock.Instant, lasts, _ time.Duration) {
	h.name = n
	require.Equal(h.b.t, ttl, lasts)
}
func (h *hold) Prove(clock.Instant, time.Duration) {}
func (h *hold) Reject()                            { h.rejected++; h.name = identity.Name{} }
func (h *hold) Undo(_ protocol.Protocol, _ *keys.Set, n identity.Name, lasts time.Duration, unobserved bool) {
	h.undone = append(h.undone, undone{n.Field, lasts, unobserved})
}
func (h *hold) Remaining(clock.Instant) (time.Duration, bool) {
	return h.remaining, h.remaining >= 0
}

// Contended is of the Record.
func (h *hold) Contended() {
	h.contended++
	if h.onWait != nil {
		h.onWait()
	}
}

type result struct {
	granted bool
	err     error
}

// locks has h wait for its keys, until ctx ends; tries has it try.
func (h *hold) locks(ctx context.Context) <-chan result { return h.runs(ctx, true) }
func (h *hold) tries() <-chan result                    { return h.runs(h.b.t.Context(), false) }

func (h *hold) runs(ctx context.Context, waits bool) <-chan result {
	ended := make(chan result, 1)
	go func() {
		granted, err := h.attempt.Run(ctx, h.places, NewPlainTurn, waits, h)
		ended <- result{granted, err}
	}()
	return ended
}

// asks returns the request under way, which is h's.
func (b *trial) asks(h *hold) *request {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Len(b.t, b.requests, 1, "requests under way")
	require.Same(b.t, h, b.requests[0].by)
	return b.requests[0]
}

// sleeps says that no request is under way.
func (b *trial) sleeps() {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.requests)
}

// answers answers h's request, and waits for what comes of that. It returns the field that was asked for.
func (b *trial) answers(h *hold, a answer) (field string) {
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
func (b *trial) granted(h *hold) (field string) {
	b.t.Helper()
	return b.answers(h, answer{grant: protocol.Grant{Held: true, Token: 7}})
}

// taken answers that the first key is another client's for so long.
func (b *trial) taken(h *hold, left time.Duration) (field string) {
	b.t.Helper()
	return b.answers(h, answer{grant: protocol.Grant{Holder: "other:1", TTL: left}})
}

var errMissed = errors.New("connection reset")

func (b *trial) fails(h *hold, out redisexec.Outcome) (field string) {
	b.t.Helper()
	if out.Err == nil {
		out.Err = errMissed
	}
	return b.answers(h, answer{out: out})
}

// gets says that an attempt has ended, and how.
func (b *trial) gets(ended <-chan result, granted bool, errs ...error) error {
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
		require.Zero(b.t, b.listens, "it listens still")
		return r.err
	default:
		b.t.Fatal("it goes on")
		return nil
	}
}

// goesOn says that an attempt has not ended.
func (b *trial) goesOn(ended <-chan result) {
	b.t.Helper()
	synctest.Wait()
	require.Empty(b.t, ended)
}

// stands says how h stands in the queue of its first key.
func (h *hold) stands(want queue.State) {
	h.b.t.Helper()
	state, _ := h.places[0].Ticket.State()
	require.Equal(h.b.t, want, state)
}

// nothingLeft says that h has no name and no place, and what is being undone.
func (h *hold) nothingLeft(undoing ...undone) {
	h.b.t.Helper()
	require.Empty(h.b.t, h.name.Field)
	for _, p := range h.places {
		state, _ := p.Ticket.State()
		require.Equal(h.b.t, queue.Gone, state)
	}
	require.Equal(h.b.t, undoing, h.undone)
}
