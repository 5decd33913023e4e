package protocol

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// Entries of processes that are not subscribed are skipped, and set aside: see line_prelude.lua.

// of has fn act as another process.
func (b *linedBench) of(process string, fn func()) {
	before := b.lined
	defer func() { b.lined = before }()
	b.lined = NewLined(b.Plain, process)
	fn()
}

// dies makes n entries of n killed processes in the line of a lock that me holds.
func (b *linedBench) dies(n int) {
	b.t.Helper()
	b.take(me)
	var closed []string
	for i := range n {
		process := fmt.Sprint("dead", i)
		channel := keys.GrantsPrefix(b.on.Keys[0]) + process
		grants := b.rdb.Subscribe(b.t.Context(), channel)
		_, err := grants.Receive(b.t.Context())
		require.NoError(b.t, err)
		b.of(process, func() { b.enqueue(fmt.Sprintf("uuid-%s:1", process)) })
		require.NoError(b.t, grants.Close())
		closed = append(closed, channel)
	}
	redistest.Eventually(b.t, "no one is subscribed", func() bool {
		for _, n := range b.rdb.PubSubNumSub(b.t.Context(), closed...).Val() {
			if n > 0 {
				return false
			}
		}
		return true
	})
}

// commands counts the commands of scripts while fn runs, which only miniredis reports.
func (b *linedBench) commands(mini *server.Server, fn func()) int {
	b.t.Helper()
	n := 0
	mini.SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
		switch cmd {
		case "EVAL", "EVALSHA", "HELLO", "CLIENT", "PING": // of a client, which may just be opening a connection
		default:
			n++
		}
		return false
	})
	defer mini.SetPreHook(nil)
	fn()
	return n
}

func TestRelease_PaysForASkippedEntryOnce(t *testing.T) {
	costs := make(map[int]int)
	for _, dead := range []int{0, 30} {
		backend := redistest.Mini(t)
		bench := newBench(t, backend.Client(t))
		b := &linedBench{bench: bench, lined: NewLined(bench.Plain, "p"), on: bench.target(1), terms: termsOf()}
		b.dies(dead)
		b.enqueue(you)
		b.enqueue(them)
		b.note(foreignNote{at: soon, interval: time.Second})
		require.True(t, b.release(me).Granted)
		require.Equal(t, you, b.holder())
		require.Equal(t, []string{them}, b.queue())
		costs[dead] = b.commands(backend.Miniredis.Server(), func() { b.release(you) })
		require.Equal(t, them, b.holder())
	}
	require.NotZero(t, costs[0], "the server reported no command")
	require.Equal(t, costs[0], costs[30], "commands of a release")
}

func TestSkippedEntry_KeepsItsPlace(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.dies(2)
		b.enqueue(you)
		b.release(me)
		require.Equal(b.t, you, b.holder())
		for round := range 2 { // the second one comes back to a line that was empty meanwhile
			process := fmt.Sprint("dead", round)
			want := []string{fmt.Sprintf("uuid-%s:1", process), fmt.Sprint("uuid-a:", round), fmt.Sprint("uuid-b:", round)}
			b.enqueue(want[1])
			b.enqueue(want[2])
			b.of(process, func() { require.Equal(b.t, []EntryState{EntryWaiting}, b.poll(want[0])) })
			require.Equal(b.t, want, b.queue())
			for _, next := range want {
				b.release(b.holder())
				require.Equal(b.t, next, b.holder())
			}
			require.Empty(b.t, b.queue())
		}
		b.release(b.holder())
		b.requireFree()
	})
}

// The entries behind it may have shorter leases.
func TestSkippedEntry_LivesForItsOwnLease(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.dies(1)
		b.enqueue(you)
		b.release(me)
		b.terms.SafetyPoll = MinTTL / 2
		b.enqueue(them)
		b.enqueue("uuid-e:1")
		require.Greater(b.t, b.rdb.PTTL(b.t.Context(), b.entries()).Val(), time.Second)
	})
}

func TestSkippedEntry_KeepsItsPlaceIfItsRequestComesAgain(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.dies(1)
		b.enqueue(you)
		b.enqueue(them)
		b.release(me)
		b.of("dead0", func() { b.enqueue("uuid-dead0:1") })
		require.Equal(b.t, []string{"uuid-dead0:1", them}, b.queue())
	})
}

func TestSkippedEntry_LeavesNothingWhenItIsGivenUp(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.dies(2)
		b.enqueue(you)
		b.release(me)
		for _, field := range []string{"uuid-dead0:1", "uuid-dead1:1", you} {
			b.release(field)
		}
		b.requireFree()
	})
}

// The line never ends, so its keys never expire: what is set aside has to end by itself.
func TestSkippedEntry_IsDroppedWhenItsTimeIsOver(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		ctx := b.t.Context()
		b.dies(2)
		b.enqueue(you)
		b.enqueue(them)
		b.release(me)
		for field, entry := range b.rdb.HGetAll(ctx, b.entries()).Val() {
			if parts := strings.SplitN(entry, " ", 4); parts[0] == "aside" && field != "uuid-dead1:1" {
				entry = strings.Join([]string{parts[0], parts[1], "1", parts[3]}, " ")
				require.NoError(b.t, b.rdb.HSet(ctx, b.entries(), field, entry).Err())
			}
		}
		require.NoError(b.t, b.rdb.HSet(ctx, b.entries(), "aside", 1).Err())
		unsubscribe := b.listen()
		b.enqueue("uuid-3:1")
		b.poll(them)
		unsubscribe()
		b.release(you)
		left := b.rdb.HGetAll(ctx, b.entries()).Val()
		require.NotContains(b.t, left, "uuid-dead0:1")
		require.NotContains(b.t, left, keys.GrantsPrefix(b.on.Keys[0])+"dead0")
		require.Contains(b.t, left, "uuid-dead1:1", "it may come back")
	})
}

// Its process may be dead, and then nothing else removes the key.
func TestSkippedEntry_IsKeptNoLongerThanItsLease(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.terms = termsOf(func(s *Terms) { s.TTL = time.Second })
		b.dies(1)
		b.release(me)
		require.Empty(b.t, b.queue(), "it was skipped")
		require.Positive(b.t, b.ttl(b.entries()))
		require.LessOrEqual(b.t, b.ttl(b.entries()), time.Second)
	})
}

func TestSkippedEntry_LeavesNoKeyWithoutExpiry(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.dies(2)
		b.enqueue(you)
		require.NoError(b.t, b.rdb.Persist(b.t.Context(), b.entries()).Err())
		b.release(me)
		require.Equal(b.t, you, b.holder())
		require.InDelta(b.t, entryLeaseMax, b.ttl(b.entries()), float64(2*time.Second))
	})
}

// A process that was killed cannot ask when foreign waiters leave the lock: the first process that can is notified.
func TestRelease_AsksTheFirstThatIsSubscribedWhenForeignWaitersHaveTheirTurn(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.dies(1)
		all, grants := b.messagesOn(b.on.Channels[0]), b.messagesOn(b.lined.GrantsFor(b.on.Keys[0]))
		b.enqueue(you)
		b.note(foreignNote{interval: 400 * time.Millisecond})
		require.Equal(b.t, Released{Ours: true, Receivers: 1}, b.release(me))
		require.Empty(b.t, b.holder())
		require.Equal(b.t, "1", redistest.Receive(b.t, all).Payload)
		require.Equal(b.t, "ask", redistest.Receive(b.t, grants).Payload)
	})
}

// If all in line are gone, there is no one to ask, and the lock is free for all.
func TestRelease_LeavesNoTurnToForeignWaitersIfNobodyInLineIsSubscribed(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.dies(1)
		all := b.messagesOn(b.on.Channels[0])
		b.note(foreignNote{interval: 400 * time.Millisecond})
		require.Equal(b.t, Released{Ours: true, Receivers: 1}, b.release(me))
		require.Equal(b.t, "0", redistest.Receive(b.t, all).Payload)
		b.take(you)
	})
}
