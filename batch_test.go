package relock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/slot"
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

func TestAWaiterEntersBeforeRedisKnowsUnderTheLeaseOfTheHoldBefore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		lockAndQueue(b)
		before := b.fields()
		var end lease.Lease
		_ = b.other.do(func() error { end = holdOf(b.m).lease; return nil })
		stopped := b.relay.Block(b.runs(protocol.RenameScript))
		unlocked := b.other.start(b.m.Unlock)
		require.NoError(t, faultError(t, b.waiting))
		stopped.Wait(t)
		require.Equal(t, before, b.fields(), "Redis does not know yet")
		_ = b.me.do(func() error {
			require.Equal(t, end.Deadline(), holdOf(b.m).lease.Deadline())
			return nil
		})
		require.Equal(t, 1, b.me.levels(b.m))
		goesOn(t, unlocked)
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

func TestAnUnlockReturnsWhenACommandIsAnsweredThatWasSentAfterTheHold(t *testing.T) {
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
		goesOn(t, unlocked)
		next.Release()
		require.NoError(t, faultError(t, unlocked))
		hold := b.third.holdOf(b.ctx, b.m)
		b.requireHeld(b.third, b.m, 1, hold)
		b.unwind(b.third, b.m, 1, hold)
		b.requireGone()
	})
}

func TestOneRenameTellsOfAllHoldsThatHaveEnded(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		var holds atomic.Int64
		sent := make(chan struct{})
		c := locksOn(t, rdb, WithLocalHandoffs(1000), WithHooks(Hooks{Acquired: func(Event) {
			if holds.Add(1) == 2 {
				<-sent
			}
		}}))
		m := c.Mutex(redistest.Key(t))
		requireLocked(t, m)
		const n = 50
		done := lineUp(t, c, m, n, make(chan int, n))
		relay.ResetLog()
		stopped := relay.Block(runsOf(protocol.RenameScript))
		unlocked := make(chan error, 1)
		h := holdOf(m)
		go func() { unlocked <- h.unlock(m.target, &m.settings) }()
		stopped.Wait(t)
		close(sent)
		eventually(t, "all have followed one another", func() bool { return holds.Load() == n+1 })
		stopped.Release()
		require.NoError(t, outcomeOf(t, unlocked))
		for _, d := range done {
			require.NoError(t, outcomeOf(t, d))
		}
		require.Equal(t, 1, relay.Executed(runsOf(protocol.RenameScript)))
		require.Equal(t, 1, relay.Executed(runsOf(protocol.ReleaseScript)), "the last one tells for all others")
		require.Equal(t, 2, relay.Count(redistest.Scripts))
	})
}

func TestNoOneEntersWhileAReleaseIsUnderWay(t *testing.T) {
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
		goesOn(t, waiting)
		release.Release()
		require.NoError(t, faultError(t, unlocked))
		require.NoError(t, faultError(t, waiting))
		require.NoError(t, b.third.unlock(b.m))
		b.requireGone()
	})
}

// One command about the key is under way at a time.
func TestAReentryWaitsUntilRedisKnowsTheHold(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		b.relay.ResetLog()
		entered := b.me.start(func() error { return b.m.Lock(b.ctx) })
		goesOn(t, entered)
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

func TestARenewalWaitsUntilRedisKnowsTheHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		b.m = b.mutex(WithRenewInterval(50 * time.Millisecond))
		bench := newBatchBench(t, b)
		b.relay.ResetLog()
		throughout(t, 3*50*time.Millisecond, func() bool { return b.relay.Count(b.runs(protocol.RenewScript)) == 0 }, "a renewal was sent")
		bench.stopped.Release()
		require.NoError(t, faultError(t, bench.unlocked))
		b.await(b.renewed)
		require.NoError(t, b.me.unlock(b.m))
		b.requireGone()
	})
}

func TestAKeyThatIsDeletedIsALossForAllThatWaitForRedis(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		require.NoError(t, b.server.Del(b.ctx, b.key).Err())
		hold := b.me.holdOf(b.ctx, b.m)
		b.stopped.Release()
		require.ErrorIs(t, faultError(t, b.unlocked), ErrLost)
		b.await(b.lost)
		require.ErrorIs(t, context.Cause(hold), ErrLost)
		require.ErrorIs(t, b.me.unlock(b.m), ErrLost)
		require.NoError(t, b.me.lock(b.ctx, b.m))
		require.NoError(t, b.me.unlock(b.m))
		b.requireGone()
		b.awaitIdle()
	})
}

// It may have been about to open when the answer came. Then it asks Redis itself, or is lost as soon as
// it has opened.
func TestAHoldThatFollowsALostOneIsLostOrAcquiredAnew(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		for range 20 {
			b := newFaultBench(t, backend.Addr)
			lockAndQueue(b)
			require.NoError(t, b.server.Del(b.ctx, b.key).Err())
			require.ErrorIs(t, b.other.unlock(b.m), ErrLost)
			require.NoError(t, faultError(t, b.waiting))
			hold := b.me.holdOf(b.ctx, b.m)
			require.Eventually(t, func() bool { return hold.Err() != nil || len(b.fields()) == 1 }, faultPatience, faultPoll)
			lost := hold.Err() != nil
			if err := b.me.unlock(b.m); lost {
				require.ErrorIs(t, err, ErrLost)
			} else {
				require.NoError(t, err)
			}
			b.awaitIdle()
			b.requireGone()
		}
	})
}

func TestAnUnlockThatGivesUpLeavesTheHoldOfItsSuccessorAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		b.m = b.mutex(WithUnlockTimeout(100 * time.Millisecond))
		id := b.locks.ID()
		bench := newBatchBench(t, b)
		err := faultError(t, bench.unlocked)
		require.ErrorContains(t, err, "it is unlocked, but Redis may not know")
		require.NotErrorIs(t, err, ErrLost)
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

func TestARenameIsSentAgainUntilItIsAnswered(t *testing.T) {
	for name, lose := range map[string]func(*faultBench) *redistest.Rule{
		"executed":     func(b *faultBench) *redistest.Rule { return b.relay.DropReply(b.runs(protocol.RenameScript)) },
		"not executed": func(b *faultBench) *redistest.Rule { return b.relay.HoldBack(b.runs(protocol.RenameScript)).Rule },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
				b := newFaultBench(t, backend.Addr, WithTTL(10*time.Second))
				b.m = b.mutex(WithTTL(10 * time.Second))
				lockAndQueue(b)
				lose(b).Times(4) // more than one round of copies
				id := b.name()
				require.NoError(t, b.other.unlock(b.m))
				require.NotEqual(t, id, b.locks.ID(), "a copy is in doubt")
				require.NoError(t, faultError(t, b.waiting))
				hold := b.me.holdOf(b.ctx, b.m)
				b.requireHeld(b.me, b.m, 1, hold)
				b.unwind(b.me, b.m, 1, hold)
				b.requireGone()
				b.awaitIdle()
			})
		})
	}
}

func TestARenameThatIsRefusedIsAnErrorOfTheUnlockAndTheNextCommandTellsAll(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		for range 10 {
			b := newFaultBench(t, backend.Addr)
			lockAndQueue(b)
			b.relay.ReplyWith("-DENIED Redis is running in protected mode\r\n", b.runs(protocol.RenameScript))
			require.ErrorContains(t, b.other.unlock(b.m), "DENIED")
			require.NoError(t, faultError(t, b.waiting))
			hold := b.me.holdOf(b.ctx, b.m)
			b.requireField(b.other, 1)

			// The first owner is back before Redis has heard of another: by the name that Redis knows.
			b.waiting = b.other.start(func() error { return b.m.Lock(b.ctx) })
			b.awaitContended()
			var busy *slot.Slot
			_ = b.me.do(func() error { // something is under way
				busy = holdOf(b.m).slot
				busy.Take(b.ctx)
				return nil
			})
			unlocked := b.me.start(b.m.Unlock)
			require.NoError(t, faultError(t, b.waiting))
			require.Error(t, hold.Err())
			entered := b.other.start(func() error { return b.m.Lock(b.ctx) })
			busy.Free()
			require.NoError(t, faultError(t, entered))
			require.NoError(t, faultError(t, unlocked))
			b.requireHeld(b.other, b.m, 2, b.other.holdOf(b.ctx, b.m))
			require.NoError(t, b.other.unlock(b.m))
			require.NoError(t, b.other.unlock(b.m))
			b.requireGone()
			b.awaitIdle()
		}
	})
}

// Without an answer the hold is lost here before its lease is over there, and Redis is rid of both
// names: in an order in which a late copy of the rename brings none of them back.
func TestARenameThatIsNeverAnsweredLosesTheHoldAndBothNamesAreUndone(t *testing.T) {
	for name, executed := range map[string]bool{"executed": true, "not executed": false, "late": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
				b := newFaultBench(t, backend.Addr)
				lockAndQueue(b)
				end := time.Now().Add(faultTTL)
				var held *redistest.Held
				if executed {
					b.relay.DropReply(b.runs(protocol.RenameScript)).Always()
				} else {
					held = b.relay.HoldBack(b.runs(protocol.RenameScript)).Always()
				}
				late := make(chan error, 1)
				if name == "late" { // between the first undo and the second
					first := true
					b.relay.After(b.runs(protocol.ReleaseScript).And(func(redistest.Command) bool {
						defer func() { first = false }()
						return first
					}), func(redistest.Command, string) {
						_, err := held.Deliver(b.ctx)
						late <- err
					})
				}
				// Someone keeps the key alive, as a Redis that is slow by its clock would.
				require.NoError(t, b.server.PExpire(b.ctx, b.key, time.Minute).Err())
				unlocked := b.other.start(b.m.Unlock)
				require.NoError(t, faultError(t, b.waiting))
				hold := b.me.holdOf(b.ctx, b.m)
				<-hold.Done()
				require.WithinDuration(t, end, time.Now(), faultTTL)
				require.ErrorIs(t, context.Cause(hold), ErrLost)
				require.ErrorContains(t, faultError(t, unlocked), "it is unlocked, but Redis may not know")
				require.ErrorIs(t, b.me.unlock(b.m), ErrLost)
				if name == "late" {
					require.NoError(t, faultError(t, late))
				}
				b.awaitIdle()
				b.requireGone()
			})
		})
	}
}

func TestAForceFindsTheHoldThatIsValidBehindTheNameOnRedis(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		hold := b.me.holdOf(b.ctx, b.m)
		forced := b.third.start(func() error {
			done, err := b.m.ForceUnlock(b.ctx)
			if !done {
				return errors.Join(err, errors.New("there was nothing to end"))
			}
			return err
		})
		receives(t, hold.Done())
		require.ErrorIs(t, context.Cause(hold), ErrLost)
		b.stopped.Release()
		require.NoError(t, faultError(t, forced))
		_ = faultError(t, b.unlocked) // as far as it was answered
		require.ErrorIs(t, b.me.unlock(b.m), ErrLost)
		b.awaitIdle()
		b.requireGone()
	})
}

// Names change while a force is under way: what Redis said may be the name of a hold before.
func TestAForceFindsTheHoldThatIsValidThoughRedisKnowsItByAnotherNameMeanwhile(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		hold := b.me.holdOf(b.ctx, b.m)
		looked, goOn := b.stopReply(protocol.StateScript)
		forced := b.third.start(func() error {
			done, err := b.m.ForceUnlock(b.ctx)
			if !done {
				return errors.Join(err, errors.New("there was nothing to end"))
			}
			return err
		})
		b.awaitStop(looked)
		b.stopped.Release()
		require.NoError(t, faultError(t, b.unlocked), "Redis knows the name of the hold")
		goOn()
		require.NoError(t, faultError(t, forced))
		require.ErrorIs(t, context.Cause(hold), ErrLost)
		require.ErrorIs(t, b.me.unlock(b.m), ErrLost)
		b.awaitIdle()
		b.requireGone()
	})
}

func TestCloseReleasesWhatRedisKnowsByAnotherName(t *testing.T) {
	eachBatch(t, func(t *testing.T, b *batchBench) {
		hold := b.me.holdOf(b.ctx, b.m)
		closed := b.third.start(b.locks.Close)
		b.stopped.Release()
		require.NoError(t, faultError(t, closed))
		require.NoError(t, faultError(t, b.unlocked))
		require.ErrorIs(t, context.Cause(hold), ErrClosed)
		require.ErrorIs(t, b.me.unlock(b.m), ErrClosed)
		b.requireGone()
	})
}

func TestHooksHearOfEachHoldOfABatchOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		var record chronicle
		c := locksOn(t, b.Client(t), WithHooks(record.hooks()))
		m := c.Mutex(redistest.Key(t))
		requireLocked(t, m)
		const n = 30
		done := lineUp(t, c, m, n, make(chan int, n))
		requireUnlocked(t, m)
		for _, d := range done {
			require.NoError(t, outcomeOf(t, d))
		}
		for _, hook := range []string{"acquired", "released"} {
			owners := make(map[string]bool)
			for _, e := range record.of(hook) {
				require.NoError(t, e.Err)
				owners[e.Owner] = true
			}
			require.Len(t, owners, n+1, hook)
			require.Len(t, record.of(hook), n+1, hook)
		}
		require.Empty(t, record.of("lost"))
	})
}

func TestAWaiterThatWantsMoreThanALeaseIsToldToRedisFirst(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		for name, opts := range map[string][]MutexOption{
			"a token":         {WithFencing()},
			"a fixed lease":   {WithoutRenewal()},
			"a shorter lease": {WithTTL(5 * time.Second)},
		} {
			t.Run(name, func(t *testing.T) {
				relay, rdb := relayedTo(t, b)
				c := locksOn(t, rdb)
				m := c.Mutex(redistest.Key(t))
				requireLocked(t, m)
				next := c.Mutex(m.Name(), opts...)
				handOver(t, c, m, next)
				require.Equal(t, 1, relay.Executed(runsOf(protocol.HandoffScript)))
				require.Zero(t, relay.Executed(runsOf(protocol.RenameScript)))
			})
		}
	})
}

func TestALeaseIsFollowedIfItIsLongEnoughAndNotTooLong(t *testing.T) {
	t.Parallel()
	s := defaultSettings().settings
	for left, follows := range map[time.Duration]bool{
		s.TTL: true, s.TTL / 2: true, s.EntryLease() / 3: true, s.EntryLease()/3 - time.Millisecond: false, s.TTL + time.Millisecond: false, 0: false,
	} {
		require.Equal(t, follows, s.follows(left), left)
	}
	for _, opt := range []MutexOption{WithFencing(), WithReplicas(1, time.Second), WithoutRenewal()} {
		other := resolved(s, []MutexOption{opt})
		require.False(t, other.follows(s.TTL/2))
	}
}

// If no other process waits, a turn has no end that WithLocalHandoffs sets; but it has one.
func TestAProcessThatIsAloneGoesOnBeyondItsTurn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		const limit = 3
		c := locksOn(t, rdb, WithLocalHandoffs(limit))
		m := c.Mutex(redistest.Key(t))
		requireLocked(t, m)
		var running sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer running.Wait()
		defer cancel()
		var holds atomic.Int64
		for range 8 {
			running.Go(func() {
				for ctx.Err() == nil {
					if m.Lock(ctx) == nil {
						holds.Add(1)
						_ = m.Unlock()
					}
				}
			})
		}
		awaitWaiters(t, c.session, m.Name(), 8)
		relay.ResetLog()
		requireUnlocked(t, m)
		eventually(t, "turns that end by themselves, later than at their limit", func() bool {
			turns := relay.Executed(runsOf(protocol.ReleaseScript))
			return turns >= 3 && int(holds.Load()) > 2*limit*turns
		})
	})
}

// In no order of what may happen is the lock with two, or with no one who could give it back.
func TestABatchOfImpatientWaitersUnderLostRepliesExcludes(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		c := locksOn(t, rdb, WithTTL(2*time.Second))
		key := redistest.Key(t)
		var inside, overlaps, holds, renames atomic.Int64
		relay.DropReply(runsOf(protocol.RenameScript).And(func(redistest.Command) bool { return renames.Add(1)%16 == 0 })).Always()
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
						if inside.Add(1) > 1 && m.Context(t.Context()).Err() == nil {
							overlaps.Add(1)
						}
						if holds.Add(1)%4 == 0 {
							time.Sleep(time.Millisecond) // Redis is told of the others meanwhile
						}
						inside.Add(-1)
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
		requireLocked(t, m)
		requireUnlocked(t, m)
		eventually(t, "nothing is left", func() bool { return gatesOf(c) == 0 })
		requireFree(t, b.Client(t), key)
	})
}
