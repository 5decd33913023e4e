package relock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// promptly is when a call has to be back that its context has ended: well before the answer
// of Redis would be given up, which is after a second.
const promptly = 600 * time.Millisecond

// onceWithin calls f, which reports how long something took, again until that was less than d: a
// machine that stalls makes it late now and then, but a caller that waits for nothing is late every time.
func onceWithin(t *testing.T, d time.Duration, f func() time.Duration) {
	t.Helper()
	for end := time.Now().Add(locktest.SoonEnough); f() >= d; {
		require.True(t, time.Now().Before(end), "it never takes less than %v", d)
	}
}

// cancelBench is a lock, of any kind, that is given up while what it asks for is under way.
type cancelBench struct {
	*kindBench
	contended chan struct{} // when it has been found taken
}

// newCancelBench returns a bench whose client is patient, but whose leases are short.
func newCancelBench(t *testing.T, backend *redistest.Backend, kind lockKind) *cancelBench {
	t.Helper()
	b := &cancelBench{newKindBench(t, backend, kind), make(chan struct{}, 1)}
	b.relay()
	return b
}

// mutex returns a handle of the lock that the bench observes.
func (b *cancelBench) mutex(opts ...relock.MutexOption) *relock.Mutex {
	hooks := relock.Hooks{Contended: func(relock.Event) {
		select {
		case b.contended <- struct{}{}:
		default: // only the first matters
		}
	}}
	return b.kindBench.mutex(append([]relock.MutexOption{relock.WithTTL(faultTTL), relock.WithHooks(hooks)}, opts...)...)
}

// heldBy has an owner of that client hold the lock on all servers until it is called.
func (b *cancelBench) heldBy(c *relock.Client) (unlock func()) {
	b.t.Helper()
	rival := b.kind.rival(c, b.key, relock.WithTTL(faultTTL))
	b.you.Locks(b.t, rival)
	fieldsOn(b.kindBench)
	return func() { b.you.Unlocks(b.t, rival) }
}

// rules are one for each relay.
type rules []*redistest.Rule

func (b *cancelBench) onEach(rule func(*redistest.Relay) *redistest.Rule) rules {
	var all rules
	for _, relay := range b.relays {
		all = append(all, rule(relay))
	}
	return all
}

// caught returns a channel that is closed when all have done their work, or the test is over.
func (r rules) caught(t *testing.T) <-chan struct{} {
	all := make(chan struct{})
	go func() {
		defer close(all)
		for _, rule := range r {
			select {
			case <-rule.Caught():
			case <-t.Context().Done(): // a wait that times out may do so before
			}
		}
	}()
	return all
}

func (r rules) release() {
	for _, rule := range r {
		rule.Release()
	}
}

// stopReplies is faultBench.stopReply on every server.
func (b *cancelBench) stopReplies(s *redisexec.Script) (executed <-chan struct{}, release func()) {
	reached, released := make(chan struct{}), make(chan struct{})
	var left atomic.Int64
	left.Store(int64(len(b.relays)))
	b.onEach(func(relay *redistest.Relay) *redistest.Rule {
		return relay.After(b.runs(s), func(redistest.Command, string) {
			if left.Add(-1) == 0 {
				close(reached)
			}
			<-released
		})
	})
	release = sync.OnceFunc(func() { close(released) })
	b.t.Cleanup(release) // before the relays are closed
	return reached, release
}

// faultStage is a point that a Lock has reached when it is given up.
type faultStage struct {
	name string
	// stop makes the Lock to come stop there. stopped reports when it has; release lets go on
	// what was stopped, and frees the lock.
	stop func(b *cancelBench) (stopped <-chan struct{}, release func())
}

var faultStages = []faultStage{
	{"request under way", func(b *cancelBench) (<-chan struct{}, func()) {
		blocked := b.onEach(func(relay *redistest.Relay) *redistest.Rule { return relay.Block(b.runs(protocol.AcquireScript)) })
		return blocked.caught(b.t), blocked.release
	}},
	{"answer under way", func(b *cancelBench) (<-chan struct{}, func()) {
		return b.stopReplies(protocol.AcquireScript)
	}},
	{"in line", func(b *cancelBench) (<-chan struct{}, func()) {
		return b.contended, b.heldBy(b.c)
	}},
	{"subscription under way", func(b *cancelBench) (<-chan struct{}, func()) {
		unlock := b.heldBy(b.others)
		blocked := b.onEach(func(relay *redistest.Relay) *redistest.Rule { return relay.Block(redistest.Named("SUBSCRIBE")) })
		return blocked.caught(b.t), func() {
			blocked.release()
			unlock()
		}
	}},
	{"second request under way", func(b *cancelBench) (<-chan struct{}, func()) {
		unlock := b.heldBy(b.others)
		blocked := b.onEach(func(relay *redistest.Relay) *redistest.Rule {
			first := relay.Before(b.runs(protocol.AcquireScript), func(redistest.Command) {})
			relay.Before(redistest.Named("SUBSCRIBE"), func(redistest.Command) { <-first.Caught() })
			asked := 0
			return relay.Block(asksOf(b.kind, b.key).And(func(redistest.Command) bool {
				asked++
				return asked == 2
			}))
		})
		return blocked.caught(b.t), func() {
			blocked.release()
			unlock()
		}
	}},
	{"asleep", func(b *cancelBench) (<-chan struct{}, func()) {
		unlock := b.heldBy(b.others)
		return asleepOn(b.relays, asksOf(b.kind, b.key)), unlock
	}},
}

// asksOf chooses the requests of those who want the lock: for it, or how they stand.
func asksOf(kind lockKind, key string) redistest.Match {
	polls := redistest.Script(protocol.LinePollScript.Source())
	return redistest.With(key).And(func(c redistest.Command) bool { return kind.runs(protocol.AcquireScript)(c) || polls(c) })
}

// asleepOn returns a channel that is closed when a Lock has received twice from each server that the
// lock is taken: before it had a subscription, and with it.
func asleepOn(relays []*redistest.Relay, asks redistest.Match) <-chan struct{} {
	asleep := make(chan struct{})
	var left atomic.Int64
	left.Store(int64(len(relays)))
	for _, relay := range relays {
		var reported atomic.Int64
		relay.After(asks, func(redistest.Command, string) {
			if reported.Add(1) == 2 && left.Add(-1) == 0 {
				close(asleep)
			}
		}).Always()
	}
	return asleep
}

func (b *faultBench) whenAsleep() <-chan struct{} {
	return asleepOn([]*redistest.Relay{b.relay}, asksOf(b.kind, b.key))
}

// eachFaultStage runs fn for each stage with each kind of lock on each backend, again until the
// Lock is back promptly when it has to be: fn returns how long after that it was.
func eachFaultStage(t *testing.T, fn func(b *cancelBench, stopped <-chan struct{}) time.Duration) {
	t.Parallel()
	for _, s := range faultStages {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			eachKind(t, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
				onceWithin(t, promptly, func() time.Duration {
					b := newCancelBench(t, backend, kind)
					stopped, release := s.stop(b)
					late := fn(b, stopped)
					require.Zero(t, levelsOf(b.me, b.mutex()))
					release()
					require.Less(t, locktest.Took(b.gone), faultTTL+time.Second, "it outlived its lease")
					b.free()
					b.me.Locks(t, b.mutex())
					b.requireHeld(b.mutex(), 1)
					b.me.Unlocks(t, b.mutex())
					b.free()
					return late
				})
			})
		})
	}
}

func TestCancel_LockReturnsPromptlyAndLeavesNothing(t *testing.T) {
	eachFaultStage(t, func(b *cancelBench, stopped <-chan struct{}) time.Duration {
		ctx, cancel := context.WithCancelCause(b.t.Context())
		locking := b.me.Lock(ctx, b.mutex())
		redistest.Receive(b.t, stopped)
		began := time.Now()
		cancel(errGaveUp)
		err := locktest.OutcomeOf(b.t, locking)
		late := time.Since(began)
		require.ErrorIs(b.t, err, errGaveUp)
		require.ErrorIs(b.t, err, context.Canceled)
		require.ErrorContains(b.t, err, b.key)
		return late
	})
}

// A program that ends because of the error leaves nothing that others have to wait for.
func TestCancel_LockThatGivesUpHasLeftNothingOnReturn(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]relock.MutexOption{"goroutine": nil, "fixed owner": {relock.WithOwner("me")}} {
		t.Run("in line/"+name, func(t *testing.T) {
			t.Parallel()
			eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
				b := newFaultBenchOf(t, kind, backend.Addr, relock.WithTTL(defaultTTL))
				b.m = b.mutex(opts...)
				lockByRival(b)
				before := b.keys()
				b.givesUpQuickly(func(cancel func()) {
					stopped := b.whenAsleep()
					go func() { <-stopped; cancel() }()
				}, before...)
				require.NoError(t, b.other.unlock(b.rival))
			})
		})
		t.Run("answer under way/"+name, func(t *testing.T) {
			t.Parallel()
			eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
				b := newFaultBenchOf(t, kind, backend.Addr, relock.WithTTL(defaultTTL))
				b.m = b.mutex(opts...)
				b.givesUpQuickly(func(cancel func()) {
					b.relay.After(b.runs(protocol.AcquireScript), func(redistest.Command, string) { cancel() })
				})
			})
		})
		t.Run("handed over/"+name, func(t *testing.T) {
			t.Parallel()
			eachKindOf(t, []string{"plain", "multi", "write"}, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
				b := newFaultBenchOf(t, kind, backend.Addr, relock.WithTTL(defaultTTL))
				b.asksRedisFirst()
				before := b.m
				b.m = b.mutex(opts...)
				b.givesUpQuickly(func(cancel func()) {
					require.NoError(t, b.other.lock(b.ctx, before))
					b.relay.After(b.runs(protocol.RenameScript), func(redistest.Command, string) { cancel() })
					go func() {
						<-b.contended
						b.other.start(before.Unlock)
					}()
				})
			})
		})
	}
}

// givesUpQuickly has a Lock given up at a time that ends chooses, again until it returns before
// it would no longer wait for Redis, and requires that nothing is on Redis then but left. A Lock
// that took so long that it has sent a second copy does not count: that may arrive after all else.
func (b *faultBench) givesUpQuickly(ends func(cancel func()), left ...string) {
	b.t.Helper()
	elsewhere := b.locks.Mutex(redistest.Key(b.t)) // for a connection: to set one up takes long
	require.NoError(b.t, b.me.lock(b.ctx, elsewhere))
	require.NoError(b.t, b.me.unlock(elsewhere))
	b.relay.Latency(3 * time.Millisecond)
	onceWithin(b.t, locktest.UndoGrace, func() time.Duration {
		ctx, cancel := context.WithCancel(b.ctx)
		cancelled := make(chan time.Time, 1)
		ends(func() { cancelled <- time.Now(); cancel() })
		began := time.Now()
		err := b.me.lock(ctx, b.m)
		late := time.Since(<-cancelled)
		switch {
		case err == nil: // it was granted before it noticed the cancellation
			require.NoError(b.t, b.me.unlock(b.m))
			late = locktest.UndoGrace
		case time.Since(began) >= redisexec.PatienceFor(faultTTL):
			late = locktest.UndoGrace
		}
		if late < locktest.UndoGrace {
			require.ElementsMatch(b.t, left, b.keys())
		}
		if err != nil {
			require.ErrorIs(b.t, err, context.Canceled)
		}
		b.awaitIdle()
		redistest.Eventually(b.t, "no other keys", func() bool { return len(b.keys()) == len(left) })
		return late
	})
}

// The lease would outlive the test: the key goes because it is released.
func TestCancel_UnwantedGrantIsUndone(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
		b := newCancelBench(t, backend, kind)
		executed, release := b.stopReplies(protocol.AcquireScript)
		ctx, cancel := context.WithCancelCause(t.Context())
		locking := b.me.Lock(ctx, b.mutex(relock.WithTTL(5*time.Minute)))
		redistest.Receive(t, executed)
		require.Equal(t, "1", fieldsOn(b.kindBench)[0].count)
		cancel(errGaveUp)
		require.ErrorIs(t, locktest.OutcomeOf(t, locking), errGaveUp)
		release()
		b.free()
	})
}

func TestCancel_TimedOutLockReturnsPromptlyAndLeavesNothing(t *testing.T) {
	const timeout = 200 * time.Millisecond
	eachFaultStage(t, func(b *cancelBench, _ <-chan struct{}) time.Duration {
		m := b.mutex(relock.WithWaitTimeout(timeout))
		began := time.Now()
		err := locktest.OutcomeOf(b.t, b.me.Lock(b.t.Context(), m))
		late := time.Since(began) - timeout
		require.GreaterOrEqual(b.t, late, time.Duration(0))
		require.ErrorIs(b.t, err, relock.ErrTimeout)
		require.NotErrorIs(b.t, err, context.DeadlineExceeded, "the caller's context is alive")
		require.ErrorContains(b.t, err, b.key)
		return late
	})
}

func TestCancel_ReentryLeavesTheHoldAsItWas(t *testing.T) {
	redistest.InTime(t)
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
		onceWithin(t, promptly, func() time.Duration {
			b := newCancelBench(t, backend, kind)
			m := b.mutex()
			b.me.Locks(t, m)
			hold := b.me.ContextOf(m)
			blocked := b.onEach(func(relay *redistest.Relay) *redistest.Rule { return relay.Block(b.runs(protocol.ReenterScript)) })
			ctx, cancel := context.WithCancelCause(t.Context())
			entering := b.me.Lock(ctx, m)
			redistest.Receive(t, blocked.caught(b.t))
			late := locktest.Took(func() {
				cancel(errGaveUp)
				require.ErrorIs(t, locktest.OutcomeOf(t, entering), errGaveUp)
			})
			require.Equal(t, 1, levelsOf(b.me, m))
			blocked.release()
			b.me.Locks(t, m)
			b.requireHeld(m, 2)
			require.NoError(t, hold.Err())
			b.me.Unlocks(t, m)
			b.me.Unlocks(t, m)
			require.ErrorIs(t, context.Cause(hold), relock.ErrReleased)
			b.free()
			return late
		})
	})
}

// Its patience is the one of the connections, which could keep its caller for a second.
func TestCancel_LockDoesNotWaitForAConnectionTimeout(t *testing.T) {
	t.Parallel()
	relay := redistest.NewRelay(t, redistest.NewServer(t).Addr)
	onceWithin(t, promptly, func() time.Duration {
		c := relock.LocksOn(t, redistest.NewClient(t, relay.Addr))
		sent := relay.Block(redistest.Scripts)
		ctx, cancel := context.WithCancel(t.Context())
		locked := make(chan error, 1)
		go func() { locked <- c.Mutex(redistest.Key(t)).Lock(ctx) }()
		redistest.Receive(t, sent.Caught())
		late := locktest.Took(func() {
			cancel()
			require.ErrorIs(t, redistest.Receive(t, locked), context.Canceled)
		})
		sent.Release()
		return late
	})
}
