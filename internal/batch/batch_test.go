package batch_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/batch"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

func TestABatchIsKnownByTheNameThatItBeganWith(t *testing.T) {
	begin(t, func(b *trial) {
		b.known(b.first)
		require.Equal(t, b.first.name, b.Settled())
		require.Same(t, b.target, b.Target())
		require.Same(t, b.slot, b.Slot())
		require.False(t, b.IsOver())
		b.nothingSent()
	})
}

func TestRedisIsToldWhoFollows(t *testing.T) {
	begin(t, func(b *trial) {
		next := b.newHold("next")
		next.wanted = time.Minute
		told := b.follows(next)
		r := b.sent(b.first, next)
		require.Equal(t, time.Minute, r.lease, "what the new holder wants")
		b.known(b.first, next)
		require.Equal(t, b.first.name, b.Settled())
		b.waits(told)

		b.ours()
		b.hears(told)
		b.known(next)
		require.Equal(t, next.name, b.Settled())
		require.Empty(t, b.first.told, "it has ended")
		require.Len(t, next.told, 1)
		require.Equal(t, time.Minute, next.told[0].lease)
		require.Same(t, b.Batch, next.told[0].by)
		require.Empty(t, b.retired, "nothing was in doubt")
		b.nothingSent()
	})
}

// Those in between never were on Redis, and all hear the answer to a command that was sent after they
// had ended.
func TestOneRenameTellsOfAllThatEndedBeforeItWasSent(t *testing.T) {
	begin(t, func(b *trial) {
		second, third, fourth := b.newHold("second"), b.newHold("third"), b.newHold("fourth")
		ofFirst := b.follows(second)
		b.sent(b.first, second)
		ofSecond, ofThird := b.follows(third), b.follows(fourth)
		b.sent(b.first, second)

		b.ours()
		b.hears(ofFirst)
		b.waits(ofSecond)
		b.waits(ofThird)
		b.sent(second, fourth)
		b.known(second, fourth)

		b.ours()
		b.hears(ofSecond)
		b.hears(ofThird)
		b.known(fourth)
		b.nothingSent()
		require.Equal(t, 1, b.tellers, "one goroutine tells of all")
	})
}

func TestTheHolderOfTheMomentIsToldWhateverNameWasSent(t *testing.T) {
	begin(t, func(b *trial) {
		second, third := b.newHold("second"), b.newHold("third")
		b.follows(second)
		b.sent(b.first, second)
		b.follows(third)
		b.ours()
		require.Empty(t, second.told)
		require.Len(t, third.told, 1, "its lease is proven by the rename to the one before")
		require.Equal(t, second.wanted, third.told[0].lease)
	})
}

func TestNoRenameIsSentWhileAnotherCommandIsUnderWay(t *testing.T) {
	begin(t, func(b *trial) {
		require.True(t, b.slot.Take(b.t.Context()))
		second, third := b.newHold("second"), b.newHold("third")
		b.follows(second)
		b.nothingSent()
		b.follows(third)
		b.slot.Free()
		b.sent(b.first, third)
		taken, stop := context.WithTimeout(b.t.Context(), time.Second)
		defer stop()
		require.False(t, b.slot.Take(taken), "the rename has it")
		b.ours()
		require.True(t, b.slot.Take(b.t.Context()), "it was given back")
	})
}

func TestAWaiterThatDoesNotGetTheTurnDoesNotFollow(t *testing.T) {
	begin(t, func(b *trial) {
		told, over := b.Pass(b.newHold("next"), identity.Name{Field: "next"}, func() bool { return false })
		require.False(t, over)
		require.Nil(t, told)
		b.nothingSent()
		b.known(b.first)
		require.Nil(t, b.Known(b.first), "it is the holder still")
	})
}

func TestNoOneFollowsInABatchThatIsOver(t *testing.T) {
	begin(t, func(b *trial) {
		b.End(nil)
		told, over := b.Pass(b.newHold("next"), identity.Name{Field: "next"}, func() bool {
			t.Error("it was given the turn")
			return true
		})
		require.True(t, over)
		require.Nil(t, told)
		b.nothingSent()
	})
}

// The release that its owner sends tells of all who ended before.
func TestNoRenameIsSentAfterTheLastHolderHasEnded(t *testing.T) {
	begin(t, func(b *trial) {
		require.True(t, b.slot.Take(b.t.Context()))
		told := b.follows(b.newHold("next"))
		b.HolderEnds()
		b.slot.Free()
		b.nothingSent()
		b.known(b.first)
		b.waits(told)

		b.End(nil)
		b.hears(told)
	})
}

// One that comes after all, before the release is sent.
func TestAHoldThatFollowsTheLastIsToldOfWithAllBefore(t *testing.T) {
	begin(t, func(b *trial) {
		require.True(t, b.slot.Take(b.t.Context()))
		second, third := b.newHold("second"), b.newHold("third")
		ofFirst := b.follows(second)
		b.HolderEnds()
		b.settle()
		ofSecond := b.follows(third)
		b.slot.Free()
		b.sent(b.first, third)
		b.ours()
		b.hears(ofFirst)
		b.hears(ofSecond)
	})
}

func TestTheHolderHasItsNameToldIfRedisDoesNotKnowIt(t *testing.T) {
	begin(t, func(b *trial) {
		require.Nil(t, b.Known(b.first), "Redis knows it")
		second, third := b.newHold("second"), b.newHold("third")
		b.follows(second)
		b.sent(b.first, second)
		require.NotNil(t, b.Known(second), "it is not answered yet")
		b.follows(third)
		require.Nil(t, b.Known(second), "it is not the holder any more")
		told := b.Known(third)
		require.NotNil(t, told)
		b.ours()
		b.waits(told)
		b.sent(second, third)
		b.ours()
		b.hears(told)
		require.Nil(t, b.Known(third))
		b.nothingSent()
	})
}

// A second rename, after the holder has come back, would set its count back to 1.
func TestTheRenameThatIsUnderWayTellsTheNameOfTheHolderForAllThatNeedIt(t *testing.T) {
	begin(t, func(b *trial) {
		next := b.newHold("next")
		b.follows(next)
		b.sent(b.first, next)
		first, second := b.Known(next), b.Known(next)
		b.waits(first)
		b.waits(second)
		b.ours()
		b.hears(first)
		b.hears(second)
		b.nothingSent()
	})
}

func TestInABatchThatIsOverThereIsNothingToTell(t *testing.T) {
	begin(t, func(b *trial) {
		next := b.newHold("next")
		b.follows(next)
		b.sent(b.first, next)
		b.End(nil)
		require.Nil(t, b.Known(next))
	})
}

func TestTheGateLearnsWhatTheAnswerSays(t *testing.T) {
	begin(t, func(b *trial) {
		for i, waiters := range []int{0, 2, 0} {
			b.follows(b.newHold("next"))
			b.answers(answer{ours: true, waiters: waiters})
			require.Equal(t, i+1, b.gate.heard)
			require.Equal(t, waiters == 0, b.gate.Alone())
		}
	})
}

func TestHoldsFollowOneAnotherBeyondTheLimitWhereNoOneElseWaits(t *testing.T) {
	begin(t, func(b *trial) {
		var none *batch.Batch
		require.False(t, none.GoesOn())
		require.True(t, b.GoesOn())
		b.gate.due = b.env.Now().After(time.Second)
		require.True(t, b.GoesOn())
		time.Sleep(time.Second)
		require.False(t, b.GoesOn(), "it is the turn of strangers")
		b.gate.due = clock.Instant{}
		b.gate.SetAlone(false)
		require.False(t, b.GoesOn(), "others stand in the line")
	})
}

func TestSeveralCopiesOfARenameFitIntoTheLease(t *testing.T) {
	for name, c := range map[string]struct{ patience, wanted, copy time.Duration }{
		"a short lease":                  {time.Minute, 400 * time.Millisecond, 100 * time.Millisecond},
		"a lease of the usual length":    {time.Minute, 30 * time.Second, time.Second},
		"a client that has less for all": {200 * time.Millisecond, 30 * time.Second, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				b.env.Patience = c.patience
				next := b.newHold("next")
				next.wanted = c.wanted
				b.follows(next)
				r := b.underWay()
				require.Equal(t, c.copy, r.opts.Patience)
				require.Equal(t, 2, r.opts.Attempts)
			})
		})
	}
}

// The table of what Redis may have known the lock as, in a batch whose first hold was followed by a
// second, of which Redis is being told, and by a third.
func TestAFieldIsKnownIfRedisMayHaveHadIt(t *testing.T) {
	begin(t, func(b *trial) {
		before := b.env.Now()
		time.Sleep(time.Second)
		b.identities.Retire(b.first.name.Identity)
		other := b.newHold("owner of another identity")
		second, third := &hold{name: b.first.name.Identity.Of(b.target, ownerNamed("second"))}, &hold{name: b.first.name.Identity.Of(b.target, ownerNamed("third"))}
		b.follows(second)
		b.sent(b.first, second)
		b.follows(third)
		for name, c := range map[string]struct {
			field string
			asked clock.Instant
			knows bool
		}{
			"by which Redis knows it":                  {b.first.name.Field, before, true},
			"that a rename makes of it":                {second.name.Field, before, true},
			"of a hold of it, since it began":          {third.name.Field, b.env.Now(), true},
			"of such a hold, asked before it began":    {third.name.Field, before, false},
			"of another identity":                      {other.name.Field, b.env.Now(), false},
			"that only begins as the identity does":    {string(*b.first.name.Identity) + "x:third", b.env.Now(), false},
			"of another identity, before it began too": {other.name.Field, before, false},
		} {
			require.Equal(t, c.knows, b.Knows(c.field, c.asked), name)
		}
		var none *batch.Batch
		require.False(t, none.Knows(b.first.name.Field, b.env.Now()))
	})
}

func TestAHoldWithoutABatchHasNothingToEnd(t *testing.T) {
	var none *batch.Batch
	none.End(errors.New("over"))
	none.HolderEnds()
	require.False(t, none.IsOver())
}

func TestOneThatDoesNotWaitForTheAnswerHearsWhatRedisHasSaid(t *testing.T) {
	begin(t, func(b *trial) {
		ctx, stop := context.WithTimeout(b.t.Context(), 0)
		defer stop()
		<-ctx.Done()
		b.follows(b.newHold("next"))
		b.underWay()
		require.EqualError(t, b.Unanswered(ctx), context.DeadlineExceeded.Error(), "Redis has said nothing")
		b.answers(answer{out: redisexec.Outcome{Err: errMissed}})
		b.inTime()
		b.answers(answer{out: redisexec.Outcome{Err: lockerr.ErrNoAnswer}})
		err := b.Unanswered(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errMissed, "which says more than a silence")
		b.inTime()
		b.ours()
		b.follows(b.newHold("third"))
		b.underWay()
		require.NotErrorIs(t, b.Unanswered(ctx), errMissed, "that was of the rename before")
	})
}
