package relock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
)

// Several keys at once: an attempt stands in one queue at a time, and asks when it has the turn in all.

// standsAt asserts how h stands in the queues of its keys.
func (h *asker) standsAt(want ...queue.State) {
	h.b.t.Helper()
	states := make([]queue.State, len(h.queueEntries))
	for i, p := range h.queueEntries {
		states[i], _ = p.ticket.State()
	}
	require.Equal(h.b.t, want, states)
}

func TestMultiAttempt_AsksWithTheTurnOnAllKeys(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "a", "b", "c")
		ended := h.locks(b.t.Context())
		b.asks(h)
		h.standsAt(queue.Turn, queue.Turn, queue.Turn)
		b.granted(h)
		b.gets(ended, true)
		h.standsAt(queue.Turn, queue.Turn, queue.Turn)
	})
}

// Asleep it is in no other waiter's way.
func TestMultiAttempt_WaitForOneKeyLeavesTheTurnsOnOthers(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "a", "b", "c")
		ended := h.locks(b.t.Context())
		b.answers(h, answer{grant: protocol.Grant{Key: 1, Holder: "other:1", TTL: time.Second}})
		h.standsAt(queue.Gone, queue.Turn, queue.Gone)
		require.Equal(t, 3, b.listens())
		time.Sleep(time.Second + 4*time.Millisecond)
		b.asks(h)
		h.standsAt(queue.Turn, queue.Turn, queue.Turn)
		b.granted(h)
		b.gets(ended, true)
	})
}

func TestMultiAttempt_KeepsTurnsOnEarlierKeysForAWhile(t *testing.T) {
	begin(t, func(b *trial) {
		holder, h := b.wants("holder", "b"), b.wants("me", "a", "b")
		require.True(t, holder.queueEntries[0].ticket.Join())
		ended := h.locks(b.t.Context())
		b.goesOn(ended)
		h.standsAt(queue.Turn, queue.Waiting)
		time.Sleep(gathering/2 - 1)
		b.goesOn(ended)
		h.standsAt(queue.Turn, queue.Waiting)
		time.Sleep(gathering/2 + 1)
		b.goesOn(ended)
		h.standsAt(queue.Gone, queue.Waiting) // it stands in the queue of the other instead
		holder.queueEntries[0].ticket.Leave()
		b.asks(h)
		h.standsAt(queue.Turn, queue.Turn)
		b.granted(h)
		b.gets(ended, true)
	})
}

// Only for later keys does one wait that keeps turns: so no circle of attempts waits for each other.
func TestMultiAttempt_DoesNotWaitForAnEarlierKeyWithALaterTurn(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "a", "b")
		ended := h.locks(b.t.Context())
		b.answers(h, answer{grant: protocol.Grant{Key: 1, Holder: "other:1", TTL: time.Second}})
		holder := b.wants("holder", "a")
		require.True(t, holder.queueEntries[0].ticket.Join())
		time.Sleep(time.Second + 4*time.Millisecond)
		b.goesOn(ended)
		b.sleeps()
		h.standsAt(queue.Waiting, queue.Gone)
		holder.queueEntries[0].ticket.Leave()
		b.granted(h)
		b.gets(ended, true)
	})
}

func TestMultiAttempt_TryLockWaitsForNoKey(t *testing.T) {
	for _, taken := range []string{"a", "b"} {
		t.Run(taken, func(t *testing.T) {
			begin(t, func(b *trial) {
				holder, h := b.wants("holder", taken), b.wants("me", "a", "b")
				require.True(t, holder.queueEntries[0].ticket.Join())
				b.gets(h.tries(), false)
				b.sleeps()
				h.nothingLeft()
			})
		})
	}
}

func TestMultiAttempt_HandOverHasTheTurnOnEachKey(t *testing.T) {
	begin(t, func(b *trial) {
		holder, h := b.wants("holder", "a", "b"), b.wants("me", "a", "b")
		for _, p := range holder.queueEntries {
			require.True(t, p.ticket.Join())
		}
		ended := h.locks(b.t.Context())
		b.goesOn(ended)
		to := holder.queueEntries[0].ticket.Reserve(func(*hold) bool { return true })
		h.isGiven()
		require.True(t, holder.queueEntries[0].ticket.Grant(to))
		b.goesOn(ended) // the turn on the other comes after it
		holder.queueEntries[1].ticket.Replace(h.queueEntries[1].ticket)
		b.gets(ended, true)
		h.standsAt(queue.Turn, queue.Turn)
	})
}

// It wants an entry in the line of a key, but in the local queue of that key another attempt is before it.
func TestMultiAttempt_HandOverWhoseLeaseHasEndedIsGivenBack(t *testing.T) {
	begin(t, func(b *trial) {
		holder, h := b.wants("holder", "a", "b"), b.wants("me", "a", "b")
		for _, p := range holder.queueEntries {
			require.True(t, p.ticket.Join())
		}
		turn := newMultiTurn(&attempt{hold: h.hold, ctx: b.t.Context(), record: h.record}).(*multiTurn)
		turn.wants = true
		asks := make(chan bool, 1)
		go func() {
			due, _ := turn.await()
			asks <- due
		}()
		synctest.Wait()
		to := holder.queueEntries[0].ticket.Reserve(func(*hold) bool { return true })
		h.late = true
		h.isGiven()
		require.True(t, holder.queueEntries[0].ticket.Grant(to))
		holder.queueEntries[1].ticket.Replace(h.queueEntries[1].ticket)
		require.True(t, <-asks) // it asks as a newcomer does
		require.Empty(t, h.name.Field)
		h.undoes(undone{"given:me", trialTTL, false})
		h.leave()
	})
}

// The last holder gave the lock back to all: others that wait for the same message have their chance first.
func TestAttempt_GivenTheTurnForOthersAsksALittleLater(t *testing.T) {
	begin(t, func(b *trial) {
		holder, h := b.wants("holder", "key"), b.wants("me", "key")
		require.True(t, holder.queueEntries[0].ticket.Join())
		holder.queueEntries[0].ticket.News()
		ctx, stop := context.WithCancel(b.t.Context())
		defer stop()
		ended := h.locks(ctx)
		b.goesOn(ended)
		q := holder.queueEntries[0].queue
		holder.queueEntries[0].ticket.GiveWay(q.Wakes(), 2)
		time.Sleep(pubsubDelay - 1)
		b.sleeps()
		require.Equal(t, 2, q.Ahead())
		time.Sleep(pubsubDelay + 1)
		b.granted(h)
		b.gets(ended, true)
		require.Zero(t, q.Ahead(), "this process has the lock again")
	})
}
