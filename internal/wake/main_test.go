package wake_test

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/wake"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const (
	soon = 10 * time.Second       // for what must happen
	tick = 2 * time.Millisecond   // how often to look
	some = 100 * time.Millisecond // for what must not happen
)

// config is quick enough for tests and slow enough for a busy machine.
func config() wake.Config {
	return wake.Config{
		PingInterval:  300 * time.Millisecond,
		PongTimeout:   500 * time.Millisecond,
		AnswerTimeout: 3 * time.Second,
		RefusalRetry:  time.Minute,
		MinBackoff:    5 * time.Millisecond,
		MaxBackoff:    100 * time.Millisecond,
		CloseTimeout:  5 * time.Second,
	}
}

// newHub returns a hub that is closed before its client is.
func newHub(t *testing.T, rdb redis.UniversalClient, cfg wake.Config) *wake.Hub {
	t.Helper()
	h := wake.NewHub(rdb, cfg)
	t.Cleanup(h.Close)
	return h
}

func newClient(t *testing.T, opt *redis.Options) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(opt)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// onEveryServer runs test against miniredis and redis-server, and through every
// kind of client.
func onEveryServer(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient)) {
	for _, resp := range []int{2, 3} {
		t.Run(fmt.Sprintf("miniredis/RESP%d", resp), func(t *testing.T) {
			test(t, newClient(t, &redis.Options{Addr: miniredis.RunT(t).Addr(), Protocol: resp}))
		})
		t.Run(fmt.Sprintf("redis/RESP%d", resp), func(t *testing.T) {
			test(t, newClient(t, &redis.Options{Addr: redistest.NewServer(t).Addr, Protocol: resp}))
		})
	}
	t.Run("miniredis/cluster", func(t *testing.T) {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{miniredis.RunT(t).Addr()}})
		t.Cleanup(func() { _ = rdb.Close() })
		test(t, rdb)
	})
}

// A waiter counts its wake-ups.
type waiter struct {
	*wake.Subscription
	woken atomic.Int64
}

// A switchboard is a Hub or Shards.
type switchboard interface {
	Subscribe(name string, wake func()) *wake.Subscription
}

func subscribe(h switchboard, channel string) *waiter {
	w := new(waiter)
	w.Subscription = h.Subscribe(channel, func() { w.woken.Add(1) })
	return w
}

// subscribeLive returns a waiter that is live and has had its wake for that.
func subscribeLive(t *testing.T, h switchboard, channel string) *waiter {
	t.Helper()
	w := subscribe(h, channel)
	w.waitLive(t)
	w.waitWoken(t, 0)
	return w
}

func (w *waiter) waitLive(t *testing.T) {
	t.Helper()
	require.Eventually(t, w.Live, soon, tick, "never live")
}

func (w *waiter) waitNotLive(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return !w.Live() }, soon, tick, "live for ever")
}

// waitWoken waits for a wake-up after the first n.
func (w *waiter) waitWoken(t *testing.T, n int64) {
	t.Helper()
	require.Eventually(t, func() bool { return w.woken.Load() > n }, soon, tick, "not woken")
}

func (w *waiter) neverWoken(t *testing.T, n int64) {
	t.Helper()
	require.Never(t, func() bool { return w.woken.Load() != n }, some, tick, "woken")
}

func publish(t *testing.T, rdb redis.UniversalClient, channel string) {
	t.Helper()
	n, err := rdb.Publish(t.Context(), channel, "0").Result()
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

func subscribers(t *testing.T, rdb redis.UniversalClient, channel string) int {
	t.Helper()
	n, err := rdb.PubSubNumSub(t.Context(), channel).Result()
	require.NoError(t, err)
	return int(n[channel])
}

func channelNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "channel:{" + strconv.Itoa(i) + "}"
	}
	return names
}
