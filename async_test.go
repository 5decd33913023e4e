package relock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// newAsyncBench returns a bench behind relays, whose releases are blocked. Each command has a connection to itself, so
// that another one can overtake a release.
func newAsyncBench(t *testing.T, backend *redistest.Backend, k lockKind) (b *kindBench, blocked rules) {
	t.Helper()
	k.opts = append(slices.Clone(k.opts), relock.WithoutPipelining())
	b = newKindBench(t, backend, k)
	b.relay()
	for _, relay := range b.relays {
		rule := relay.Block(b.runs(protocol.ReleaseScript)).Always()
		blocked = append(blocked, rule)
		t.Cleanup(rule.Release)
	}
	return b, blocked
}

// locksAfter requires that a Lock of next, by the owner that has just unlocked, sends nothing before the release is answered.
func (b *kindBench) locksAfter(blocked rules, next *relock.Mutex) {
	b.t.Helper()
	for _, rule := range blocked[:len(blocked)/2+1] {
		rule.Wait(b.t)
	}
	asked := b.relays[0].Count(b.runs(protocol.AcquireScript))
	again := b.me.Lock(b.t.Context(), next)
	locktest.GoesOn(b.t, again)
	require.Equal(b.t, asked, b.relays[0].Count(b.runs(protocol.AcquireScript)))
	blocked.release()
	require.NoError(b.t, locktest.OutcomeOf(b.t, again))
	b.requireHeld(next, 1)
	b.me.Unlocks(b.t, next)
	b.free()
}

// triesAfter requires that a TryLock of next, by the owner that has just unlocked, waits for the release, and gets the lock.
func (b *kindBench) triesAfter(blocked rules, next *relock.Mutex) {
	b.t.Helper()
	tried := b.me.Begin(func() error {
		held, err := next.TryLock(b.t.Context())
		if err == nil && !held {
			err = errors.New("it is taken")
		}
		return err
	})
	locktest.GoesOn(b.t, tried)
	blocked.release()
	require.NoError(b.t, locktest.OutcomeOf(b.t, tried))
	b.requireHeld(next, 1)
	b.me.Unlocks(b.t, next)
	b.free()
}

func TestAsyncUnlock_ReturnsBeforeTheRelease(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b, blocked := newAsyncBench(t, backend, k)
		m := b.mutex(relock.WithAsyncUnlock())
		b.me.Locks(t, m)
		ctx := b.me.ContextOf(m)
		b.me.Unlocks(t, m)
		require.ErrorIs(t, context.Cause(ctx), relock.ErrReleased)
		require.Zero(t, levelsOf(b.me, m))
		require.ErrorIs(t, b.me.Call(m.Unlock), relock.ErrNotHeld, "it has ended")
		require.False(t, b.you.Tries(t, k.rival(b.others, b.key)), "Redis has it")

		waits := b.you.Lock(t.Context(), k.rival(b.others, b.key))
		blocked.release()
		require.NoError(t, locktest.OutcomeOf(t, waits))
		b.you.Unlocks(t, k.rival(b.others, b.key))
		b.free()
	})
}

// The name of an owner is the same for its next hold: a request under that name which overtakes the release would be
// answered as if it had the lock already, and the release would end the new hold.
func TestAsyncUnlock_NextLockOfTheOwnerSendsNothingBeforeTheReleaseIsAnswered(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b, blocked := newAsyncBench(t, backend, k)
		m := b.mutex(relock.WithAsyncUnlock())
		b.me.Locks(t, m)
		b.me.Unlocks(t, m)
		b.locksAfter(blocked, m)
	})
}

// Only Locks of a Mutex queue behind a Mutex that is being released.
func TestAsyncUnlock_OtherKindsOfTheOwnerSendNothingBeforeTheReleaseIsAnswered(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{"plain", "fair"}, {"plain", "multi"}, {"fair", "plain"}, {"fair", "multi"}, {"multi", "plain"}, {"multi", "fair"}} {
		t.Run(c[0]+" "+c[1], func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
				b, blocked := newAsyncBench(t, backend, kindNamed(c[0]))
				m, next := b.mutex(relock.WithAsyncUnlock()), kindNamed(c[1]).mutex(b.c, b.key)
				b.me.Locks(t, m)
				b.me.Unlocks(t, m)
				b.locksAfter(blocked, next)
			})
		})
	}
}

// Another goroutine of the owner acquires and releases the lock after this Lock has seen that the owner holds nothing.
func TestAsyncUnlock_HoldThatBeginsAndEndsDuringALockOfItsOwnerIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, k := range []lockKind{kindNamed("plain"), kindNamed("fair"), kindNamed("write"), kindNamed("read")} {
		t.Run(k.name, func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, backend *redistest.Backend) {
				relay := redistest.NewRelay(t, backend.Addr)
				c, clocks := relock.LocksWithClock(t, redistest.NewClient(t, relay.Addr), relock.WithoutPipelining())
				release := relay.Block(locktest.RunsAmong(k.scripts, protocol.ReleaseScript)).Always()
				acquires := locktest.RunsAmong(k.scripts, protocol.AcquireScript)
				m := k.mutex(c, redistest.Key(t), relock.WithOwner("service"), relock.WithAsyncUnlock())
				slow, quick := locktest.NewActor(t), locktest.NewActor(t)
				begun, goOn := make(chan struct{}), make(chan struct{})
				locked := slow.Begin(func() error {
					clocks.AtNext(func() {
						close(begun)
						<-goOn
					})
					return m.Lock(t.Context())
				})
				<-begun
				quick.Locks(t, m)
				quick.Unlocks(t, m)
				release.Wait(t)
				asked := relay.Count(acquires)
				close(goOn)
				locktest.GoesOn(t, locked)
				require.Equal(t, asked, relay.Count(acquires))
				release.Release()
				require.NoError(t, locktest.OutcomeOf(t, locked))
				ctx := slow.ContextOf(m)
				require.EqualValues(t, 1, backend.Client(t).Exists(t.Context(), m.Name()).Val())
				require.NoError(t, ctx.Err())
				slow.Unlocks(t, m)
			})
		})
	}
}

func TestAsyncUnlock_TryRLockAfterAWriteWaitsForTheRelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b, blocked := newAsyncBench(t, backend, kindNamed("write"))
		m, read := b.mutex(relock.WithAsyncUnlock()), kindNamed("read").mutex(b.c, b.key)
		b.me.Locks(t, m)
		b.me.Unlocks(t, m)
		blocked[0].Wait(t)
		b.triesAfter(blocked, read)
	})
}

// The holder before the fenced Lock is another owner, whose name Redis may not have yet. Redis has the name of the
// detached hold.
func TestAsyncUnlock_FencedLockFollowsAnotherOwner(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newKindBench(t, backend, kindNamed("plain"))
		b.others = b.kind.client(t, b.rdbs)
		m, fenced := b.mutex(relock.WithAsyncUnlock()), b.mutex(relock.WithAsyncUnlock(), relock.WithFencing())
		for range 100 {
			b.me.Locks(t, m)
			waits := b.you.Begin(func() error { return m.Do(t.Context(), func(context.Context) error { return nil }) })
			redistest.Eventually(t, "a waiter", func() bool { return relock.WaitersOn(b.c, b.key) == 1 })
			require.NoError(t, b.me.Call(func() error { return errors.Join(m.Unlock(), fenced.Lock(t.Context())) }))
			b.requireHeld(fenced, 1)
			b.me.Unlocks(t, fenced)
			require.NoError(t, locktest.OutcomeOf(t, waits))
		}
		b.free()
	})
}

func TestAsyncUnlock_TryLockOfTheOwnerWaitsForTheRelease(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b, blocked := newAsyncBench(t, backend, k)
		m := b.mutex(relock.WithAsyncUnlock())
		b.me.Locks(t, m)
		b.me.Unlocks(t, m)
		b.triesAfter(blocked, m)
	})
}

// Of one goroutine, so that the next Lock comes before the release is sent, while it is sent, or after it.
func TestAsyncUnlock_HoldsOfOneOwnerFollowOneAnother(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		for name, opts := range map[string][]relock.MutexOption{
			"": {relock.WithAsyncUnlock()}, "fenced": {relock.WithAsyncUnlock(), relock.WithFencing()},
		} {
			b := newKindBench(t, backend, k)
			b.key += name
			b.others = k.client(t, b.rdbs)
			m, rival := b.mutex(opts...), k.rival(b.others, b.key)
			var last int64
			for i := range 30 {
				require.NoError(t, m.Lock(t.Context()), i)
				require.Equal(t, 1, m.HoldCount())
				if name != "" && k.against == nil {
					require.Greater(t, m.FencingToken(), last)
					last = m.FencingToken()
				}
				if i%10 == 0 {
					require.False(t, b.you.Tries(t, rival), "two holders")
				}
				require.NoError(t, m.Unlock())
			}
			require.NoError(t, b.c.Close())
			b.free()
		}
	})
}

func TestAsyncUnlock_LossIsReturnedAsWithoutIt(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newKindBench(t, backend, k)
		m := b.mutex(relock.WithAsyncUnlock())
		b.me.Locks(t, m)
		_, err := m.ForceUnlock(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, b.me.Call(m.Unlock), relock.ErrLost)
		require.ErrorIs(t, b.me.Call(m.Unlock), relock.ErrNotHeld)
	})
}

// Unlock does not wait for the answer that would report this loss.
func TestAsyncUnlock_LossThatOnlyRedisCanReportGoesToTheHookAndToClose(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newKindBench(t, backend, kindNamed("plain"))
		ended := make(chan relock.Event, 1)
		m := b.mutex(relock.WithAsyncUnlock(), relock.WithHooks(relock.Hooks{Released: func(e relock.Event) { ended <- e }}))
		b.me.Locks(t, m)
		require.NoError(t, b.rdbs[0].Del(t.Context(), b.key).Err())
		b.me.Unlocks(t, m)
		require.ErrorIs(t, redistest.Receive(t, ended).Err, relock.ErrLost)
		require.ErrorIs(t, b.c.Close(), relock.ErrLost)
	})
}

func TestAsyncUnlock_UnlockThatOnlyDecreasesTheCountWaitsForTheAnswer(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b, blocked := newAsyncBench(t, backend, k)
		m := b.mutex(relock.WithAsyncUnlock())
		b.me.Locks(t, m)
		b.me.Locks(t, m)
		first := b.me.Begin(m.Unlock)
		locktest.GoesOn(t, first)
		blocked.release()
		require.NoError(t, locktest.OutcomeOf(t, first))
		b.me.Unlocks(t, m)
		b.free()
	})
}

func TestAsyncUnlock_FailureIsReportedByTheHookAndByClose(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newKindBench(t, backend, kindNamed("plain"))
		b.relay()
		ended := make(chan relock.Event, 1)
		m := b.mutex(relock.WithAsyncUnlock(), relock.WithHooks(relock.Hooks{Released: func(e relock.Event) { ended <- e }}))
		b.me.Locks(t, m)
		refused := b.relays[0].ReplyWith("-NOPERM this user has no permissions\r\n", b.runs(protocol.ReleaseScript)).Always()
		b.me.Unlocks(t, m)
		e := redistest.Receive(t, ended)
		require.ErrorContains(t, e.Err, "NOPERM")
		require.ErrorContains(t, e.Err, "not confirmed by Redis")
		refused.Remove()
		err := b.c.Close()
		require.ErrorContains(t, err, "WithAsyncUnlock or WithLinger: the releases of 1 hold")
		require.ErrorContains(t, err, "NOPERM")
	})
}

func TestAsyncUnlock_CloseWaitsForTheReleases(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newKindBench(t, backend, k)
		b.relay()
		for _, relay := range b.relays {
			relay.Delay(100*time.Millisecond, b.runs(protocol.ReleaseScript)).Always()
		}
		m := b.mutex(relock.WithAsyncUnlock())
		b.me.Locks(t, m)
		b.me.Unlocks(t, m)
		require.NoError(t, b.c.Close())
		b.free()
	})
}

func TestAsyncUnlock_CloseWaitsForTheHook(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newKindBench(t, backend, kindNamed("plain"))
		stays, entered := locktest.HookThatStays[relock.Event](t)
		m := b.mutex(relock.WithAsyncUnlock(), relock.WithHooks(relock.Hooks{Released: stays}))
		b.me.Locks(t, m)
		b.me.Unlocks(t, m)
		<-entered
		closed := b.you.Begin(b.c.Close)
		locktest.GoesOn(t, closed)
	})
}

func TestAsyncUnlock_CloseReportsReleasesWithoutAnswer(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, backend *redistest.Backend) {
		b, blocked := newAsyncBench(t, backend, kindNamed("plain"))
		m := b.mutex(relock.WithAsyncUnlock())
		b.me.Locks(t, m)
		b.me.Unlocks(t, m)
		blocked[0].Wait(t)
		b.relays[0].BlackHole(true)
		err := b.c.Close()
		require.ErrorContains(t, err, "WithAsyncUnlock or WithLinger: 1 hold")
		require.ErrorContains(t, err, "no answer from Redis")
		b.relays[0].BlackHole(false)
	})
}
