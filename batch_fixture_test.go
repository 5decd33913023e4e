package relock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// A batchTrial is a batch that begins with the hold first. Its renames wait for the test to answer them, or
// for the end of their context.
type batchTrial struct {
	t *testing.T
	*batch
	first *hold
	kind  *kind

	mu      sync.Mutex
	renames []*rename // that wait for an answer
	missed  []error   // errors that the hook RenewFailed received
}

// beginBatch runs test in a bubble, in which time stands still while all goroutines wait. One that is left
// over fails the test.
func beginBatch(t *testing.T, test func(b *batchTrial)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := alone(t)
		s.patience = time.Minute
		b := &batchTrial{t: t}
		b.kind = &kind{lock: KindMutex, protocol: releasing{release: answered}, rename: b.sendRename}
		b.first = b.wants(s, "first")
		b.first.holds(string(*s.identities.Current()) + ":first")
		b.first.queueEntries[0].gate.seesLine(lineEmpty, s.now())
		b.batch = b.first.joinBatch()
		defer b.end(nil)
		test(b)
	})
}

// wants returns a hold of owner, who wants the key. It is not renewed.
func (b *batchTrial) wants(s *session, owner string) *hold {
	b.t.Helper()
	o := defaultSettings().settings
	o.Renewed, o.TTL = false, 10*time.Second
	o.hooks.RenewFailed = func(e Event) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.missed = append(b.missed, e.Err)
	}
	target := new(keys.Set)
	require.NoError(b.t, target.Init("", []string{"key"}))
	h := newHold(s, b.kind, keys.Owner{Fixed: owner}, target, &o, true)
	require.True(b.t, h.register())
	return h
}

// next returns a hold that is to follow, with a name.
func (b *batchTrial) next(owner string) *hold {
	b.t.Helper()
	h := b.wants(b.session, owner)
	h.name = b.session.identities.Current().Of(b.target, h.owner)
	return h
}

// nextAgain returns a hold that is to follow, of the owner of h, which is detached.
func (b *batchTrial) nextAgain(h *hold) *hold {
	b.t.Helper()
	h.detach()
	return b.next(h.owner.Fixed)
}

// A rename is a command that was sent, and waits for its answer.
type rename struct {
	from, to string
	lease    time.Duration
	opts     redisexec.CallOptions
	ctx      context.Context
	answer   chan renamed
}

// renamed is what a rename came to.
type renamed struct {
	ours    bool
	waiters int
	out     redisexec.Outcome
}

// sendRename is the renamer: it waits until the test answers, or for the end of ctx.
func (b *batchTrial) sendRename(ctx context.Context, opts redisexec.CallOptions, _ *keys.Set, from, to string, lease time.Duration) (bool, int, redisexec.Outcome) {
	r := &rename{from: from, to: to, lease: lease, opts: opts, ctx: ctx, answer: make(chan renamed, 1)}
	b.mu.Lock()
	b.renames = append(b.renames, r)
	b.mu.Unlock()
	select {
	case a := <-r.answer:
		return a.ours, a.waiters, a.out
	case <-ctx.Done():
		return false, 0, redisexec.Outcome{Err: lockerr.Ended(ctx), Ambiguous: true}
	}
}

// isRetired reports whether nothing is acquired by the name of h any more.
func (b *batchTrial) isRetired(h *hold) bool {
	return b.session.identities.Current() != h.name.Identity
}

// underWay returns the rename that waits for an answer; there is just one.
func (b *batchTrial) underWay() *rename {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Len(b.t, b.renames, 1, "renames under way")
	return b.renames[0]
}

// isSent returns the rename under way, which is to have these names.
func (b *batchTrial) isSent(from, to *hold) *rename {
	b.t.Helper()
	r := b.underWay()
	require.Equal(b.t, [2]string{from.name.Field, to.name.Field}, [2]string{r.from, r.to})
	return r
}

// nothingSent asserts that no rename is under way.
func (b *batchTrial) nothingSent() {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.renames)
}

// answers answers the rename under way, and waits for what comes of that.
func (b *batchTrial) answers(a renamed) {
	b.t.Helper()
	r := b.underWay()
	b.mu.Lock()
	b.renames = nil
	b.mu.Unlock()
	a.out.Sent = b.session.now()
	r.answer <- a
	synctest.Wait()
}

// ours answers that the lock has the new name now, and returns when that was asked.
func (b *batchTrial) ours() (sent clock.Instant) {
	b.t.Helper()
	sent = b.session.now()
	b.answers(renamed{ours: true})
	return sent
}

// follows has a hold follow the one before, and be held. It returns where the answer to that one will be.
func (b *batchTrial) follows(next *hold) <-chan error {
	b.t.Helper()
	next.follow(b.holder, next.name, b.batch)
	answer, over := b.handOver(next, next.name, true, func() bool { return true })
	require.False(b.t, over)
	require.NotNil(b.t, answer)
	_, _ = next.open(openLock{settings: next.settings, target: next.target}, nil)
	return answer
}

// requireAnswer requires that the waiting Unlock received the answer want.
func (b *batchTrial) requireAnswer(answer <-chan error, want ...error) {
	b.t.Helper()
	synctest.Wait()
	select {
	case err := <-answer:
		if len(want) == 0 {
			require.NoError(b.t, err)
		}
		for _, w := range want {
			require.ErrorIs(b.t, err, w)
		}
	default:
		b.t.Fatal("it still waits for Redis")
	}
}

// waits asserts that there is no answer yet.
func (b *batchTrial) waits(answer <-chan error) {
	b.t.Helper()
	synctest.Wait()
	require.Empty(b.t, answer, "it was answered")
}

// isKnown asserts that Redis may have the names of these for the lock: two while a rename from one to the
// other is under way.
func (b *batchTrial) isKnown(as ...*hold) {
	b.t.Helper()
	var names []string
	for _, h := range as {
		names = append(names, h.name.Field)
	}
	require.Equal(b.t, names, fieldsOf(b.names()))
}

func fieldsOf(names []keys.Name) (fields []string) {
	for _, n := range names {
		fields = append(fields, n.Field)
	}
	return fields
}

// isLost reports whether h was lost.
func isLost(h *hold) bool { return errors.Is(h.usable(), ErrLost) }

// proven is when the last request was sent that proved the lease of h.
func proven(h *hold) clock.Instant {
	h.mu.Lock()
	defer h.mu.Unlock()
	return sentAt(h.lease.Deadline(), h.settings.TTL)
}

// lateRenamer answers that the lock has the new name when came is closed, whatever has ended before.
func lateRenamer(came <-chan struct{}) renamer {
	return func(context.Context, redisexec.CallOptions, *keys.Set, string, string, time.Duration) (bool, int, redisexec.Outcome) {
		<-came
		return true, 0, redisexec.Outcome{}
	}
}
