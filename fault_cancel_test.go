package relock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// promptly is when a call has to be back that its context has ended: well before the answer
// of Redis would be given up, which is after a second.
const promptly = 600 * time.Millisecond

// onceWithin calls f, which reports how long something took, again until that was less than d: a
// machine that stalls makes it late now and then, but whoever waits in vain is late every time.
func onceWithin(t *testing.T, d time.Duration, f func() time.Duration) {
	t.Helper()
	for end := time.Now().Add(soonEnough); f() >= d; {
		require.True(t, time.Now().Before(end), "it never takes less than %v", d)
	}
}

// took is how long f takes.
func took(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// newCancelBench returns a bench whose client is patient, but whose leases are short.
func newCancelBench(t *testing.T, kind lockKind, addr string) *faultBench {
	t.Helper()
	return newFaultBenchOf(t, kind, addr, WithTTL(defaultTTL))
}

// faultStage is a point that a Lock has reached when it is given up.
type faultStage struct {
	name string
	// stop makes the Lock to come stop there. stopped is closed when it has; release lets
	// go on what was stopped, and frees the lock.
	stop func(b *faultBench) (stopped <-chan struct{}, release func())
}

var faultStages = []faultStage{
	{"request under way", func(b *faultBench) (<-chan struct{}, func()) {
		rule := b.relay.Block(b.runs(acquireScript))
		return rule.Caught(), rule.Release
	}},
	{"answer under way", func(b *faultBench) (<-chan struct{}, func()) {
		return b.stopReply(acquireScript)
	}},
	{"in line", func(b *faultBench) (<-chan struct{}, func()) {
		rival := b.kind.rival(b.locks, b.key)
		require.NoError(b.t, b.other.lock(b.ctx, rival))
		return b.whenContended(), func() { require.NoError(b.t, b.other.unlock(rival)) }
	}},
	{"subscription under way", func(b *faultBench) (<-chan struct{}, func()) {
		lockByRival(b)
		rule := b.relay.Block(redistest.Named("SUBSCRIBE"))
		return rule.Caught(), func() {
			rule.Release()
			require.NoError(b.t, b.other.unlock(b.rival))
		}
	}},
	{"second request under way", func(b *faultBench) (<-chan struct{}, func()) {
		lockByRival(b)
		first := b.relay.Before(b.runs(acquireScript), func(redistest.Command) {})
		b.relay.Before(redistest.Named("SUBSCRIBE"), func(redistest.Command) { <-first.Caught() })
		var second *redistest.Rule
		asked := 0
		second = b.relay.Block(b.asks().And(func(redistest.Command) bool {
			asked++
			return asked == 2
		}))
		return second.Caught(), func() {
			second.Release()
			require.NoError(b.t, b.other.unlock(b.rival))
		}
	}},
	{"asleep", func(b *faultBench) (<-chan struct{}, func()) {
		lockByRival(b)
		return b.whenAsleep(), func() { require.NoError(b.t, b.other.unlock(b.rival)) }
	}},
}

// asks chooses the requests of those who want the lock: for it, or how they stand.
func (b *faultBench) asks() redistest.Match {
	acquires, polls := b.runs(acquireScript), redistest.Script(fairPollScript.source).And(redistest.With(b.key))
	return func(c redistest.Command) bool { return acquires(c) || polls(c) }
}

// whenContended returns a channel that is closed when a Lock has found the lock taken.
func (b *faultBench) whenContended() <-chan struct{} {
	contended := make(chan struct{})
	go func() {
		defer close(contended)
		<-b.contended
	}()
	return contended
}

// whenAsleep returns a channel that is closed when a Lock has been told twice that the lock
// is taken: before it had a subscription, and with it.
func (b *faultBench) whenAsleep() <-chan struct{} {
	asleep, told := make(chan struct{}), 0
	b.relay.After(b.asks(), func(redistest.Command, string) {
		if told++; told == 2 {
			close(asleep)
		}
	}).Always()
	return asleep
}

// eachFaultStage runs fn for each stage with each kind of lock on one Redis on each backend, again
// until the Lock is back promptly when it has to be: fn returns how long after that it was.
func eachFaultStage(t *testing.T, fn func(b *faultBench, stopped <-chan struct{}) time.Duration) {
	t.Parallel()
	for _, s := range faultStages {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
				onceWithin(t, promptly, func() time.Duration {
					b := newCancelBench(t, kind, backend.Addr)
					stopped, release := s.stop(b)
					late := fn(b, stopped)
					require.Zero(t, b.me.levels(b.m))
					release()
					b.awaitGone(faultTTL)
					b.awaitIdle()
					b.requireLockable()
					return late
				})
			})
		})
	}
}

func TestALockWhoseContextEndsReturnsPromptlyAndLeavesNothing(t *testing.T) {
	eachFaultStage(t, func(b *faultBench, stopped <-chan struct{}) time.Duration {
		ctx, cancel := context.WithCancelCause(b.ctx)
		locking := b.me.start(func() error { return b.m.Lock(ctx) })
		b.awaitStop(stopped)
		began := time.Now()
		cancel(errGaveUp)
		err := faultError(b.t, locking)
		late := time.Since(began)
		require.ErrorIs(b.t, err, errGaveUp)
		require.ErrorIs(b.t, err, context.Canceled)
		require.ErrorContains(b.t, err, b.key)
		return late
	})
}

// Whoever ends his program because of the error leaves nothing that others have to wait for.
func TestALockThatIsGivenUpHasLeftNothingWhenItReturns(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]MutexOption{"goroutine": nil, "fixed owner": {WithOwner("me")}} {
		t.Run("in line/"+name, func(t *testing.T) {
			t.Parallel()
			eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
				b := newCancelBench(t, kind, backend.Addr)
				b.m = b.mutex(opts...)
				lockByRival(b)
				before := b.keys()
				b.givesUpQuickly(func(cancel func()) {
					stopped := b.whenAsleep()
					go func() { <-stopped; cancel() }()
				}, func() { require.ElementsMatch(t, before, b.keys()) })
				require.NoError(t, b.other.unlock(b.rival))
			})
		})
		t.Run("answer under way/"+name, func(t *testing.T) {
			t.Parallel()
			eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
				b := newCancelBench(t, kind, backend.Addr)
				b.m = b.mutex(opts...)
				b.givesUpQuickly(func(cancel func()) {
					b.relay.After(b.runs(acquireScript), func(redistest.Command, string) { cancel() })
				}, func() { require.Empty(t, b.keys()) })
			})
		})
		t.Run("handed over/"+name, func(t *testing.T) {
			t.Parallel()
			eachKindOf(t, []string{"plain", "multi", "write"}, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
				b := newCancelBench(t, kind, backend.Addr)
				before := b.m
				b.m = b.mutex(opts...)
				b.givesUpQuickly(func(cancel func()) {
					require.NoError(t, b.other.lock(b.ctx, before))
					b.relay.After(b.runs(handoffScript), func(redistest.Command, string) { cancel() })
					go func() {
						<-b.contended
						b.other.start(before.Unlock)
					}()
				}, func() { require.Empty(t, b.keys()) })
			})
		})
	}
}

// givesUpQuickly has a Lock given up at a time that ends chooses, again until it returns before
// it would no longer wait for Redis, and runs check then.
func (b *faultBench) givesUpQuickly(ends func(cancel func()), check func()) {
	b.t.Helper()
	b.relay.Latency(3 * time.Millisecond)
	onceWithin(b.t, moment, func() time.Duration {
		ctx, cancel := context.WithCancel(b.ctx)
		cancelled := make(chan time.Time, 1)
		ends(func() { cancelled <- time.Now(); cancel() })
		require.ErrorIs(b.t, b.me.lock(ctx, b.m), context.Canceled)
		late := time.Since(<-cancelled)
		if late < moment {
			check()
		}
		b.awaitIdle()
		return late
	})
}

// The lease would outlive the test: the key goes because it is released.
func TestAGrantThatNobodyWaitsForAnyMoreIsUndone(t *testing.T) {
	t.Parallel()
	eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
		b := newCancelBench(t, kind, backend.Addr)
		b.m = b.mutex(WithTTL(5 * time.Minute))
		executed, release := b.stopReply(acquireScript)
		ctx, cancel := context.WithCancelCause(b.ctx)
		locking := b.me.start(func() error { return b.m.Lock(ctx) })
		b.awaitStop(executed)
		b.requireField(b.me, 1)
		cancel(errGaveUp)
		require.ErrorIs(t, faultError(t, locking), errGaveUp)
		release()
		b.awaitIdle()
		b.requireGone()
	})
}

func TestALockWhoseWaitTimesOutReturnsPromptlyAndLeavesNothing(t *testing.T) {
	const timeout = 200 * time.Millisecond
	eachFaultStage(t, func(b *faultBench, _ <-chan struct{}) time.Duration {
		m := b.mutex(WithWaitTimeout(timeout))
		began := time.Now()
		err := b.me.lock(b.ctx, m)
		late := time.Since(began) - timeout
		require.GreaterOrEqual(b.t, late, time.Duration(0))
		require.ErrorIs(b.t, err, ErrTimeout)
		require.NotErrorIs(b.t, err, context.DeadlineExceeded, "the caller's context is alive")
		require.ErrorContains(b.t, err, b.key)
		return late
	})
}

func TestAnEndedContextSendsNothing(t *testing.T) {
	t.Parallel()
	eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
		b := newCancelBench(t, kind, backend.Addr)
		ctx, cancel := context.WithCancelCause(b.ctx)
		cancel(errGaveUp)
		for name, call := range map[string]func() error{
			"Lock":        func() error { return b.m.Lock(ctx) },
			"TryLock":     func() error { _, err := b.m.TryLock(ctx); return err },
			"Do":          func() error { return b.m.Do(ctx, func(context.Context) error { panic("ran") }) },
			"State":       func() error { _, err := b.m.State(ctx); return err },
			"ForceUnlock": func() error { _, err := b.m.ForceUnlock(ctx); return err },
		} {
			require.ErrorIs(t, call(), errGaveUp, name)
		}
		require.Zero(t, b.relay.Count(redistest.With(b.key)))
	})
}

func TestAReentryWhoseContextEndsLeavesTheHoldAsItWas(t *testing.T) {
	t.Parallel()
	eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
		onceWithin(t, promptly, func() time.Duration {
			b := newCancelBench(t, kind, backend.Addr)
			lockOnce(b)
			hold := b.me.holdOf(b.ctx, b.m)
			rule := b.relay.Block(b.runs(reenterScript))
			ctx, cancel := context.WithCancelCause(b.ctx)
			entering := b.me.start(func() error { return b.m.Lock(ctx) })
			b.awaitStop(rule.Caught())
			late := took(func() {
				cancel(errGaveUp)
				require.ErrorIs(t, faultError(t, entering), errGaveUp)
			})
			require.Equal(t, 1, b.me.levels(b.m))
			rule.Release()
			lockOnce(b)
			b.requireHeld(b.me, b.m, 2, hold)
			b.unwind(b.me, b.m, 2, hold)
			b.requireGone()
			b.awaitIdle()
			return late
		})
	})
}

func TestUnlockWorksWhenTheContextOfLockHasEnded(t *testing.T) {
	t.Parallel()
	eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
		b := newCancelBench(t, kind, backend.Addr)
		ctx, cancel := context.WithCancelCause(b.ctx)
		require.NoError(t, b.me.lock(ctx, b.m))
		require.NoError(t, b.me.lock(ctx, b.m))
		hold := b.me.holdOf(b.ctx, b.m)
		cancel(errGaveUp)
		b.requireHeld(b.me, b.m, 2, hold)
		b.unwind(b.me, b.m, 2, hold)
		b.requireGone()
		b.awaitIdle()
	})
}
