package relock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/wake"
)

func TestBatch_HasTheNameItBeganWith(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		b.isKnown(b.first)
		require.Same(t, b.first.target, b.target)
		require.Same(t, b.first.slot, b.slot)
		require.False(t, b.isOver())
		b.nothingSent()
	})
}

func TestBatch_RenameNamesTheNextHold(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		next := b.next("next")
		next.settings.TTL = time.Minute
		answer := b.follows(next)
		r := b.isSent(b.first, next)
		require.Equal(t, time.Minute, r.lease, "what the new holder wants")
		b.isKnown(b.first, next)
		require.Equal(t, b.first.name, b.settled)
		b.waits(answer)

		time.Sleep(time.Second)
		before := proven(b.first)
		sent := b.ours()
		b.requireAnswer(answer)
		b.isKnown(next)
		require.Equal(t, before, proven(b.first), "it has ended")
		require.Equal(t, sent, proven(next))
		require.Equal(t, clock.Deadline(sent, time.Minute), next.lease.Deadline())
		require.False(t, b.isRetired(next), "nothing was in doubt")
		b.nothingSent()
	})
}

// Those in between never were on Redis, and all receive the answer to a command that was sent after they
// had ended.
func TestBatch_RenameCoversAllHoldsThatEndedBeforeIt(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		second, third, fourth := b.next("second"), b.next("third"), b.next("fourth")
		ofFirst := b.follows(second)
		b.isSent(b.first, second)
		ofSecond, ofThird := b.follows(third), b.follows(fourth)
		b.isSent(b.first, second)

		b.ours()
		b.requireAnswer(ofFirst)
		b.waits(ofSecond)
		b.waits(ofThird)
		b.isSent(second, fourth)
		b.isKnown(second, fourth)

		b.ours()
		b.requireAnswer(ofSecond)
		b.requireAnswer(ofThird)
		b.isKnown(fourth)
		b.nothingSent()
		require.Zero(t, b.session.goroutines.Len()-1, "but that which watches the clocks")
	})
}

func TestBatch_RenameSendsTheCurrentHolder(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		second, third := b.next("second"), b.next("third")
		b.follows(second)
		b.isSent(b.first, second)
		b.follows(third)
		time.Sleep(time.Second)
		before := proven(second)
		sent := b.ours()
		require.Equal(t, before, proven(second))
		require.Equal(t, sent, proven(third), "its lease is proven by the rename to the one before")
	})
}

func TestBatch_RenameWaitsWhileAnotherCommandIsInFlight(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		require.True(t, b.slot.take(b.t.Context()))
		second, third := b.next("second"), b.next("third")
		b.follows(second)
		b.nothingSent()
		b.follows(third)
		b.slot.free()
		b.isSent(b.first, third)
		taken, stop := context.WithTimeout(b.t.Context(), time.Second)
		defer stop()
		require.False(t, b.slot.take(taken), "the rename has it")
		b.ours()
		require.True(t, b.slot.take(b.t.Context()), "it was released")
	})
}

func TestBatch_WaiterWithoutTheTurnDoesNotFollow(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		answer, over := b.handOver(b.next("next"), keys.Name{Field: "next"}, true, func() bool { return false })
		require.False(t, over)
		require.Nil(t, answer)
		b.nothingSent()
		b.isKnown(b.first)
		require.Nil(t, b.confirmName(b.first), "it is the holder still")
	})
}

func TestBatch_NoOneFollowsAfterItsEnd(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		b.end(nil)
		answer, over := b.handOver(b.next("next"), keys.Name{Field: "next"}, true, func() bool {
			t.Error("it was given the turn")
			return true
		})
		require.True(t, over)
		require.Nil(t, answer)
		b.nothingSent()
	})
}

// The release of its owner is the answer for all holds that ended before.
func TestBatch_RenameIsNotSentAfterTheLastHoldEnded(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		require.True(t, b.slot.take(b.t.Context()))
		answer := b.follows(b.next("next"))
		b.holderEnds()
		b.slot.free()
		b.nothingSent()
		b.isKnown(b.first)
		b.waits(answer)

		b.end(nil)
		b.requireAnswer(answer)
	})
}

// One that comes after all, before the release is sent.
func TestBatch_RenameCoversAHoldThatFollowsTheLast(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		require.True(t, b.slot.take(b.t.Context()))
		second, third := b.next("second"), b.next("third")
		ofFirst := b.follows(second)
		b.holderEnds()
		synctest.Wait()
		ofSecond := b.follows(third)
		b.slot.free()
		b.isSent(b.first, third)
		b.ours()
		b.requireAnswer(ofFirst)
		b.requireAnswer(ofSecond)
	})
}

func TestBatch_RenameIsRequestedByTheHolderIfRedisLacksItsName(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		require.Nil(t, b.confirmName(b.first), "Redis has it")
		second, third := b.next("second"), b.next("third")
		b.follows(second)
		b.isSent(b.first, second)
		require.NotNil(t, b.confirmName(second), "it is not answered yet")
		b.follows(third)
		require.Nil(t, b.confirmName(second), "it is not the holder any more")
		answer := b.confirmName(third)
		require.NotNil(t, answer)
		b.ours()
		b.waits(answer)
		b.isSent(second, third)
		b.ours()
		b.requireAnswer(answer)
		require.Nil(t, b.confirmName(third))
		b.nothingSent()
	})
}

// A second rename, after the holder has come back, would set its count back to 1.
func TestBatch_RenameInFlightServesAllThatNeedTheName(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		next := b.next("next")
		b.follows(next)
		b.isSent(b.first, next)
		first, second := b.confirmName(next), b.confirmName(next)
		b.waits(first)
		b.waits(second)
		b.ours()
		b.requireAnswer(first)
		b.requireAnswer(second)
		b.nothingSent()
	})
}

func TestBatch_RenameIsNotSentAfterItsEnd(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		next := b.next("next")
		b.follows(next)
		b.isSent(b.first, next)
		b.end(nil)
		require.Nil(t, b.confirmName(next))
	})
}

func TestBatch_AnswerIsRecordedAtTheGate(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		for i, waiters := range []int{0, 2, 0, -1} { // -1: unknown
			b.gate.asks(b.session.now())
			b.follows(b.next(fmt.Sprint("next", i)))
			b.answers(renamed{ours: true, waiters: waiters})
			_, out := b.gate.lastKnown(b.session.now())
			require.Equal(t, outage{}, out)
			require.Equal(t, waiters == 0, b.gate.forUs(b.session.now()))
			require.Equal(t, waiters != 0, b.gate.wantedElsewhere())
		}
	})
}

func TestBatch_GoesBeyondItsLimitIfNoOneElseWaits(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		var none *batch
		require.False(t, none.goesOn())
		require.True(t, b.goesOn())
		b.gate.foreign = foreignTurns{interval: time.Second, due: b.session.now().After(time.Second)}
		require.True(t, b.goesOn())
		time.Sleep(time.Second)
		require.False(t, b.goesOn(), "it is the turn of foreign waiters")
		b.gate.foreign = foreignTurns{}
		b.gate.seesLine(lineTaken, b.session.now())
		require.False(t, b.goesOn(), "others stand in the line")
	})
}

func TestBatch_SeveralCopiesOfARenameFitIntoTheLease(t *testing.T) {
	for name, c := range map[string]struct{ patience, wanted, copy time.Duration }{
		"a short lease":                  {time.Minute, 400 * time.Millisecond, 100 * time.Millisecond},
		"a lease of the usual length":    {time.Minute, 30 * time.Second, time.Second},
		"a client that has less for all": {200 * time.Millisecond, 30 * time.Second, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			beginBatch(t, func(b *batchTrial) {
				b.session.patience = c.patience
				next := b.next("next")
				next.settings.TTL = c.wanted
				b.follows(next)
				r := b.underWay()
				require.Equal(t, c.copy, r.opts.Patience)
				require.Equal(t, 2, r.opts.Attempts)
			})
		})
	}
}

// The table of the names that Redis may have had for the lock, in a batch whose first hold was followed by a
// second, whose rename is in flight, and by a third.
func TestBatch_FieldIsKnownIfRedisMayHaveHadIt(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		began := b.session.now()
		before := began.After(-time.Nanosecond)
		time.Sleep(time.Second)
		second, third := b.next("second"), b.next("third")
		b.session.identities.Retire(b.first.name.Identity)
		other := b.next("owner of another identity")
		b.follows(second)
		b.isSent(b.first, second)
		b.follows(third)
		for name, c := range map[string]struct {
			field        string
			asked        clock.Instant
			mayBeOnRedis bool
		}{
			"that Redis has for it":                    {b.first.name.Field, before, true},
			"that a rename makes of it":                {second.name.Field, before, true},
			"of a hold of it, since it began":          {third.name.Field, b.session.now(), true},
			"of such a hold, asked as it began":        {third.name.Field, began, true},
			"of such a hold, asked before it began":    {third.name.Field, before, false},
			"of another identity":                      {other.name.Field, b.session.now(), false},
			"that only begins as the identity does":    {string(*b.first.name.Identity) + "x:third", b.session.now(), false},
			"of another identity, before it began too": {other.name.Field, before, false},
		} {
			require.Equal(t, c.mayBeOnRedis, b.mayBeOnRedis(c.field, c.asked), name)
		}
		var none *batch
		require.False(t, none.mayBeOnRedis(b.first.name.Field, b.session.now()))
	})
}

func TestBatch_HoldWithoutOneHasNothingToEnd(t *testing.T) {
	var none *batch
	none.end(errors.New("over"))
	none.holderEnds()
	require.False(t, none.isOver())
}

func TestBatch_AnswerIsReportedWithoutAWait(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		ctx, stop := context.WithTimeout(b.t.Context(), 0)
		defer stop()
		<-ctx.Done()
		b.follows(b.next("next"))
		b.underWay()
		require.EqualError(t, b.unanswered(ctx), context.DeadlineExceeded.Error(), "Redis has said nothing")
		b.answers(renamed{out: redisexec.Outcome{Err: errMissed}})
		b.inTime()
		b.answers(renamed{out: redisexec.Outcome{Err: lockerr.ErrNoAnswer}})
		err := b.unanswered(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errMissed, "which says more than a silence")
		b.inTime()
		b.ours()
		b.follows(b.next("third"))
		b.underWay()
		require.NotErrorIs(t, b.unanswered(ctx), errMissed, "that was of the rename before")
	})
}

func TestBatch_AsksTheContextOfACallerWithoutItsMutex(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		ended, end := context.WithCancel(b.t.Context())
		end()
		require.ErrorIs(b.t, b.unanswered(askingContext{ended, func() {
			require.True(b.t, b.batch.mu.TryLock())
			b.batch.mu.Unlock()
		}}), context.Canceled)
	})
}

// A rename may give the holder a new name at the moment of the loss.
func TestBatch_NamesAreRetiredBeforeALossShows(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		old := b.session.identities.Current()
		b.session.identities.Retire(old)
		id := b.session.identities.Current()
		b.batch.mu.Lock()
		b.batch.name, b.batch.sent = id.Of(b.target, b.first.owner), id.Of(b.target, b.first.owner)
		b.batch.mu.Unlock()
		retired := false
		x := newHoldContext(context.Background(), b.first, b.target)
		defer x.cancel(nil)
		x.cancel = func(error) { retired = b.session.identities.Current() != id }
		b.first.contexts.add(x)
		b.first.lose(errForced)
		require.True(b.t, retired)
	})
}

// The Unlock of second waits for the next command, which third is to send: it lingered, no hold follows it, and it is about
// to take the slot. The goroutine that sends renames ends then. If a waiter comes after all, no Unlock waits for its turn.
func TestBatch_EarlierUnlockIsAnsweredThoughALingeringHoldIsFollowedLate(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		second, third, fourth := b.next("second"), b.next("third"), b.next("fourth")
		one := b.follows(second) // its rename is under way
		b.isSent(b.first, second)
		two := b.follows(third)
		b.holderEnds()
		b.ours() // the rename is answered before third takes the slot
		b.requireAnswer(one)
		fourth.follow(b.holder, fourth.name, b.batch)
		b.handOver(fourth, fourth.name, false, func() bool { return true })
		_, _ = fourth.open(openLock{settings: fourth.settings, target: fourth.target}, nil)
		b.isSent(second, fourth)
		b.ours()
		b.requireAnswer(two)
	})
}

// A hold that goes on lingering asks for the line, because a waiter may have come before announcements arrived.
func TestBatch_LeaseIsKeptByACommandOfItsOwn(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		for range 2 {
			b.keepLease()
			b.underWay()
		}
		b.ours()
		b.underWay()
		b.ours()
	})
}

// Redis does not answer, and the lock is used again and again meanwhile.
func TestBatch_LeaseIsKeptByOneCommandWhoeverAsksForIt(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		b.keepLease()
		b.underWay()
		for range 100 {
			b.keepLease()
		}
		require.Len(t, b.waiting, 1)
		b.ours()
		b.ours()
		b.nothingSent()
	})
}

// A TryLock of the same owner that came between the end of a hold and its lingering waits for the release of that hold.
func TestBatch_NobodyWaitsForTheReleaseOfAHoldThatLingers(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		ctx, stop := context.WithTimeout(b.t.Context(), 100*time.Millisecond)
		defer stop()
		hub := wake.NewHub(nil, wake.Config{})
		hub.Close() // no subscription is confirmed, so the hold lingers for a second
		b.session.registry.announcements = hub
		h, s := b.first, *b.first.settings
		s.Renewed, s.linger = true, 5*time.Second
		h.mu.Lock()
		h.end(ending, ErrReleased)
		h.mu.Unlock()
		waited := make(chan error, 1)
		go func() { waited <- h.await(ctx) }()
		synctest.Wait()
		require.True(b.t, h.linger(&s))
		require.NoError(b.t, <-waited)
		require.NoError(b.t, h.await(ctx))
		require.True(b.t, h.queueEntries[0].gate.endLingering(nil))
	})
}
