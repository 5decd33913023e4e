package relock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// A batchBench is a holder, a and two waiters of one process, whose renames are stopped.
type batchBench struct {
	*faultBench
	third    *faultOwner
	stopped  *redistest.Rule // the first rename
	unlocked <-chan error    // of b.other, the first holder, whose Unlock waits for it
}

// newBatchBench has b.other hold the lock, b.me follow it, and the third wait, with the first rename
// stopped before Redis has it.
func newBatchBench(t *testing.T, b *faultBench) *batchBench {
	t.Helper()
	bench := &batchBench{faultBench: b, third: newFaultOwner(t)}
	lockAndQueue(b)
	bench.stopped = b.relay.Block(b.runs(protocol.RenameScript))
	bench.unlocked = b.other.start(b.m.Unlock)
	require.NoError(t, faultError(t, b.waiting))
	bench.stopped.Wait(t)
	return bench
}

func eachBatch(t *testing.T, test func(t *testing.T, b *batchBench)) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		test(t, newBatchBench(t, newFaultBench(t, backend.Addr)))
	})
}

// heldOf is the one hold on the bench's key that is held.
func heldOf(b *faultBench) relock.HoldView {
	b.t.Helper()
	holds := relock.HoldsOn(b.locks, b.key)
	i := slices.IndexFunc(holds, func(h relock.HoldView) bool { return h.Held })
	require.GreaterOrEqual(b.t, i, 0, "it is not held")
	return holds[i]
}

func TestBatch_WaiterEntersUnderTheProvenLeaseBeforeItsNameIsOnRedis(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		lockAndQueue(b)
		before := b.fields()
		end := heldOf(b).Deadline
		stopped := b.relay.Block(b.runs(protocol.RenameScript))
		unlocked := b.other.start(b.m.Unlock)
		require.NoError(t, faultError(t, b.waiting))
		stopped.Wait(t)
		require.Equal(t, before, b.fields(), "Redis has not confirmed it yet")
		require.Equal(t, end, heldOf(b).Deadline)
		require.Equal(t, 1, b.me.levels(b.m))
		locktest.GoesOn(t, unlocked)
		b.requireRefused()
		stopped.Release()
		require.NoError(t, faultError(t, unlocked))
		hold := b.me.holdOf(b.ctx, b.m)
		b.requireHeld(b.me, b.m, 1, hold)
		b.unwind(b.me, b.m, 1, hold)
		b.requireGone()
		b.awaitIdle()
	})
}

func TestBatch_UnlockReturnsWithTheAnswerToACommandSentAfterTheHold(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		waiting := b.third.start(func() error { return b.m.Lock(b.ctx) })
		b.awaitContended()
		next := b.relay.Block(b.runs(protocol.RenameScript))
		unlocked := b.me.start(b.m.Unlock)
		require.NoError(t, faultError(t, waiting), "it follows though Redis has not answered")
		b.stopped.Release()
		require.NoError(t, faultError(t, b.unlocked))
		next.Wait(t)
		b.requireField(b.me, 1)
		locktest.GoesOn(t, unlocked)
		next.Release()
		require.NoError(t, faultError(t, unlocked))
		hold := b.third.holdOf(b.ctx, b.m)
		b.requireHeld(b.third, b.m, 1, hold)
		b.unwind(b.third, b.m, 1, hold)
		b.requireGone()
	})
}

func TestBatch_OneRenameCoversAllEndedHolds(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		var holds atomic.Int64
		sent := make(chan struct{})
		c := relock.LocksOn(t, rdb, relock.WithLocalHandoffs(1000), relock.WithHooks(relock.Hooks{Acquired: func(relock.Event) {
			if holds.Add(1) == 2 {
				<-sent
			}
		}}))
		m := c.Mutex(redistest.Key(t))
		holder := locktest.NewActor(t)
		holder.Locks(t, m)
		const n = 50
		done := relock.LineUp(t, c, m, n, make(chan int, n))
		relay.ResetLog()
		stopped := relay.Block(locktest.RunsOf(protocol.RenameScript))
		unlocked := holder.Begin(m.Unlock)
		stopped.Wait(t)
		close(sent)
		redistest.Eventually(t, "all have followed one another", func() bool { return holds.Load() == n+1 })
		stopped.Release()
		require.NoError(t, locktest.OutcomeOf(t, unlocked))
		for _, d := range done {
			require.NoError(t, locktest.OutcomeOf(t, d))
		}
		require.Equal(t, 1, relay.Executed(locktest.RunsOf(protocol.RenameScript)))
		require.Equal(t, 1, relay.Executed(locktest.RunsOf(protocol.ReleaseScript)), "the last one reports for all others")
		require.Equal(t, 2, relay.Count(redistest.Scripts))
	})
}

func TestBatch_NoOneEntersDuringARelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newBatchBench(t, newFaultBench(t, backend.Addr))
		b.stopped.Release()
		require.NoError(t, faultError(t, b.unlocked))
		release := b.relay.Block(b.runs(protocol.ReleaseScript))
		unlocked := b.me.start(b.m.Unlock)
		release.Wait(t)
		waiting := b.third.start(func() error { return b.m.Lock(b.ctx) })
		b.awaitContended()
		locktest.GoesOn(t, waiting)
		release.Release()
		require.NoError(t, faultError(t, unlocked))
		require.NoError(t, faultError(t, waiting))
		require.NoError(t, b.third.unlock(b.m))
		b.requireGone()
	})
}

// One command about the key is under way at a time.
func TestBatch_ReentryWaitsUntilItsNameIsOnRedis(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		b.relay.ResetLog()
		entered := b.me.start(func() error { return b.m.Lock(b.ctx) })
		locktest.GoesOn(t, entered)
		require.Zero(t, b.relay.Count(b.runs(protocol.ReenterScript)))
		b.stopped.Release()
		require.NoError(t, faultError(t, b.unlocked))
		require.NoError(t, faultError(t, entered))
		hold := b.me.holdOf(b.ctx, b.m)
		b.requireHeld(b.me, b.m, 2, hold)
		b.unwind(b.me, b.m, 2, hold)
		b.requireGone()
	})
}

func TestBatch_RenewalWaitsUntilItsNameIsOnRedis(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		b.m = b.mutex(relock.WithRenewInterval(50 * time.Millisecond))
		bench := newBatchBench(t, b)
		b.relay.ResetLog()
		locktest.Throughout(t, 3*50*time.Millisecond, func() bool { return b.relay.Count(b.runs(protocol.RenewScript)) == 0 }, "a renewal was sent")
		bench.stopped.Release()
		require.NoError(t, faultError(t, bench.unlocked))
		b.await(b.renewed)
		require.NoError(t, b.me.unlock(b.m))
		b.requireGone()
	})
}

func TestBatch_DeletedKeyIsALossForAllThatWaitForRedis(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		require.NoError(t, b.server.Del(b.ctx, b.key).Err())
		hold := b.me.holdOf(b.ctx, b.m)
		b.stopped.Release()
		require.ErrorIs(t, faultError(t, b.unlocked), relock.ErrLost)
		b.await(b.lost)
		require.ErrorIs(t, context.Cause(hold), relock.ErrLost)
		require.ErrorIs(t, b.me.unlock(b.m), relock.ErrLost)
		require.NoError(t, b.me.lock(b.ctx, b.m))
		require.NoError(t, b.me.unlock(b.m))
		b.requireGone()
		b.awaitIdle()
	})
}

// It may have been about to open when the answer came. Then it asks Redis itself, or is lost as soon as
// it has opened.
func TestBatch_HoldAfterALostOneIsLostOrAcquiredAgain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		for range 20 {
			b := newFaultBench(t, backend.Addr)
			lockAndQueue(b)
			require.NoError(t, b.server.Del(b.ctx, b.key).Err())
			require.ErrorIs(t, b.other.unlock(b.m), relock.ErrLost)
			require.NoError(t, faultError(t, b.waiting))
			hold := b.me.holdOf(b.ctx, b.m)
			require.Eventually(t, func() bool { return hold.Err() != nil || len(b.fields()) == 1 }, faultPatience, faultPoll)
			lost := hold.Err() != nil
			if err := b.me.unlock(b.m); lost {
				require.ErrorIs(t, err, relock.ErrLost)
			} else {
				require.NoError(t, err)
			}
			b.awaitIdle()
			b.requireGone()
		}
	})
}

func TestBatch_UnlockThatGivesUpLeavesTheSuccessorAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		b.m = b.mutex(relock.WithUnlockTimeout(100 * time.Millisecond))
		id := b.locks.ID()
		bench := newBatchBench(t, b)
		err := faultError(t, bench.unlocked)
		require.ErrorContains(t, err, "released locally, but not confirmed by Redis")
		require.NotErrorIs(t, err, relock.ErrLost)
		require.NotEqual(t, id, b.locks.ID(), "its owner may come back before the answer")
		hold := b.me.holdOf(b.ctx, b.m)
		require.NoError(t, hold.Err())
		patient := b.mutex()
		again := b.other.start(func() error { return patient.Lock(b.ctx) })
		bench.stopped.Release()
		b.m = patient
		require.NoError(t, b.me.unlock(b.m))
		require.NoError(t, faultError(t, again))
		require.NoError(t, b.other.unlock(b.m))
		b.requireGone()
		b.awaitIdle()
	})
}

// The waiter cannot enter before Redis answers, and its predecessor's rename is in flight.
func TestBatch_UnlockBeforeAFencedWaiterGivesUpInTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		bench := newBatchBench(t, newFaultBench(t, backend.Addr))
		hasty := bench.mutex(relock.WithUnlockTimeout(100 * time.Millisecond))
		fenced := bench.mutex(relock.WithFencing())
		granted := bench.third.start(func() error { return fenced.Lock(bench.ctx) })
		relock.AwaitWaiters(t, bench.locks, bench.key, 1)
		err := faultError(t, bench.me.start(hasty.Unlock))
		require.ErrorContains(t, err, "released locally, but not confirmed by Redis")
		bench.stopped.Release()
		require.Error(t, faultError(t, bench.unlocked))
		require.NoError(t, faultError(t, granted))
		require.NoError(t, bench.third.unlock(fenced))
		bench.awaitIdle()
	})
}

func TestBatch_ForceFindsTheCurrentHoldBehindTheNameOnRedis(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		hold := b.me.holdOf(b.ctx, b.m)
		forced := b.third.start(func() error {
			done, err := b.m.ForceUnlock(b.ctx)
			if !done {
				return errors.Join(err, errors.New("there was nothing to end"))
			}
			return err
		})
		redistest.Receive(t, hold.Done())
		require.ErrorIs(t, context.Cause(hold), relock.ErrLost)
		b.stopped.Release()
		require.NoError(t, faultError(t, forced))
		_ = faultError(t, b.unlocked) // as far as it was answered
		require.ErrorIs(t, b.me.unlock(b.m), relock.ErrLost)
		b.awaitIdle()
		b.requireGone()
	})
}

// Names change while a force is under way: what Redis returned may be the name of an earlier hold.
func TestBatch_ForceFindsTheCurrentHoldThoughItIsRenamedMeanwhile(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		hold := b.me.holdOf(b.ctx, b.m)
		time.Sleep(time.Microsecond)                        // so that it is asked after the batch has begun, not at the same time
		looked, goOn := b.stopReplies(protocol.StateScript) // the first copy waits behind the rename, and is answered, too
		forced := b.third.start(func() error {
			done, err := b.m.ForceUnlock(b.ctx)
			if !done {
				return errors.Join(err, errors.New("there was nothing to end"))
			}
			return err
		})
		b.awaitStop(looked)
		b.stopped.Release()
		require.NoError(t, faultError(t, b.unlocked), "Redis has the name of the hold")
		goOn()
		require.NoError(t, faultError(t, forced))
		require.ErrorIs(t, context.Cause(hold), relock.ErrLost)
		require.ErrorIs(t, b.me.unlock(b.m), relock.ErrLost)
		b.awaitIdle()
		b.requireGone()
	})
}

func TestBatch_CloseReleasesAHoldUnderAnotherName(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		hold := b.me.holdOf(b.ctx, b.m)
		closed := b.third.start(b.locks.Close)
		b.stopped.Release()
		require.NoError(t, faultError(t, closed))
		require.NoError(t, faultError(t, b.unlocked))
		require.ErrorIs(t, context.Cause(hold), relock.ErrClosed)
		require.ErrorIs(t, b.me.unlock(b.m), relock.ErrClosed)
		b.requireGone()
	})
}

func TestBatch_HooksReportEachHoldOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		var record chronicle
		c := relock.LocksOn(t, b.Client(t), relock.WithHooks(record.Hooks()))
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		const n = 30
		done := relock.LineUp(t, c, m, n, make(chan int, n))
		locktest.RequireUnlocked(t, m)
		for _, d := range done {
			require.NoError(t, locktest.OutcomeOf(t, d))
		}
		for _, hook := range []string{"acquired", "released"} {
			owners := make(map[string]bool)
			for _, e := range record.Of(hook) {
				require.NoError(t, e.Err)
				owners[e.Owner] = true
			}
			require.Len(t, owners, n+1, hook)
			require.Len(t, record.Of(hook), n+1, hook)
		}
		require.Empty(t, record.Of("lost"))
	})
}

// In no order of what may happen is the lock with two, or with no one who could give it back.
func TestBatch_ExcludesUnderLostRepliesAndImpatientWaiters(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c := relock.LocksOn(t, rdb, relock.WithTTL(2*time.Second))
		key := redistest.Key(t)
		var within, overlaps, holds, renames atomic.Int64
		relay.DropReply(locktest.RunsOf(protocol.RenameScript).And(func(redistest.Command) bool { return renames.Add(1)%16 == 0 })).Always()
		var running sync.WaitGroup
		for i := range 24 {
			running.Go(func() {
				m := c.Mutex(key)
				for n := range 40 {
					patience := time.Duration(1+(i*7+n)%23) * time.Millisecond
					if n%8 == 0 {
						patience = time.Minute
					}
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					if m.Lock(ctx) == nil {
						if within.Add(1) > 1 && m.Context(t.Context()).Err() == nil {
							overlaps.Add(1)
						}
						if holds.Add(1)%4 == 0 {
							time.Sleep(time.Millisecond) // Redis is notified of the others meanwhile
						}
						within.Add(-1)
						_ = m.Unlock()
					}
					cancel()
				}
			})
		}
		running.Wait()
		require.NotZero(t, holds.Load())
		require.NotZero(t, renames.Load())
		require.Zero(t, overlaps.Load())
		m := c.Mutex(key)
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
		redistest.Eventually(t, "nothing is left", func() bool { return relock.NamesOf(c) == 0 })
		locktest.RequireFree(t, b.Client(t), key)
	})
}
