package relock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// What comes before the process is subscribed, while it is not, or late.

// sooner is sooner than the next poll of a waiter in line.
const sooner = 500 * time.Millisecond

// awaited returns a handle of another process, and a channel that is closed when it waits.
func (b *kindBench) awaited(kind string, c *relock.Client) (m *relock.Mutex, contended chan struct{}) {
	contended = make(chan struct{})
	return kindNamed(kind).mutex(c, b.key, relock.WithHooks(relock.Hooks{Contended: func(relock.Event) { close(contended) }})), contended
}

// servedSoon unlocks m and requires that the waiter gets other soon.
func (b *kindBench) servedSoon(holder *locktest.Actor, m *relock.Mutex, waiter *locktest.Actor, waits <-chan error, other *relock.Mutex) {
	b.t.Helper()
	began := time.Now()
	holder.Unlocks(b.t, m)
	require.NoError(b.t, locktest.OutcomeOf(b.t, waits))
	require.Less(b.t, time.Since(began), sooner)
	waiter.Unlocks(b.t, other)
	b.free()
}

func TestLinger_WaiterThatCameDuringTheFirstHoldIsServedSoon(t *testing.T) {
	for _, kind := range []string{"plain", "fair", "multi"} {
		for place, here := range map[string]bool{"of this process": true, "of another process": false} {
			t.Run(kind+" "+place, func(t *testing.T) {
				eachLinger(t, func(b *kindBench, m *relock.Mutex) {
					c := b.others
					if here {
						c = b.c
					}
					other, contended := b.awaited(kind, c)
					b.me.Locks(b.t, m)
					waits := b.you.Lock(b.t.Context(), other)
					<-contended
					b.servedSoon(b.me, m, b.you, waits, other)
				})
			})
		}
	}
}

func TestLinger_WaiterThatCameDuringAnInterruptionIsServedSoon(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		other, contended := b.awaited("plain", b.others)
		b.lingers(m)
		b.me.Locks(b.t, m)
		require.NoError(b.t, b.relays[0].Refuse(true))
		b.relays[0].Cut()
		waits := b.you.Lock(b.t.Context(), other)
		<-contended
		require.NoError(b.t, b.relays[0].Refuse(false))
		awaitSubscribers(b.t, b, 1)
		b.servedSoon(b.me, m, b.you, waits, other)
	})
}

// Redis executed the rename before the waiter came.
func TestLinger_LateAnswerDoesNotHideAnAnnouncedWaiter(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		other, contended := b.awaited("plain", b.others)
		executed := make(chan struct{})
		b.relays[0].After(b.runs(protocol.RenameScript), func(redistest.Command, string) {
			close(executed)
			<-contended
		})
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
		<-executed
		b.you.Locks(b.t, m)
		wanted := wantedOf(b.t, b.you, m)
		waits := b.me.Lock(b.t.Context(), other)
		requireWanted(b.t, wanted)
		b.servedSoon(b.you, m, b.me, waits, other)
	})
}

func TestLinger_NotForLongWithoutAnAnswerToTheSubscription(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		held := b.relays[0].HoldBackSilently(redistest.Named("subscribe"))
		defer held.Release()
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
		began := time.Now()
		b.gone()
		require.Less(b.t, time.Since(began), 4*time.Second)
	})
}

func TestLinger_TryLockWaitsForTheReleaseOfALockThatItCannotTakeOver(t *testing.T) {
	for name, opt := range map[string]relock.MutexOption{
		"WithFencing": relock.WithFencing(), "WithoutRenewal": relock.WithoutRenewal(), "a short TTL": relock.WithTTL(3 * time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			eachLinger(t, func(b *kindBench, m *relock.Mutex) {
				other := b.mutex(opt, relock.WithLinger(0))
				for _, a := range []*locktest.Actor{b.me, b.you} {
					b.lingers(m)
					require.True(b.t, a.Tries(b.t, other))
					a.Unlocks(b.t, other)
					b.free()
				}
			})
		})
	}
}

func TestLinger_TryLockAfterTheKeyWasDeletedGetsTheLock(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.me.Locks(b.t, m)
		require.NoError(b.t, b.rdbs[0].Del(b.t.Context(), b.key).Err())
		b.me.Unlocks(b.t, m)
		// The question for waiters finds that the key is gone.
		redistest.Eventually(b.t, "the rename", func() bool { return b.relays[0].Count(b.runs(protocol.RenameScript)) == 1 })
		redistest.Eventually(b.t, "the lock", func() bool {
			held := b.me.Tries(b.t, m)
			if held && b.rdbs[0].Exists(b.t.Context(), b.key).Val() == 0 { // taken over before the answer
				_ = b.me.Call(m.Unlock)
				return false
			}
			return held
		})
		b.me.Unlocks(b.t, m)
	})
}

func TestLinger_CloseReleasesAllThatLinger(t *testing.T) {
	eachLinger(t, func(b *kindBench, _ *relock.Mutex) {
		for i := range 300 {
			m := b.c.Mutex(fmt.Sprintf("%s-%d", b.key, i), relock.WithLinger(5*time.Second))
			b.me.Locks(b.t, m)
			b.me.Unlocks(b.t, m)
		}
		require.NoError(b.t, b.c.Close())
		b.gone()
	})
}
