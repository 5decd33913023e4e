package relock

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

var errMissed = errors.New("connection reset")

// inTime lets the pause after a failure pass.
func (b *batchTrial) inTime() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// misses answers with an error that may pass.
func (b *batchTrial) misses(ambiguous bool) {
	b.t.Helper()
	b.answers(renamed{out: redisexec.Outcome{Err: errMissed, Ambiguous: ambiguous}})
}

func TestBatch_FailedRenameIsSentAgainAfterAPause(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		second, third := b.next("second"), b.next("third")
		ofFirst := b.follows(second)
		b.isSent(b.first, second)
		ofSecond := b.follows(third)
		for range 5 {
			b.misses(false)
			b.nothingSent() // without a pause
			b.inTime()
			b.isSent(b.first, second)
			b.waits(ofFirst)
		}
		b.ours()
		b.requireAnswer(ofFirst)
		b.waits(ofSecond)
		b.isSent(second, third)
		require.False(t, b.isRetired(third), "no copy was in doubt")
		require.Equal(t, []error{errMissed, errMissed, errMissed, errMissed, errMissed}, b.missed, "the holder's hook is notified")
	})
}

// A copy of it may come at any time: it must not bring back a name that is used again.
func TestBatch_UncertainRenameRetiresBothNames(t *testing.T) {
	for name, c := range map[string]struct {
		ours bool
		err  error
	}{
		"that was answered, but for a copy": {ours: true},
		"that was not answered":             {err: errMissed},
		"that found neither name":           {},
	} {
		for _, of := range []string{"the one before", "the next"} {
			t.Run(name+", of "+of, func(t *testing.T) {
				beginBatch(t, func(b *batchTrial) {
					current := b.session.identities.Current()
					next := b.next("next")
					older := keys.NewIdentities().Current() // of either
					if of == "the next" {
						b.settled.Identity = older
					} else {
						next.name.Identity = older
					}
					b.follows(next)
					b.answers(renamed{ours: c.ours, out: redisexec.Outcome{Err: c.err, Ambiguous: true}})
					require.NotSame(t, current, b.session.identities.Current())
				})
			})
		}
	}
}

// The hold that began while the rename was in flight has the name that the rename replaces: its owner released the
// lock with WithAsyncUnlock, and has it again.
func TestBatch_UncertainRenameNeverFindsItsOldNameAgain(t *testing.T) {
	for name, misses := range map[string]bool{"if the first copies are answered": false, "if later copies are answered": true} {
		t.Run(name, func(t *testing.T) {
			beginBatch(t, func(b *batchTrial) {
				second, again := b.next("second"), b.nextAgain(b.first)
				ofFirst := b.follows(second)
				b.isSent(b.first, second)
				ofSecond := b.follows(again)
				if misses {
					b.misses(true)
					b.inTime()
				}
				b.answers(renamed{ours: true, out: redisexec.Outcome{Ambiguous: !misses}})
				b.requireAnswer(ofFirst)
				r := b.underWay()
				require.Equal(t, second.name.Field, r.from)
				require.NotEqual(t, b.first.name.Field, r.to, "a copy of the first rename would replace it")
				require.True(t, b.session.identities.Current().Begins(r.to))
				b.isSent(second, again)
				b.ours()
				b.requireAnswer(ofSecond)
				b.isKnown(again)
				require.False(t, isLost(again))
			})
		})
	}
}

func TestBatch_IsOverIfRedisHasNeitherName(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		second, third := b.next("second"), b.next("third")
		ofFirst := b.follows(second)
		b.isSent(b.first, second)
		ofSecond := b.follows(third)
		b.answers(renamed{})
		require.True(t, b.isOver())
		b.requireAnswer(ofFirst, lockerr.ErrLost, lockerr.ErrNotOnRedis)
		b.requireAnswer(ofSecond, lockerr.ErrLost, lockerr.ErrNotOnRedis)
		require.True(t, isLost(third), "the holder is lost")
		require.False(t, isLost(b.first) || isLost(second))
		b.isKnown(b.first, second) // both are to be undone
		b.nothingSent()
	})
}

// Redis refused it for good, and surely has not done it: the holder goes on as it was, and another command
// is sent when one is needed.
func TestBatch_PermanentRefusalOfARenameChangesNothing(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		forbidden := errors.New("NOPERM")
		next := b.next("next")
		answer := b.follows(next)
		b.answers(renamed{out: redisexec.Outcome{Err: forbidden, Permanent: true}})
		b.requireAnswer(answer, forbidden)
		require.Equal(t, []error{forbidden}, b.missed)
		b.isKnown(b.first)
		require.False(t, b.isOver())
		require.False(t, isLost(next))
		b.inTime()
		b.nothingSent()

		answer = b.confirmName(next)
		require.NotNil(t, answer)
		b.isSent(b.first, next)
		b.ours()
		b.requireAnswer(answer)
		b.isKnown(next)
	})
}

// One copy may have been executed, or may be yet.
func TestBatch_RenameRefusedAfterAnUncertainCopyIsSentOn(t *testing.T) {
	for name, doubts := range map[string]func(b *batchTrial){
		"in the round before": func(b *batchTrial) {
			b.misses(true)
			b.inTime()
			b.answers(renamed{out: redisexec.Outcome{Err: errMissed, Permanent: true}})
		},
		"in the same round": func(b *batchTrial) {
			b.answers(renamed{out: redisexec.Outcome{Err: errMissed, Permanent: true, Ambiguous: true}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			beginBatch(t, func(b *batchTrial) {
				next := b.next("next")
				answer := b.follows(next)
				doubts(b)
				b.waits(answer)
				b.isKnown(b.first, next)
				b.inTime()
				b.isSent(b.first, next)
			})
		})
	}
}

func TestBatch_EndIsReportedToAllWaiters(t *testing.T) {
	for name, why := range map[string]error{
		"by a release that was answered":     nil,
		"by a release that was not answered": errMissed,
	} {
		t.Run(name, func(t *testing.T) {
			beginBatch(t, func(b *batchTrial) {
				second, third := b.next("second"), b.next("third")
				ofFirst := b.follows(second)
				r := b.isSent(b.first, second)
				ofSecond := b.follows(third)
				b.end(why)
				synctest.Wait()
				require.Error(t, r.ctx.Err(), "the rename under way has ended")
				for _, answer := range []<-chan error{ofFirst, ofSecond} {
					if why != nil {
						b.requireAnswer(answer, why)
					} else {
						b.requireAnswer(answer)
					}
				}
				require.True(t, b.isOver())
				b.isKnown(b.first, second) // both are to be undone
				b.inTime()
				require.Same(t, r, b.underWay(), "no other is sent")
				require.Empty(t, b.missed)
				require.False(t, isLost(third), "the loss is not reported to the one who ends it")
				b.end(errors.New("again"))
				b.waits(ofFirst)
			})
		})
	}
}

func TestBatch_AnswerAfterTheEndChangesNothing(t *testing.T) {
	beginBatch(t, func(b *batchTrial) {
		next := b.next("next")
		came := make(chan struct{})
		b.rename = lateRenamer(came)
		answer := b.follows(next)
		synctest.Wait()
		before := proven(next)
		b.end(errMissed)
		b.requireAnswer(answer, errMissed)
		close(came)
		synctest.Wait()
		require.Equal(t, before, proven(next))
		b.isKnown(b.first, next)
		b.waits(answer)
	})
}

func TestBatch_EndOfCloseIsReportedToWaiters(t *testing.T) {
	closed := errors.New("closed")
	for name, underWay := range map[string]bool{"while a rename is under way": true, "while another command is": false} {
		t.Run(name, func(t *testing.T) {
			beginBatch(t, func(b *batchTrial) {
				if !underWay {
					require.True(t, b.slot.take(b.t.Context()))
				}
				ofFirst := b.follows(b.next("second"))
				synctest.Wait()
				ofSecond := b.follows(b.next("third"))
				b.session.endBackground(closed)
				b.requireAnswer(ofFirst, closed)
				b.requireAnswer(ofSecond, closed)
				require.True(t, b.isOver())
			})
		})
	}
}
