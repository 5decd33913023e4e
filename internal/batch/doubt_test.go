package batch_test

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

func ownerNamed(name string) keys.Owner { return keys.Owner{Fixed: name} }

// inTime lets the pause after a failure pass.
func (b *trial) inTime() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// missed answers with an error that may pass.
func (b *trial) missed(ambiguous bool) {
	b.t.Helper()
	b.answers(answer{out: redisexec.Outcome{Err: errMissed, Ambiguous: ambiguous}})
}

func TestARenameIsSentAgainUntilItIsAnswered(t *testing.T) {
	begin(t, func(b *trial) {
		second, third := b.newHold("second"), b.newHold("third")
		ofFirst := b.follows(second)
		b.sent(b.first, second)
		ofSecond := b.follows(third)
		for range 5 {
			b.missed(false)
			b.nothingSent() // without a pause
			b.inTime()
			b.sent(b.first, second)
			b.waits(ofFirst)
		}
		b.ours()
		b.hears(ofFirst)
		b.waits(ofSecond)
		b.sent(second, third)
		require.Empty(t, b.retired, "no copy was in doubt")
		require.Equal(t, []error{errMissed, errMissed, errMissed, errMissed, errMissed}, third.untold, "the holder's hook hears of it")
		require.Empty(t, second.untold)
	})
}

// A copy of it may come at any time: it must not bring back a name that is used again.
func TestARenameInDoubtHasBothNamesRetired(t *testing.T) {
	for name, c := range map[string]struct {
		ours bool
		err  error
	}{
		"that was answered, but for a copy": {ours: true},
		"that was not answered":             {err: errMissed},
		"that found neither name":           {},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				b.identities.Retire(b.first.name.Identity)
				next := b.newHold("next")
				require.NotSame(t, b.first.name.Identity, next.name.Identity)
				b.follows(next)
				b.answers(answer{ours: c.ours, out: redisexec.Outcome{Err: c.err, Ambiguous: true}})
				require.True(t, b.isRetired(b.first))
				require.True(t, b.isRetired(next))
				require.NotSame(t, next.name.Identity, b.identities.Current())
			})
		})
	}
}

func TestABatchThatRedisKnowsByNeitherNameIsOver(t *testing.T) {
	begin(t, func(b *trial) {
		second, third := b.newHold("second"), b.newHold("third")
		ofFirst := b.follows(second)
		b.sent(b.first, second)
		ofSecond := b.follows(third)
		b.answers(answer{})
		require.True(t, b.IsOver())
		b.hears(ofFirst, lockerr.ErrLost, lockerr.ErrNotOnRedis)
		b.hears(ofSecond, lockerr.ErrLost, lockerr.ErrNotOnRedis)
		require.Equal(t, [3]int{0, 0, 1}, [3]int{b.first.lost, second.lost, third.lost}, "the holder is lost")
		require.Empty(t, third.told)
		b.known(b.first, second) // both are to be undone
		b.nothingSent()
	})
}

// Redis refused it for good, and surely has not done it: the holder goes on as it was, and another command
// is sent when one is needed.
func TestARenameThatIsRefusedForGoodChangesNothing(t *testing.T) {
	begin(t, func(b *trial) {
		forbidden := errors.New("NOPERM")
		next := b.newHold("next")
		told := b.follows(next)
		b.answers(answer{out: redisexec.Outcome{Err: forbidden, Permanent: true}})
		b.hears(told, forbidden)
		require.Equal(t, []error{forbidden}, next.untold)
		b.known(b.first)
		require.False(t, b.IsOver())
		require.Zero(t, next.lost)
		b.inTime()
		b.nothingSent()

		told = b.Known(next)
		require.NotNil(t, told)
		b.sent(b.first, next)
		b.ours()
		b.hears(told)
		b.known(next)
	})
}

// One copy may have been executed, or may be yet.
func TestARenameThatIsRefusedAfterADoubtIsSentOn(t *testing.T) {
	for name, doubts := range map[string]func(b *trial){
		"in the round before": func(b *trial) {
			b.missed(true)
			b.inTime()
			b.answers(answer{out: redisexec.Outcome{Err: errMissed, Permanent: true}})
		},
		"in the same round": func(b *trial) {
			b.answers(answer{out: redisexec.Outcome{Err: errMissed, Permanent: true, Ambiguous: true}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				next := b.newHold("next")
				told := b.follows(next)
				doubts(b)
				b.waits(told)
				b.known(b.first, next)
				b.inTime()
				b.sent(b.first, next)
			})
		})
	}
}

func TestAllThatWaitHearWhyABatchEnds(t *testing.T) {
	for name, why := range map[string]error{
		"by a release that was answered":     nil,
		"by a release that was not answered": errMissed,
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				second, third := b.newHold("second"), b.newHold("third")
				ofFirst := b.follows(second)
				r := b.sent(b.first, second)
				ofSecond := b.follows(third)
				b.End(why)
				b.settle()
				require.Error(t, r.ctx.Err(), "the rename under way has ended")
				for _, told := range []<-chan error{ofFirst, ofSecond} {
					if why != nil {
						b.hears(told, why)
					} else {
						b.hears(told)
					}
				}
				require.True(t, b.IsOver())
				b.known(b.first, second) // both are to be undone
				b.inTime()
				require.Same(t, r, b.underWay(), "no other is sent")
				require.Empty(t, third.untold)
				require.Zero(t, third.lost, "who ends it knows")
				b.End(errors.New("again"))
				b.waits(ofFirst)
			})
		})
	}
}

func TestAnAnswerThatComesAfterTheEndChangesNothing(t *testing.T) {
	begin(t, func(b *trial) {
		next := b.newHold("next")
		came := make(chan struct{})
		b.env.Rename = lateRenamer(came)
		told := b.follows(next)
		b.settle()
		b.End(errMissed)
		b.hears(told, errMissed)
		close(came)
		b.settle()
		require.Empty(t, next.told)
		b.known(b.first, next)
		b.waits(told)
	})
}

func TestThoseThatWaitHearThatTheClientHasNoMoreTime(t *testing.T) {
	closed := errors.New("closed")
	for name, underWay := range map[string]bool{"while a rename is under way": true, "while another command is": false} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				if !underWay {
					require.True(t, b.slot.Take(b.t.Context()))
				}
				ofFirst := b.follows(b.newHold("second"))
				b.settle()
				ofSecond := b.follows(b.newHold("third"))
				b.end(closed)
				b.hears(ofFirst, closed)
				b.hears(ofSecond, closed)
				require.True(t, b.IsOver())
			})
		})
	}
}
