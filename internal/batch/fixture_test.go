package batch_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/batch"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/slot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A trial is a batch that begins with the hold first. Its renames wait for the test to answer them, or
// for the end of their context.
type trial struct {
	t *testing.T
	*batch.Batch
	env        *batch.Env
	first      *hold
	identities *identity.Source
	target     *keys.Set
	gate       *gate
	slot       *slot.Slot
	end        context.CancelCauseFunc // of the client's time

	mu      sync.Mutex
	renames []*rename // that wait for an answer
	tellers int       // goroutines that have been started
	retired []*identity.Identity
}

// begin runs test in a bubble, in which time stands still while all goroutines wait. One that is left
// over fails the test.
func begin(t *testing.T, test func(b *trial)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &trial{t: t, identities: identity.NewSource(), target: new(keys.Set), gate: &gate{alone: true}, slot: new(slot.Slot)}
		require.NoError(t, b.target.Init("", []string{"key"}))
		began := time.Now()
		b.env = &batch.Env{
			Now:      func() clock.Instant { return clock.Instant{}.After(time.Hour + time.Since(began)) },
			Patience: time.Minute, Go: func(f func()) { b.tellers++; go f() }, Retire: b.retire, Rename: b.rename,
		}
		b.env.Background, b.end = context.WithCancelCause(t.Context())
		b.first = b.newHold("first")
		b.Batch = batch.New(b.env, b.first, b.first.name, b.target, b.gate, b.slot, b.env.Now())
		defer func() {
			b.End(nil)
			b.end(nil)
		}()
		test(b)
	})
}

// A rename is a command that was sent, and waits for its answer.
type rename struct {
	from, to string
	lease    time.Duration
	opts     redisexec.CallOptions
	ctx      context.Context
	answer   chan answer
}

type answer struct {
	ours    bool
	waiters int
	out     redisexec.Outcome
}

// rename is the Renamer: it waits until the test answers, or for the end of ctx.
func (b *trial) rename(ctx context.Context, opts redisexec.CallOptions, target *keys.Set, from, to string, lease time.Duration) (bool, int, redisexec.Outcome) {
	r := &rename{from: from, to: to, lease: lease, opts: opts, ctx: ctx, answer: make(chan answer, 1)}
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

func (b *trial) retire(id *identity.Identity) {
	b.mu.Lock()
	b.retired = append(b.retired, id)
	b.mu.Unlock()
	b.identities.Retire(id)
}

// isRetired reports whether nothing is acquired by the name of h any more.
func (b *trial) isRetired(h *hold) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.retired, h.name.Identity)
}

// settle waits until nothing goes on but what waits for the test, or for time.
func (b *trial) settle() { synctest.Wait() }

// underWay returns the rename that waits for an answer; there is just one.
func (b *trial) underWay() *rename {
	b.t.Helper()
	b.settle()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Len(b.t, b.renames, 1, "renames under way")
	return b.renames[0]
}

// sent returns the rename under way, which is to have these names.
func (b *trial) sent(from, to *hold) *rename {
	b.t.Helper()
	r := b.underWay()
	require.Equal(b.t, [2]string{from.name.Field, to.name.Field}, [2]string{r.from, r.to})
	return r
}

// nothingSent says that no rename is under way.
func (b *trial) nothingSent() {
	b.t.Helper()
	b.settle()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.renames)
}

// answers answers the rename under way, and waits for what comes of that.
func (b *trial) answers(a answer) {
	b.t.Helper()
	r := b.underWay()
	b.mu.Lock()
	b.renames = nil
	b.mu.Unlock()
	r.answer <- a
	b.settle()
}

// ours answers that the lock is known by the new name now.
func (b *trial) ours() {
	b.t.Helper()
	b.answers(answer{ours: true, out: redisexec.Outcome{Sent: b.env.Now()}})
}

var errMissed = errors.New("connection reset")

// follows has a hold follow the one before, and returns where the answer to that one will be.
func (b *trial) follows(next *hold) <-chan error {
	b.t.Helper()
	told, over := b.Pass(next, next.name, func() bool { return true })
	require.False(b.t, over)
	require.NotNil(b.t, told)
	return told
}

// hears says that what waits for Redis was told of the answer want.
func (b *trial) hears(told <-chan error, want ...error) {
	b.t.Helper()
	b.settle()
	select {
	case err := <-told:
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

// waits says that there is no answer yet.
func (b *trial) waits(told <-chan error) {
	b.t.Helper()
	b.settle()
	require.Empty(b.t, told, "it was answered")
}

// known says that Redis may know the lock by the names of these: two while a rename from one to the
// other is under way.
func (b *trial) known(as ...*hold) {
	b.t.Helper()
	names := make([]identity.Name, len(as))
	for i, h := range as {
		names[i] = h.name
	}
	require.Equal(b.t, names, b.Names())
}

// A hold is what the batch is told of it.
type hold struct {
	name   identity.Name
	wanted time.Duration

	mu     sync.Mutex
	told   []told
	untold []error
	lost   int
}

type told struct {
	by    *batch.Batch
	sent  clock.Instant
	lease time.Duration
}

func (b *trial) newHold(owner string) *hold {
	return &hold{name: b.identities.Current().Of(b.target, keys.Owner{Fixed: owner}), wanted: 10 * time.Second}
}

func (h *hold) WantedLease() time.Duration { return h.wanted }

func (h *hold) Told(b *batch.Batch, out redisexec.Outcome, lease time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told = append(h.told, told{b, out.Sent, lease})
}

func (h *hold) Untold(out redisexec.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.untold = append(h.untold, out.Err)
}

func (h *hold) Lose() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost++
}

// A gate is what was learned of the key.
type gate struct {
	mu    sync.Mutex
	heard int
	alone bool
	due   clock.Instant // for strangers; zero: never
}

func (g *gate) Heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.heard++
}

func (g *gate) SetAlone(alone bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alone = alone
}

func (g *gate) Alone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.alone
}

func (g *gate) StrangersDue(now clock.Instant) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.due != clock.Instant{} && now.Until(g.due) <= 0
}

// lateRenamer answers that the lock is known by the new name when came is closed, whatever has ended before.
func lateRenamer(came <-chan struct{}) batch.Renamer {
	return func(context.Context, redisexec.CallOptions, *keys.Set, string, string, time.Duration) (bool, int, redisexec.Outcome) {
		<-came
		return true, 0, redisexec.Outcome{}
	}
}
