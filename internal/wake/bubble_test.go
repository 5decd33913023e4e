package wake_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	mini "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/wake"
)

// A bubble is a hub on a fake clock. It reaches a miniredis through pipes.
type bubble struct {
	*miniredis.Miniredis
	hub *wake.Hub

	mu       sync.Mutex
	dialTime time.Duration
	conns    []net.Conn     // the hub's
	commands map[string]int // how many have arrived
}

func inBubble(t *testing.T, test func(t *testing.T, b *bubble)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{Miniredis: miniredis.NewMiniRedis(), commands: make(map[string]int)}
		// The first Dial starts the server. Start would start a listener, and the
		// fake clock stands still while a goroutine waits for a real one.
		first, err := b.Dial()
		require.NoError(t, err)
		require.NoError(t, first.Close())
		b.Server().SetPreHook(func(_ *mini.Peer, cmd string, _ ...string) bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.commands[cmd]++
			return false
		})
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: b.dial})
		b.hub = wake.NewHub(rdb, wake.Config{
			PingInterval:  10 * time.Second,
			PongTimeout:   2 * time.Second,
			AnswerTimeout: 5 * time.Second,
			Linger:        3 * time.Second,
			RefusalRetry:  time.Minute,
			MinBackoff:    50 * time.Millisecond,
			MaxBackoff:    5 * time.Second,
			CloseTimeout:  time.Second,
		})
		test(t, b)
		b.hub.Close()
		require.NoError(t, rdb.Close())
		b.Close()
	})
}

func (b *bubble) dial(context.Context, string, string) (net.Conn, error) {
	time.Sleep(b.dialTime)
	c, err := b.Dial()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = append(b.conns, c)
	return c, err
}

// cut closes all connections.
func (b *bubble) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		_ = c.Close()
	}
	b.conns = nil
}

func (b *bubble) count(cmd string) int {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.commands[cmd]
}

func (b *bubble) subscribers(channel string) int {
	synctest.Wait()
	return b.PubSubNumSub(channel)[channel]
}

func TestChannel_UnusedOneLingers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		for range 5 {
			w := subscribe(b.hub, "a")
			synctest.Wait()
			require.True(t, w.Live())
			time.Sleep(time.Second)
			w.Close()
			time.Sleep(2 * time.Second)
			require.Equal(t, 1, b.subscribers("a"))
		}
		require.Equal(t, 1, b.count("SUBSCRIBE"))
		time.Sleep(2 * time.Second)
		require.Zero(t, b.subscribers("a"))
		require.Zero(t, b.CurrentConnectionCount())
		require.Zero(t, b.count("UNSUBSCRIBE"), "the connection is closed instead")
	})
}

func TestChannel_LingeringOneIsNotTakenToANewConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		goes, stays := subscribe(b.hub, "a"), subscribe(b.hub, "b")
		synctest.Wait()
		goes.Close()
		b.cut()
		time.Sleep(time.Second)
		require.True(t, stays.Live())
		require.Zero(t, b.subscribers("a"))
	})
}

// A Close would wait for the handshake, and the clock of a bubble stands still meanwhile.
func TestConnection_IsNotClosedDuringItsHandshake(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.dialTime = 4 * time.Second
		w := subscribe(b.hub, "a")
		synctest.Wait()
		w.Close()
		time.Sleep(10 * time.Second) // it has lingered after three
		require.Zero(t, b.count("UNSUBSCRIBE"))
		require.Zero(t, b.CurrentConnectionCount())
	})
}

func TestConnection_SilentOneIsPingedOncePerInterval(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		w := subscribe(b.hub, "a")
		time.Sleep(time.Minute + time.Second)
		require.Equal(t, 6, b.count("PING"))
		for range 60 {
			time.Sleep(time.Second)
			require.Equal(t, 1, b.Publish("a", "0"))
		}
		require.Equal(t, 6, b.count("PING"), "a message is a sign of life")
		require.True(t, w.Live())
		require.Equal(t, 1, b.count("SUBSCRIBE"))
	})
}

func TestSuspicion_IsRateLimited(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		subscribe(b.hub, "a")
		synctest.Wait()
		for range 80 {
			b.hub.Suspect("a")
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, 4, b.count("PING"), "one per PongTimeout")
	})
}

func TestConnection_NewOneTakesFewCommands(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		const n = 1280
		b.dialTime = time.Second // which does not pass before all are there
		for _, name := range channelNames(n) {
			subscribe(b.hub, name)
		}
		time.Sleep(2 * time.Second)
		require.LessOrEqual(t, b.count("SUBSCRIBE"), 12)
		last := subscribe(b.hub, "last")
		synctest.Wait()
		before := b.count("SUBSCRIBE")
		b.cut()
		time.Sleep(3 * time.Second)
		require.True(t, last.Live())
		require.Len(t, b.PubSubChannels(""), n+1)
		require.LessOrEqual(t, b.count("SUBSCRIBE")-before, 12)
	})
}

func TestConnection_MayTakeLongerThanAPong(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.dialTime = 4 * time.Second // PongTimeout is 2 s, AnswerTimeout 5 s
		w := subscribe(b.hub, "a")
		time.Sleep(b.dialTime)
		synctest.Wait()
		require.True(t, w.Live())
	})
}
