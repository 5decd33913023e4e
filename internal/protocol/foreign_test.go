package protocol

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// Turns of foreign waiters, who have no place in the line: see line_prelude.lua. Tests set what the scripts have
// noted of them, so that no test has to be quicker than a window of theirs.

// foreignNote is what the scripts note of foreign waiters.
type foreignNote struct {
	at, interval, till time.Duration // at and till are from now, by the server's clock; till 0: they have no turn
	polls, left        int
}

// soon is as late as a time can be that counts, and more than what a busy machine takes.
const soon = 9 * time.Second

// now is the server's clock in milliseconds.
func (b *linedBench) now() int64 { return b.rdb.Time(b.t.Context()).Val().UnixMilli() }

func (b *linedBench) entries() string { return keys.LineOf(b.on.Keys[0]).Entries }

// note has the scripts find n.
func (b *linedBench) note(n foreignNote) {
	b.t.Helper()
	now, till := b.now(), int64(0)
	if n.till != 0 {
		till = now + n.till.Milliseconds()
	}
	text := fmt.Sprintf("%d %d %d %d %d", now+n.at.Milliseconds(), n.interval.Milliseconds(), till, n.polls, n.left)
	require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.entries(), "", text).Err())
}

// noted requires that the scripts have recorded n, with times that differ by less than a busy machine takes.
func (b *linedBench) noted(n foreignNote) {
	b.t.Helper()
	var at, interval, till int64
	var polls, left int
	text, err := b.rdb.HGet(b.t.Context(), b.entries(), "").Result()
	require.NoError(b.t, err)
	_, err = fmt.Sscan(text, &at, &interval, &till, &polls, &left)
	require.NoError(b.t, err, "%q", text)
	const tolerance = 5 * time.Second
	now := b.now()
	require.InDelta(b.t, now+n.at.Milliseconds(), at, float64(tolerance.Milliseconds()))
	require.Equal(b.t, n.till != 0, till != 0, "%q", text)
	if till != 0 {
		require.InDelta(b.t, now+n.till.Milliseconds(), till, float64(tolerance.Milliseconds()))
	}
	require.Equal(b.t, n.interval.Milliseconds(), interval, "%q", text)
	require.Equal(b.t, []int{n.polls, n.left}, []int{polls, left}, "%q", text)
}

// messagesOn returns the messages on a channel.
func (b *linedBench) messagesOn(channel string) <-chan *redis.Message {
	b.t.Helper()
	sub := b.rdb.Subscribe(b.t.Context(), channel)
	b.t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(b.t.Context())
	require.NoError(b.t, err)
	return sub.Channel()
}

func TestForeignWaiters_FirstReleaseWithALineSchedulesTheirTurn(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.take(me)
		b.enqueue(you)
		b.enqueue(them)
		require.True(b.t, b.release(me).Granted)
		b.noted(foreignNote{at: 100 * time.Millisecond, interval: 100 * time.Millisecond})
		b.release(you)
		require.Equal(b.t, them, b.holder())
		b.release(them)
		b.requireFree()
	})
}

func TestForeignWaiters_ReleaseLeavesTheLockWhenTheirTurnIsDue(t *testing.T) {
	for name, due := range map[string]foreignNote{
		"by the clock":           {interval: 400 * time.Millisecond},
		"after a round of lines": {at: time.Hour, interval: 100 * time.Millisecond, left: 1},
	} {
		t.Run(name, func(t *testing.T) {
			eachLinedBench(t, func(b *linedBench) {
				all, grants := b.messagesOn(b.on.Channels[0]), b.messagesOn(keys.GrantsPrefix(b.on.Keys[0])+"p")
				b.take(me)
				b.enqueue(you)
				b.enqueue(them)
				b.note(due)
				require.Equal(b.t, Released{Ours: true, Receivers: 1}, b.release(me))
				require.Empty(b.t, b.holder(), "it is given to one in line")
				require.Equal(b.t, []string{you, them}, b.queue())
				require.Equal(b.t, "1", redistest.Receive(b.t, all).Payload)
				require.Equal(b.t, "ask", redistest.Receive(b.t, grants).Payload)
				b.noted(foreignNote{at: due.at, interval: due.interval, till: time.Millisecond})
			})
		})
	}
}

func TestForeignWaiters_ReleaseGrantsWhileTheirTurnIsNotDue(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.take(me)
		b.enqueue(you)
		b.enqueue(them)
		b.enqueue("uuid-3:1")
		b.note(foreignNote{at: soon, interval: time.Second})
		require.True(b.t, b.release(me).Granted)
		b.note(foreignNote{interval: time.Second, left: 2})
		require.True(b.t, b.release(you).Granted)
		b.noted(foreignNote{interval: time.Second, left: 1})
	})
}

// Neither a poll, nor one that only asks, nor one that comes, gets a lock that is left to foreign waiters, or gives it to
// one in line. The answer contains for how long.
func TestForeignWaiters_LockIsGrantedToNoOneDuringTheirTurn(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		turn := foreignNote{interval: 100 * time.Millisecond, till: soon}
		b.take(me)
		b.enqueue(you)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.on.Keys[0]).Err())
		b.note(turn)

		all, g, out := b.lined.Poll(b.t.Context(), once, b.on, []Waiter{{Field: you, Terms: b.terms}})
		require.NoError(b.t, out.Err)
		require.Equal(b.t, EntryWaiting, all[0].State)
		require.Empty(b.t, g.Holder)
		require.InDelta(b.t, soon, g.TTL, float64(soon/2))
		turn.polls = 1
		b.noted(turn)

		b.enqueue(them)
		g, out = b.lined.Acquire(b.t.Context(), once, b.on, me, b.terms)
		require.NoError(b.t, out.Err)
		require.False(b.t, g.Held)
		require.InDelta(b.t, soon, g.TTL, float64(soon/2))
		require.Equal(b.t, []EntryState{EntryWaiting}, b.poll(them), "it is not the first, and does not count")
		require.False(b.t, b.release("x:1").Ours)
		require.Empty(b.t, b.holder())
		b.noted(turn)

		turn.till = -time.Millisecond
		b.note(turn)
		require.Equal(b.t, []EntryState{EntryGranted}, b.poll(you))
		require.Equal(b.t, you, b.holder())
	})
}

// The release of the lock has asked the first in line, and no one else, to poll when their turn is over.
func TestForeignWaiters_NextInLineIsAskedWhenTheFirstLeavesDuringTheirTurn(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		asked := b.messagesOn(keys.GrantsPrefix(b.on.Keys[0]) + "p")
		b.take(me)
		b.enqueue(you)
		b.enqueue(them)
		b.enqueue("uuid-3:1")
		b.note(foreignNote{interval: 100 * time.Millisecond})
		require.True(b.t, b.release(me).Ours)
		require.Equal(b.t, "ask", redistest.Receive(b.t, asked).Payload)
		turn := foreignNote{interval: 100 * time.Millisecond, till: soon}
		b.note(turn)
		b.release(you)
		require.Equal(b.t, "ask", redistest.Receive(b.t, asked).Payload, "of the first")
		b.release("uuid-3:1")
		require.Empty(b.t, b.holder())
		require.Equal(b.t, []string{them}, b.queue())
		b.noted(turn)
		require.NoError(b.t, b.rdb.Publish(b.t.Context(), keys.GrantsPrefix(b.on.Keys[0])+"p", "last").Err())
		require.Equal(b.t, "last", redistest.Receive(b.t, asked).Payload, "another one was not before")
	})
}

// The next turn of foreign waiters comes after twice the time, up to a second, if none of them took this one.
func TestForeignWaiters_UnusedTurnDoublesTheTimeToTheNext(t *testing.T) {
	for before, after := range map[time.Duration]time.Duration{
		100 * time.Millisecond: 200 * time.Millisecond, 800 * time.Millisecond: time.Second, time.Second: time.Second,
	} {
		eachLinedBench(t, func(b *linedBench) {
			b.take(me)
			b.enqueue(you)
			b.enqueue(them)
			require.NoError(b.t, b.rdb.Del(b.t.Context(), b.on.Keys[0]).Err())
			b.note(foreignNote{interval: before, till: -time.Millisecond, polls: 1})
			require.Equal(b.t, []EntryState{EntryGranted}, b.poll(you))
			b.noted(foreignNote{at: after, interval: after})
		})
	}
}

// That one took it is seen by the holder, by the first having polled twice, or by who releases the lock.
func TestForeignWaiters_UsedTurnRepeatsAfterARoundOfTheLine(t *testing.T) {
	taken := foreignNote{interval: time.Second, till: -time.Millisecond}
	heldByForeignWaiter := func(b *linedBench) {
		require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.on.Keys[0], "another:1", 1).Err())
	}
	for name, see := range map[string]func(b *linedBench){
		"it holds the lock": func(b *linedBench) {
			heldByForeignWaiter(b)
			require.Equal(b.t, []EntryState{EntryWaiting}, b.poll(you))
			b.noted(foreignNote{interval: 10 * time.Millisecond, left: 2})
			require.NoError(b.t, b.rdb.Del(b.t.Context(), b.on.Keys[0]).Err())
			require.Equal(b.t, []EntryState{EntryGranted}, b.poll(you))
		},
		"it gave it back in its turn": func(b *linedBench) {
			twice := taken
			twice.polls = 2
			b.note(twice)
			require.Equal(b.t, []EntryState{EntryGranted}, b.poll(you))
		},
		"it releases the lock as one of ours does": func(b *linedBench) {
			heldByForeignWaiter(b)
			require.True(b.t, b.release("another:1").Granted)
			require.Equal(b.t, you, b.holder())
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachLinedBench(t, func(b *linedBench) {
				b.take(me)
				b.enqueue(you)
				b.enqueue(them)
				require.NoError(b.t, b.rdb.Del(b.t.Context(), b.on.Keys[0]).Err())
				b.note(taken)
				see(b)
				b.noted(foreignNote{interval: 10 * time.Millisecond, left: 2})
				b.enqueue(me)
				b.release(you)
				require.Equal(b.t, them, b.holder(), "the second of the round")
				b.enqueue(you)
				require.False(b.t, b.release(them).Granted)
				require.Empty(b.t, b.holder(), "the round is over: it is the turn of foreign waiters")
				require.Equal(b.t, []string{me, you}, b.queue())
			})
		})
	}
}

// What was noted by a clock that was ahead would keep those in line, or foreign waiters, waiting for as long as it was ahead.
func TestForeignWaiters_TurnEndsThoughTheServersClockWasSetBack(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.take(me)
		b.enqueue(you)
		b.enqueue(them)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.on.Keys[0]).Err())
		b.note(foreignNote{at: time.Hour, interval: 100 * time.Millisecond, till: time.Hour, polls: 1})
		require.Equal(b.t, []EntryState{EntryGranted}, b.poll(you))
		b.noted(foreignNote{at: 200 * time.Millisecond, interval: 200 * time.Millisecond})
	})
}

func TestForeignWaiters_TurnComesThoughTheServersClockWasSetBack(t *testing.T) {
	for name, keep := range map[string]func(*Terms){"no token": func(*Terms) {}, "a token": fencing} {
		t.Run(name, func(t *testing.T) {
			eachLinedBench(t, func(b *linedBench) {
				b.terms = termsOf(keep)
				b.take(me)
				b.enqueue(you)
				b.enqueue(them)
				b.note(foreignNote{at: time.Hour, interval: time.Second})
				require.False(b.t, b.release(me).Granted)
				require.Empty(b.t, b.holder())
			})
		})
	}
}

func TestForeignWaiters_NothingIsKeptWithoutALine(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.take(me)
		b.enqueue(you)
		b.note(foreignNote{at: soon, interval: time.Second})
		require.True(b.t, b.release(me).Granted)
		b.requireNoLine()
		b.enqueue(them)
		b.note(foreignNote{at: time.Hour, interval: time.Second})
		require.False(b.t, b.release(them).Ours, "it gives up")
		b.requireNoLine()
	})
}

// requireNoLine requires that nothing is left of the line.
func (b *linedBench) requireNoLine() {
	b.t.Helper()
	line := keys.LineOf(b.on.Keys[0])
	require.Zero(b.t, b.rdb.Exists(b.t.Context(), line.Queue, line.Entries).Val())
}
