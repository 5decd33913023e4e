package wake_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/wake"
)

func TestSubscription_ConfirmationMakesItLiveAndWakesIt(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := newHub(t, rdb, config())
		var s *wake.Subscription
		stored := make(chan struct{})
		woken := make(chan bool, 8)
		s = h.Subscribe("a", func() { <-stored; woken <- s.Live() })
		close(stored)
		select {
		case live := <-woken:
			require.True(t, live, "woken before it was live")
		case <-time.After(soon):
			t.Fatal("not woken")
		}
		require.Equal(t, 1, subscribers(t, rdb, "a"))
	})
}

func TestSubscription_MessageWakesAllOfItsChannel(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	onEveryServer(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := newHub(t, rdb, config())
		a1 := subscribeLive(t, h, "a")
		a2 := subscribe(h, "a")
		b := subscribeLive(t, h, "b")
		publish(t, rdb, "a")
		a1.waitWoken(t, 1)
		a2.waitWoken(t, 0)
		b.neverWoken(t, 1)
	})
}

func TestSubscription_OfAConfirmedChannelIsLiveAtOnce(t *testing.T) {
	t.Parallel()
	h := newHub(t, newClient(t, &redis.Options{Addr: miniredis.RunT(t).Addr()}), config())
	subscribeLive(t, h, "a")
	require.True(t, subscribe(h, "a").Live())
}

func TestSubscription_ClosedIsNeitherLiveNorWoken(t *testing.T) {
	t.Parallel()
	rdb := newClient(t, &redis.Options{Addr: miniredis.RunT(t).Addr()})
	h := newHub(t, rdb, config())
	stays := subscribeLive(t, h, "a")
	goes := subscribe(h, "a")
	goes.Close()
	goes.Close()
	require.False(t, goes.Live())
	require.True(t, stays.Live(), "closing twice must not count twice")
	publish(t, rdb, "a")
	stays.waitWoken(t, 1)
	require.Zero(t, goes.woken.Load())
}

func TestChannel_UnusedOneIsUnsubscribedWhileOthersStay(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := newHub(t, rdb, config())
		a, b := subscribeLive(t, h, "a"), subscribeLive(t, h, "b")
		a.Close()
		require.Eventually(t, func() bool { return subscribers(t, rdb, "a") == 0 }, soon, tick)
		require.True(t, b.Live())
		require.Equal(t, 1, subscribers(t, rdb, "b"))

		a = subscribeLive(t, h, "a")
		publish(t, rdb, "a")
		a.waitWoken(t, 1)
	})
}

func TestConnection_DoesNotExistWithoutSubscriptions(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	h := newHub(t, newClient(t, &redis.Options{Addr: m.Addr()}), config())
	require.Zero(t, m.CurrentConnectionCount())
	for range 3 {
		w := subscribeLive(t, h, "a")
		require.Equal(t, 1, m.CurrentConnectionCount())
		w.Close()
		require.Eventually(t, func() bool { return m.CurrentConnectionCount() == 0 }, soon, tick)
	}
}

func TestChannel_ManyShareOneConnectionAndLeaveNothing(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	const n = 10_000
	rdb := redistest.NewServer(t).Client(t)
	h := newHub(t, rdb, config())
	began := time.Now()
	waiters := make([]*waiter, n)
	for i, name := range channelNames(n) {
		waiters[i] = subscribe(h, name)
	}
	for _, w := range waiters {
		w.waitLive(t)
	}
	t.Logf("%d channels confirmed after %v", n, time.Since(began))
	clients, err := rdb.ClientList(t.Context()).Result()
	require.NoError(t, err)
	require.Contains(t, clients, "sub=10000 ")

	for _, w := range waiters[1:] {
		w.Close()
	}
	require.Eventually(t, func() bool {
		return len(rdb.PubSubChannels(t.Context(), "*").Val()) == 1
	}, soon, tick)
	require.True(t, waiters[0].Live())
}

func TestSubscription_MayComeAndGoConcurrently(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := newHub(t, rdb, config())
		names := channelNames(8)
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				for range 30 {
					name := names[rand.IntN(len(names))]
					w := subscribe(h, name)
					h.Suspect(name)
					if rand.IntN(2) == 0 {
						w.waitLive(t)
						h.Missed(name)
					}
					w.Close()
				}
			})
		}
		all.Wait()
		require.Eventually(t, func() bool {
			return len(rdb.PubSubChannels(t.Context(), "*").Val()) == 0
		}, soon, tick)
		w := subscribeLive(t, h, names[0])
		publish(t, rdb, names[0])
		w.waitWoken(t, 1)
	})
}

func TestSubscription_NoneIsLiveAfterClose(t *testing.T) {
	t.Parallel()
	onEveryServer(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := newHub(t, rdb, config())
		before := subscribeLive(t, h, "a")
		h.Close()
		before.waitWoken(t, 1)
		require.False(t, before.Live())
		after := subscribe(h, "a")
		require.False(t, after.Live())
		h.Suspect("a")
		h.Close()
		after.Close()
		before.Close()
		require.Eventually(t, func() bool { return subscribers(t, rdb, "a") == 0 }, soon, tick)
	})
}
