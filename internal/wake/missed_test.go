package wake_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// movable is an address behind which the server can be another one all of a
// sudden, as behind Sentinel: connections to the old one stay.
func movable(t *testing.T, addr string) (rdb *redis.Client, move func(to string)) {
	t.Helper()
	var current atomic.Pointer[string]
	current.Store(&addr)
	return newClient(t, &redis.Options{
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, *current.Load())
		},
	}), func(to string) { current.Store(&to) }
}

func TestMissedMessages_LeadAwayFromAFormerMaster(t *testing.T) {
	t.Parallel()
	old, fresh := miniredis.RunT(t), miniredis.RunT(t)
	rdb, move := movable(t, old.Addr())
	h := newHub(t, rdb, config())
	w := subscribeLive(t, h, "a")
	move(fresh.Addr())
	h.Missed("a") // may have been on its way
	w.neverWoken(t, 1)
	h.Missed("a")
	requireRecovered(t, w, 1, newClient(t, &redis.Options{Addr: fresh.Addr()}), "a")
}

func TestMissedMessages_DoNotMoveAConnectionThatReceivesOthers(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	rdb := newClient(t, &redis.Options{Addr: m.Addr()})
	h := newHub(t, rdb, config())
	a, b := subscribeLive(t, h, "a"), subscribeLive(t, h, "b")
	for n := range int64(5) {
		h.Missed("a")
		publish(t, rdb, "b")
		b.waitWoken(t, n+1)
	}
	a.neverWoken(t, 1)
	require.True(t, a.Live())
}

func TestMissedMessages_MoveTheConnectionOncePerInterval(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		w := subscribe(b.hub, "a")
		for range 60 { // half a second each
			synctest.Wait()
			b.hub.Missed("a")
			time.Sleep(500 * time.Millisecond)
		}
		require.Equal(t, 1+3, b.count("SUBSCRIBE"), "PingInterval is 10 s")
		require.True(t, w.Live())
	})
}

func TestMissedMessages_LookAShardUpAgain(t *testing.T) {
	t.Parallel()
	old, fresh := startMaster(t), startMaster(t)
	s, a := newShards(t, old, config())
	w := subscribeLive(t, s, "a")
	a.placeOthers(fresh, nil)
	s.Missed("a")
	s.Missed("a")
	requireShardRecovered(t, w, fresh, "a")
	require.Eventually(t, func() bool { return connections(t, old) == 0 }, soon, tick)
}
