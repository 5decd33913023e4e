package relock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

func TestAttempt_GrantedKeepsItsTurnAndName(t *testing.T) {
	for name, waits := range map[string]bool{"Lock": true, "TryLock": false} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "key")
				ended := h.runs(b.t.Context(), waits)
				r := b.asks(h)
				require.Equal(t, 3, r.opts.Attempts)
				require.Equal(t, time.Second, r.opts.Patience)
				require.Equal(t, (<-chan struct{})(b.session.closing), r.opts.Enough, "a Close waits for one copy at most")
				now := b.session.identities.Current()
				b.granted(h)
				b.gets(ended, true)
				require.Equal(t, keys.Name{Identity: now, Field: h.target.Field(string(*now), h.owner), Token: 7}, h.name)
				h.stands(queue.Turn)
				require.Zero(t, h.contended)
				h.undoes()
				require.Same(t, now, b.session.identities.Current(), "nothing was in doubt")
			})
		})
	}
}

func TestAttempt_WaiterAsksAgainWhenWoken(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := h.locks(b.t.Context())
		b.taken(h, time.Minute)
		b.sleeps()
		require.Equal(t, 1, b.listens())
		h.queueEntries[0].queue.Wake()
		b.taken(h, time.Minute)
		b.sleeps()
		require.Equal(t, 1, h.contended, "its record contains the first wait")
		time.Sleep(time.Second) // spurious wake-ups may delay the next request a little
		h.queueEntries[0].queue.Wake()
		time.Sleep(100 * time.Millisecond)
		b.granted(h)
		b.gets(ended, true)
		h.stands(queue.Turn)
	})
}

// The table of when a waiter asks again without a message.
func TestAttempt_WaiterAsksAgainWithoutAMessage(t *testing.T) {
	for name, c := range map[string]struct {
		live             bool
		left             time.Duration
		earliest, latest time.Duration
	}{
		"when the lease has run out":             {true, time.Second, time.Second, time.Second + 4*time.Millisecond},
		"at a safety poll":                       {true, time.Minute, 2 * time.Second, 4 * time.Second},
		"at a safety poll, without expiry":       {true, -1, 2 * time.Second, 4 * time.Second},
		"soon, where no message arrives":         {false, time.Minute, fastPoll, fastPollMax},
		"sooner, if the lease has run out there": {false, 10 * time.Millisecond, 10 * time.Millisecond, 14 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				if !c.live {
					b.loseSubscriptions()
				}
				h := b.wants("me", "key")
				ended := h.locks(b.t.Context())
				b.taken(h, c.left)
				time.Sleep(c.earliest - 1)
				b.sleeps()
				time.Sleep(c.latest - c.earliest + 1)
				b.granted(h)
				b.gets(ended, true)
			})
		})
	}
}

func TestAttempt_UnreachableWaiterPollsLessAndLessOften(t *testing.T) {
	begin(t, func(b *trial) {
		b.loseSubscriptions()
		h := b.wants("me", "key")
		ended := h.locks(b.t.Context())
		b.taken(h, time.Minute)
		time.Sleep(fastPollMax)
		for _, most := range []time.Duration{100, 200, 400, 800, 1600, 3200, 4000, 4000} {
			most *= time.Millisecond
			b.taken(h, time.Minute)
			time.Sleep(most/2 - 1)
			b.sleeps()
			time.Sleep(most/2 + 1)
		}
		b.granted(h)
		b.gets(ended, true)
	})
}

func TestTryLock_AsksOnce(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := h.tries()
		b.taken(h, time.Millisecond)
		b.gets(ended, false)
		h.nothingLeft()
		require.Zero(t, h.contended)
	})
}

func TestTryLock_DoesNotAskBehindAnotherWaiter(t *testing.T) {
	begin(t, func(b *trial) {
		first, h := b.wants("first", "key"), b.wants("me", "key")
		require.True(t, first.queueEntries[0].ticket.Join())
		b.gets(h.tries(), false)
		b.sleeps()
		h.nothingLeft()
	})
}

// It learns of an outage that the one before it has met.
func TestTryLock_ReportsThatRedisDoesNotAnswerTheWaiterBefore(t *testing.T) {
	begin(t, func(b *trial) {
		first, h := b.wants("first", "key"), b.wants("me", "key")
		require.True(t, first.queueEntries[0].ticket.Join())
		g := h.queueEntries[0].gate
		g.asks(b.session.now())
		time.Sleep(2 * time.Second) // Redis may be slow
		b.gets(h.tries(), false)
		time.Sleep(10 * time.Second)
		require.EqualError(t, b.gets(h.tries(), false, lockerr.ErrNoAnswer), "no answer from Redis for 12s")
		g.failsToAsk(b.session.now(), errMissed)
		require.EqualError(t, b.gets(h.tries(), false, errMissed), "requests to Redis have been failing for 12s: connection reset")
		h.nothingLeft()
	})
}

func TestAttempt_OthersWaitBehindTheOneThatAsks(t *testing.T) {
	begin(t, func(b *trial) {
		first, second, third := b.wants("1", "key"), b.wants("2", "key"), b.wants("3", "key")
		ofFirst := first.locks(b.t.Context())
		b.asks(first)
		ofSecond := second.locks(b.t.Context())
		b.asks(first)
		ofThird := third.locks(b.t.Context())
		b.granted(first)
		b.getsAmongOthers(ofFirst, true)
		b.sleeps()
		require.Equal(t, [2]int{1, 1}, [2]int{second.contended, third.contended})
		first.queueEntries[0].ticket.Leave()
		b.granted(second)
		b.getsAmongOthers(ofSecond, true)
		second.queueEntries[0].ticket.Leave()
		b.granted(third)
		b.gets(ofThird, true)
	})
}

func TestAttempt_HandOverPassesTheTurn(t *testing.T) {
	begin(t, func(b *trial) {
		first, h := b.wants("first", "key"), b.wants("me", "key")
		require.True(t, first.queueEntries[0].ticket.Join())
		ended := h.locks(b.t.Context())
		b.goesOn(ended)
		to := first.queueEntries[0].ticket.Reserve(func(*hold) bool { return true })
		require.Same(t, h.queueEntries[0].ticket, to)
		h.isGiven()
		require.True(t, first.queueEntries[0].ticket.Grant(to))
		b.gets(ended, true)
		require.Equal(t, "given:me", h.name.Field)
		h.stands(queue.Turn)
		b.sleeps()
	})
}

// What was handed over is past its deadline by the time that the waiter has it.
func TestAttempt_RejectsAnInvalidHandOverAndAsks(t *testing.T) {
	begin(t, func(b *trial) {
		first, h := b.wants("first", "key"), b.wants("me", "key")
		require.True(t, first.queueEntries[0].ticket.Join())
		ended := h.locks(b.t.Context())
		b.goesOn(ended)
		to := first.queueEntries[0].ticket.Reserve(func(*hold) bool { return true })
		h.late = true
		h.isGiven()
		require.True(t, first.queueEntries[0].ticket.Grant(to))
		b.asks(h)
		h.undoes(undone{"given:me", trialTTL, false})
		h.late = false
		b.granted(h)
		b.gets(ended, true)
		require.NotEqual(t, "given:me", h.name.Field)
	})
}

func TestAttempt_HandOverBeforeTheEndOfTheWaitCounts(t *testing.T) {
	begin(t, func(b *trial) {
		for i := range 200 { // the one or the other is first
			key := fmt.Sprint("key", i)
			first, h := b.wants("first", key), b.wants("me", key)
			require.True(t, first.queueEntries[0].ticket.Join())
			ctx, stop := context.WithCancel(b.t.Context())
			ended := h.locks(ctx)
			b.goesOn(ended)
			to := first.queueEntries[0].ticket.Reserve(func(*hold) bool { return true })
			h.isGiven()
			stop()
			passed := first.queueEntries[0].ticket.Grant(to)
			require.Equal(t, passed, (<-ended).granted)
			if passed {
				h.stands(queue.Turn)
			}
		}
	})
}

// As a try does that met a lock that lingers, and was not the first who did.
func TestTryLock_ThatLeavesHasTheLockOnlyAfterTheHandOver(t *testing.T) {
	for _, granted := range []bool{false, true} {
		t.Run(fmt.Sprint(granted), func(t *testing.T) {
			begin(t, func(b *trial) {
				first, h := b.wants("first", "key"), b.wants("me", "key")
				ticket := h.queueEntries[0].ticket
				require.True(t, first.queueEntries[0].ticket.Join())
				require.False(t, ticket.Join())
				to := first.queueEntries[0].ticket.Reserve(func(*hold) bool { return true })
				h.isGiven() // the name, before the hand-over counts
				if granted {
					require.True(t, first.queueEntries[0].ticket.Grant(to))
				}
				turn, err := (&attempt{hold: h.hold}).gives(ticket, context.Canceled)
				require.Equal(t, granted, turn)
				if granted {
					require.NoError(t, err)
					return
				}
				require.Equal(t, context.Canceled, err)
				require.False(t, first.queueEntries[0].ticket.Grant(to), "it has left")
			})
		})
	}
}

// The name that the hand-over carries may come to be on Redis at any time.
func TestAttempt_LeavingDuringAHandOverRetiresTheOfferedName(t *testing.T) {
	begin(t, func(b *trial) {
		first, h := b.wants("first", "key"), b.wants("me", "key")
		require.True(t, first.queueEntries[0].ticket.Join())
		ctx, stop := context.WithCancel(b.t.Context())
		ended := h.locks(ctx)
		b.goesOn(ended)
		offered := offer{identity: b.session.identities.Current(), ended: make(chan struct{})}
		to := first.queueEntries[0].ticket.Reserve(func(w *hold) bool {
			w.offered = offered
			return true
		})
		stop()
		b.gets(ended, false, context.Canceled)
		require.NotSame(t, offered.identity, b.session.identities.Current())
		require.EqualValues(t, offered.ended, h.nextUndo(), "it is being undone until then")
		require.False(t, first.queueEntries[0].ticket.Grant(to), "it has left")
		h.nothingLeft()
	})
}

// The table of where a wait ends, and how.
func TestAttempt_WaitEndsWithItsContextOrTheClient(t *testing.T) {
	type wait func(b *trial, h *asker, ctx context.Context) <-chan result
	inLine := func(b *trial, h *asker, ctx context.Context) <-chan result {
		require.True(b.t, b.wants("first", "key").queueEntries[0].ticket.Join())
		return h.locks(ctx)
	}
	asleep := func(b *trial, h *asker, ctx context.Context) <-chan result {
		ended := h.locks(ctx)
		b.taken(h, -1)
		return ended
	}
	afterAnError := func(b *trial, h *asker, ctx context.Context) <-chan result {
		ended := asleep(b, h, ctx)
		h.queueEntries[0].queue.Wake()
		b.fails(h, redisexec.Outcome{})
		return ended
	}
	for name, at := range map[string]wait{"in line": inLine, "asleep": asleep, "in the pause after an error": afterAnError} {
		for cause, want := range map[string]error{"the context": context.Canceled, "its cause": errOver, "the client": lockerr.ErrClosed} {
			t.Run(name+" with "+cause, func(t *testing.T) {
				begin(t, func(b *trial) {
					h := b.wants("me", "key")
					ctx, stop := context.WithCancelCause(b.t.Context())
					defer stop(nil)
					ended := at(b, h, ctx)
					b.goesOn(ended)
					switch want {
					case lockerr.ErrClosed:
						close(b.session.closing)
					case errOver:
						stop(errOver)
					default:
						stop(nil)
					}
					b.gets(ended, false, want)
					h.nothingLeft()
				})
			})
		}
	}
}

func TestAttempt_NextInLineGoesOnAfterOneGaveUp(t *testing.T) {
	begin(t, func(b *trial) {
		first, second := b.wants("1", "key"), b.wants("2", "key")
		ctx, stop := context.WithCancel(b.t.Context())
		ofFirst := first.locks(ctx)
		b.taken(first, -1)
		ofSecond := second.locks(b.t.Context())
		b.goesOn(ofSecond)
		stop()
		<-ofFirst
		b.granted(second)
		b.gets(ofSecond, true)
	})
}

// The table of what a safety poll, or a message, shows about the subscription.
func TestAttempt_SafetyPollThatFindsNewsDoubtsTheSubscription(t *testing.T) {
	released := protocol.Grant{Held: true}
	another := protocol.Grant{Holder: "another:1", TTL: -1}
	same := protocol.Grant{Holder: "other:1", TTL: -1}
	for name, c := range map[string]struct {
		woken            bool
		found            protocol.Grant
		missed, suspects int
	}{
		"a release without a message":     {false, released, 1, 0},
		"another holder":                  {false, another, 0, 1},
		"the same holder":                 {false, same, 0, 0},
		"a release after a message":       {true, released, 0, 0},
		"another holder, after a message": {true, another, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "key")
				ctx, stop := context.WithCancel(b.t.Context())
				ended := h.locks(ctx)
				b.taken(h, -1)
				if c.woken {
					h.queueEntries[0].queue.Wake()
				} else {
					time.Sleep(4 * time.Second)
				}
				b.answers(h, answer{grant: c.found})
				stop()
				<-ended
				require.Len(t, b.hub.missed, c.missed)
				require.Len(t, b.hub.suspects, c.suspects)
			})
		})
	}
}

func TestAttempt_MessageAfterASafetyPollCastsNoDoubt(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := h.locks(b.t.Context())
		b.taken(h, -1)
		time.Sleep(4 * time.Second)
		b.taken(h, -1) // by the safety poll
		time.Sleep(time.Second)
		h.queueEntries[0].queue.Wake()
		b.granted(h)
		b.gets(ended, true)
		require.Empty(t, b.hub.missed)
	})
}

func TestGate_RecordsSinceWhenRedisDoesNotAnswer(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := h.locks(b.t.Context())
		asked := b.session.now()
		b.asks(h)
		_, outage := h.queueEntries[0].gate.lastKnown(b.session.now())
		require.Equal(t, asked, outage.asked)
		time.Sleep(time.Second)
		h.late = true
		b.granted(h)
		_, outage = h.queueEntries[0].gate.lastKnown(b.session.now())
		require.Equal(t, b.session.now(), outage.asked, "Redis did answer, if too late")
		h.late = false
		time.Sleep(16 * time.Millisecond)
		b.granted(h)
		b.gets(ended, true)
	})
}

// An attempt that waits for another key keeps the gate in use, and does not ask.
func TestGate_OutageThatNobodyAsksAboutIsOver(t *testing.T) {
	begin(t, func(b *trial) {
		b.wants("an idle one", "key")
		h := b.wants("me", "key")
		g, ended := h.queueEntries[0].gate, h.tries()
		b.fails(h, redisexec.Outcome{})
		b.gets(ended, false, errMissed)
		_, out := g.lastKnown(b.session.now())
		require.ErrorIs(t, out.failure, errMissed, "the next one may be about to ask")
		time.Sleep(redisexec.MinCopyPatience + 1)
		_, out = g.lastKnown(b.session.now())
		require.Equal(t, outage{}, out)
	})
}

func TestGate_NotesWhoHoldsTheKey(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		other := b.wants("other", "key")
		other.settings.Renewed = false
		other.holds("uuid:other")
		ended := h.tries()
		time.Sleep(time.Second)
		b.answers(h, answer{grant: protocol.Grant{Holder: "uuid:other", TTL: time.Minute, Claimed: true}})
		b.gets(ended, false)
		seen, outage := h.queueEntries[0].gate.lastKnown(b.session.now())
		require.Equal(t, sighting{at: b.session.now(), holder: "uuid:other", hold: other.hold, claims: true, lease: time.Minute}, seen)
		require.Equal(t, clock.Instant{}, outage.asked)
	})
}
