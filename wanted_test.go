package relock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// wantedOf returns the channel of the actor's hold on m.
func wantedOf(t *testing.T, a *locktest.Actor, m *relock.Mutex) (wanted <-chan struct{}) {
	t.Helper()
	_ = a.Call(func() error {
		wanted = m.Wanted(t.Context())
		return nil
	})
	return wanted
}

// awaitSubscribers waits until so many processes are subscribed to the announcements of waiters.
func awaitSubscribers(t *testing.T, b *kindBench, want int64) {
	t.Helper()
	channel := keys.WantedOf(b.key)
	redistest.Eventually(t, "subscribers to "+channel, func() bool {
		return b.rdbs[0].PubSubNumSub(t.Context(), channel).Val()[channel] == want
	})
}

// requireWanted waits until the channel is closed.
func requireWanted(t *testing.T, wanted <-chan struct{}) {
	t.Helper()
	select {
	case <-wanted:
	case <-time.After(locktest.SoonEnough):
		require.Fail(t, "the waiter was not noticed")
	}
}

// requireUnwanted requires that the channel is still open.
func requireUnwanted(t *testing.T, wanted <-chan struct{}) {
	t.Helper()
	select {
	case <-wanted:
		require.Fail(t, "nobody waits")
	default:
	}
}

func TestWanted_WaiterOfAnotherProcessIsNoticed(t *testing.T) {
	t.Parallel()
	eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newKindBench(t, backend, k)
		m, another := b.mutex(), b.another(relock.WithSafetyPoll(time.Hour))
		b.me.Locks(t, m)
		wanted := wantedOf(t, b.me, m)
		awaitSubscribers(t, b, 1)
		require.False(t, b.you.Tries(t, another))
		requireUnwanted(t, wanted)

		waits := b.you.Lock(t.Context(), another)
		requireWanted(t, wanted)
		b.me.Unlocks(t, m)
		require.NoError(t, locktest.OutcomeOf(t, waits))
		b.you.Unlocks(t, another)
		b.free()
		awaitSubscribers(t, b, 0)
	})
}

func TestWanted_WaiterThatCameBeforeIsNoticedAtItsNextPoll(t *testing.T) {
	t.Parallel()
	eachKindOf(t, nil, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newKindBench(t, backend, k)
		m := b.mutex()
		b.me.Locks(t, m)
		contended := make(chan struct{})
		other := k.rival(b.kind.client(t, b.rdbs, relock.WithSafetyPoll(100*time.Millisecond)), b.key,
			relock.WithHooks(relock.Hooks{Contended: func(relock.Event) { close(contended) }}))
		waits := b.you.Lock(t.Context(), other)
		<-contended
		requireWanted(t, wantedOf(t, b.me, m))
		b.me.Unlocks(t, m)
		require.NoError(t, locktest.OutcomeOf(t, waits))
		b.you.Unlocks(t, other)
		b.free()
	})
}

func TestWanted_WaiterOfThisProcessIsNoticed(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"that came before": true, "that comes later": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
				b := newKindBench(t, backend, k)
				contended := make(chan struct{})
				m, rival := b.mutex(), b.rival(relock.WithSafetyPoll(100*time.Millisecond),
					relock.WithHooks(relock.Hooks{Contended: func(relock.Event) { close(contended) }}))
				b.me.Locks(t, m)
				var wanted <-chan struct{}
				if !before {
					wanted = wantedOf(t, b.me, m)
					requireUnwanted(t, wanted)
				}
				waits := b.you.Lock(t.Context(), rival)
				<-contended
				if before {
					wanted = wantedOf(t, b.me, m)
				}
				requireWanted(t, wanted)
				b.me.Unlocks(t, m)
				require.NoError(t, locktest.OutcomeOf(t, waits))
				b.you.Unlocks(t, rival)
				b.free()
			})
		})
	}
}

// The hold of several names shrinks to one, whose waiters count from then on.
func TestWanted_WaiterForTheRestOfAMultiMutexIsNoticed(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newKindBench(t, backend, kindNamed("multi"))
		both, m := b.mutex(), b.c.Mutex(b.key)
		b.me.Locks(t, both)
		b.me.Locks(t, m)
		all := wantedOf(t, b.me, both)
		b.me.Unlocks(t, both)
		rest := wantedOf(t, b.me, m)
		other := b.kind.client(t, b.rdbs).Mutex(b.key)
		waits := b.you.Lock(t.Context(), other)
		requireWanted(t, rest)
		requireUnwanted(t, all)
		b.me.Unlocks(t, m)
		require.NoError(t, locktest.OutcomeOf(t, waits))
		b.you.Unlocks(t, other)
		b.free()
	})
}

func TestWanted_StaysOpenWithoutAHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newKindBench(t, backend, kindNamed("plain"))
		m, another := b.mutex(), b.another()
		never := wantedOf(t, b.me, m)
		b.me.Locks(t, m)
		wanted := wantedOf(t, b.me, m)
		b.me.Unlocks(t, m)
		b.free()
		awaitSubscribers(t, b, 0)
		b.you.Locks(t, another)
		waits := b.me.Lock(t.Context(), m)
		locktest.GoesOn(t, waits)
		b.you.Unlocks(t, another)
		require.NoError(t, locktest.OutcomeOf(t, waits))
		b.me.Unlocks(t, m)
		requireUnwanted(t, wanted)
		requireUnwanted(t, never)
		requireUnwanted(t, b.c.Mutex("").Wanted(t.Context()))
	})
}
