package wake_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/wake"
)

// A proxy is between client and server, and injects faults.
type proxy struct {
	net.Listener
	target string
	mu     sync.Mutex
	conns  []net.Conn // the clients' sides
	all    sync.WaitGroup
	hole   atomic.Pointer[chan struct{}] // not nil: nothing passes until it is closed
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{Listener: l, target: target}
	p.all.Go(p.accept)
	t.Cleanup(func() {
		p.heal()
		_ = l.Close()
		p.cut()
		p.all.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		client, err := p.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client)
		p.mu.Unlock()
		p.all.Go(func() { p.pass(client, server) })
		p.all.Go(func() { p.pass(server, client) })
	}
}

func (p *proxy) pass(dst io.WriteCloser, src io.Reader) {
	defer func() { _ = dst.Close() }()
	buf := make([]byte, 4096)
	for {
		n, err := src.Read(buf)
		if hole := p.hole.Load(); hole != nil {
			<-*hole
			return // these bytes are lost
		}
		if err != nil {
			return
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return
		}
	}
}

// swallow makes every connection a black hole: bytes are accepted and lost.
func (p *proxy) swallow() {
	hole := make(chan struct{})
	p.hole.Store(&hole)
}

// heal ends swallow, for new connections.
func (p *proxy) heal() {
	if hole := p.hole.Swap(nil); hole != nil {
		close(*hole)
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// inject sends bytes to the last client, as if they came from the server.
func (p *proxy) inject(t *testing.T, bytes string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.conns[len(p.conns)-1].Write([]byte(bytes))
	require.NoError(t, err)
}

// requireRecovered waits until w, after its first n wake-ups, is woken by a loss, is live again, and gets messages.
func requireRecovered(t *testing.T, w *waiter, n int64, rdb redis.UniversalClient, channel string) {
	t.Helper()
	w.waitWoken(t, n+1) // the loss, and the new confirmation
	w.waitLive(t)
	n = w.woken.Load()
	require.Eventually(t, func() bool {
		return rdb.Publish(t.Context(), channel, "0").Val() > 0 && w.woken.Load() > n
	}, soon, tick)
}

func TestConnection_KilledOneWakesAndIsReplaced(t *testing.T) {
	t.Parallel()
	for _, resp := range []int{2, 3} {
		rdb := newClient(t, &redis.Options{Addr: redistest.NewServer(t).Addr, Protocol: resp})
		h := newHub(t, rdb, config())
		a, b := subscribeLive(t, h, "a"), subscribeLive(t, h, "b")
		for range 3 {
			n, m := a.woken.Load(), b.woken.Load()
			require.NoError(t, rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
			requireRecovered(t, a, n, rdb, "a")
			requireRecovered(t, b, m, rdb, "b")
		}
	}
}

// With a context that has not ended, go-redis dials again before it returns the error of a read or a write.
func TestConnection_LossIsKnownBeforeANewOneIsDialed(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(p *proxy, h switchboard){
		"a read fails":  func(p *proxy, _ switchboard) { p.cut() },
		"a write fails": func(_ *proxy, h switchboard) { subscribe(h, "b") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, miniredis.RunT(t).Addr())
			down := new(atomic.Bool)
			rdb := newClient(t, &redis.Options{DialTimeout: time.Minute, Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				if down.Load() {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.Addr().String())
				return &brittleConn{Conn: conn, down: down}, err
			}})
			cfg := config()
			cfg.PingInterval, cfg.PongTimeout, cfg.AnswerTimeout = time.Hour, time.Minute, time.Minute
			h := newHub(t, rdb, cfg)
			w := subscribeLive(t, h, "a")
			down.Store(true)
			fails(p, h)
			w.waitNotLive(t)
			w.waitWoken(t, 1)
		})
	}
}

// A brittleConn fails writes while its host is down.
type brittleConn struct {
	net.Conn
	down *atomic.Bool
}

func (c *brittleConn) Write(b []byte) (int, error) {
	if c.down.Load() {
		return 0, syscall.ECONNRESET
	}
	return c.Conn.Write(b)
}

func TestConnection_FrozenServerIsNoticedByTheMissingPong(t *testing.T) {
	t.Parallel()
	s := redistest.NewServer(t)
	rdb := s.Client(t)
	h := newHub(t, rdb, config())
	w := subscribeLive(t, h, "a")
	require.NoError(t, s.Pause())
	w.waitNotLive(t)
	w.waitWoken(t, 1)
	require.NoError(t, s.Resume())
	requireRecovered(t, w, 1, rdb, "a")
}

func TestConnection_BlackHoleIsNoticedByTheMissingPong(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	m := miniredis.RunT(t)
	p := startProxy(t, m.Addr())
	h := newHub(t, newClient(t, &redis.Options{Addr: p.Addr().String()}), config())
	w := subscribeLive(t, h, "a")
	p.swallow()
	began := time.Now()
	w.waitNotLive(t)
	require.Less(t, time.Since(began), 3*time.Second)
	w.waitWoken(t, 1)
	p.heal()
	requireRecovered(t, w, 1, newClient(t, &redis.Options{Addr: m.Addr()}), "a")
}

func TestSuspicion_FindsASilentConnectionBeforeThePingIsDue(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	m := miniredis.RunT(t)
	p := startProxy(t, m.Addr())
	cfg := config()
	cfg.PingInterval = time.Hour
	h := newHub(t, newClient(t, &redis.Options{Addr: p.Addr().String()}), cfg)
	w := subscribeLive(t, h, "a")
	p.swallow()
	h.Suspect("a")
	w.waitNotLive(t)
	p.heal()
	requireRecovered(t, w, 1, newClient(t, &redis.Options{Addr: m.Addr()}), "a")
}

func TestConnection_DeadServerIsNotBesieged(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	m := miniredis.RunT(t)
	var dials atomic.Int64
	opt := &redis.Options{Addr: m.Addr()}
	opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	cfg := config()
	cfg.MinBackoff, cfg.MaxBackoff = 50*time.Millisecond, 200*time.Millisecond
	h := newHub(t, newClient(t, opt), cfg)
	w := subscribeLive(t, h, "a")
	m.Close()
	w.waitNotLive(t)
	w.waitWoken(t, 1)
	dials.Store(0)
	require.Never(t, func() bool {
		// Subscriptions that come and go must not lift the limit.
		subscribe(h, "b").Close()
		return dials.Load() > 15
	}, time.Second, 10*time.Millisecond, "too many attempts to connect")
	require.EqualValues(t, 2, w.woken.Load(), "a failed attempt wakes no one")
	require.NoError(t, m.Restart())
	requireRecovered(t, w, 1, newClient(t, &redis.Options{Addr: m.Addr()}), "a")
}

// restricted returns a client of a user that may not subscribe to "forbidden:…".
func restricted(t *testing.T, s *redistest.Server, admin *redis.Client) *redis.Client {
	t.Helper()
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "limited", "on", ">secret",
		"+@all", "~*", "resetchannels", "&channel:*").Err())
	return newClient(t, &redis.Options{Addr: s.Addr, Username: "limited", Password: "secret"})
}

func TestChannel_RefusedOneIsNotLiveWhileOthersAre(t *testing.T) {
	t.Parallel()
	s := redistest.NewServer(t)
	admin := s.Client(t)
	h := newHub(t, restricted(t, s, admin), config())
	var good []*waiter
	for _, name := range channelNames(20) {
		good = append(good, subscribe(h, name))
	}
	bad := []*waiter{subscribe(h, "forbidden:1"), subscribe(h, "forbidden:2")}
	good = append(good, subscribe(h, "channel:last"))
	check := func() {
		for _, w := range good {
			w.waitLive(t)
		}
		require.False(t, bad[0].Live() || bad[1].Live())
	}
	check()
	bad[0].waitWoken(t, 0)
	bad[1].waitWoken(t, 0)

	n, m := good[0].woken.Load(), bad[0].woken.Load()
	require.NoError(t, admin.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
	requireRecovered(t, good[0], n, admin, channelNames(1)[0])
	bad[0].waitWoken(t, m) // refused again
	check()
	require.Equal(t, 1, subscribers(t, admin, "channel:last"))
}

func TestChannel_RefusedOneIsRequestedAgain(t *testing.T) {
	t.Parallel()
	s := redistest.NewServer(t)
	admin := s.Client(t)
	cfg := config()
	cfg.RefusalRetry = 200 * time.Millisecond
	h := newHub(t, restricted(t, s, admin), cfg)
	w := subscribe(h, "forbidden:1")
	w.waitWoken(t, 0)
	require.False(t, w.Live())
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "limited", "allchannels").Err())
	w.waitLive(t)
	publish(t, admin, "forbidden:1")
}

// What a server that is busy refuses has nothing to do with the channel.
func TestChannel_RefusedByABusyServerIsRequestedSoon(t *testing.T) {
	t.Parallel()
	s := redistest.NewServer(t, "--lua-time-limit", "10")
	p := startProxy(t, s.Addr)
	cfg := config()
	cfg.PingInterval, cfg.RefusalRetry = time.Hour, time.Hour
	var dials atomic.Int64
	rdb := newClient(t, &redis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, "tcp", p.Addr().String())
	}})
	w := subscribeLive(t, newHub(t, rdb, cfg), "a")
	admin := s.Client(t)
	script := newClient(t, &redis.Options{Addr: s.Addr, MaxRetries: -1, ReadTimeout: time.Minute})
	done := make(chan error, 1)
	go func() { done <- script.Eval(t.Context(), "while true do end", nil).Err() }()
	busy := func() bool { return redis.HasErrorPrefix(admin.Ping(t.Context()).Err(), "BUSY") }
	require.Eventually(t, busy, soon, tick)
	p.cut()
	w.waitNotLive(t)
	before := dials.Load()
	require.Eventually(t, func() bool { return dials.Load() > before+3 }, soon, tick, "it is not asked for again")
	require.True(t, busy())
	require.NoError(t, admin.ScriptKill(t.Context()).Err())
	require.Error(t, <-done)
	require.Eventually(t, w.Live, soon, tick, "the server is well again")
}

func TestChannel_NoLongerRefusedIsLeftAlone(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	s := redistest.NewServer(t)
	admin := s.Client(t)
	cfg := config()
	cfg.RefusalRetry, cfg.PingInterval = time.Second, time.Hour
	h := newHub(t, restricted(t, s, admin), cfg)
	good, w := subscribeLive(t, h, "channel:1"), subscribe(h, "forbidden:1")
	w.waitWoken(t, 0)
	// The channel is granted and the connection lost before the retry is due.
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "limited", "allchannels").Err())
	require.NoError(t, admin.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
	w.waitLive(t)
	w.waitWoken(t, 1)
	requireRecovered(t, good, 1, admin, "channel:1")
	n := w.woken.Load()
	require.Never(t, func() bool { return w.woken.Load() != n || !w.Live() }, cfg.RefusalRetry+some, tick)
}

func TestChannel_RefusedOneIsForgottenLikeAnyOther(t *testing.T) {
	t.Parallel()
	s := redistest.NewServer(t)
	admin := s.Client(t)
	h := newHub(t, restricted(t, s, admin), config())
	w := subscribe(h, "forbidden:1")
	w.waitWoken(t, 0)
	w.Close()
	require.Eventually(t, func() bool {
		list, err := admin.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
		return err == nil && list == ""
	}, soon, tick)
}

func TestConnection_WithoutPermissionToPingKeepsSubscriptions(t *testing.T) {
	t.Parallel()
	s := redistest.NewServer(t)
	admin := s.Client(t)
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "mute", "on", ">secret",
		"allchannels", "+@all", "-ping").Err())
	cfg := config()
	cfg.PingInterval, cfg.PongTimeout = 5*time.Millisecond, soon
	rdb := newClient(t, &redis.Options{Addr: s.Addr, Username: "mute", Password: "secret"})
	w := subscribeLive(t, newHub(t, rdb, cfg), "a")
	w.neverWoken(t, 1)
	require.True(t, w.Live())
}

// A listener that accepts connections and says nothing.
func startMute(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	ended := make(chan struct{})
	all.Go(func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			all.Go(func() {
				<-ended
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		close(ended)
		all.Wait()
	})
	return l.Addr().String()
}

func TestClose_IsBoundedDuringAHangingHandshake(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	rdb := newClient(t, &redis.Options{Addr: startMute(t), ReadTimeout: time.Minute})
	cfg := config()
	cfg.CloseTimeout = 50 * time.Millisecond
	h := newHub(t, rdb, cfg)
	w := subscribe(h, "a")
	w.neverWoken(t, 0)
	began := time.Now()
	h.Close()
	require.Less(t, time.Since(began), 4*time.Second, "the handshake hangs for a minute")
}

func TestClose_IsQuickIfNobodyAnswers(t *testing.T) {
	t.Parallel()
	opt := &redis.Options{Addr: "127.0.0.1:1", DialTimeout: time.Minute}
	dialing := make(chan struct{}, 1)
	opt.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
		select {
		case dialing <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	cfg := config()
	cfg.AnswerTimeout, cfg.CloseTimeout = time.Minute, time.Minute // what it may not wait for
	h := newHub(t, newClient(t, opt), cfg)
	w := subscribe(h, "a")
	<-dialing
	began := time.Now()
	w.Close()
	subscribe(h, "b")
	h.Suspect("a")
	h.Close()
	require.Less(t, time.Since(began), soon)
}

func TestConnection_HangingAttemptIsAbandoned(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	hang := make(chan struct{})
	var dials atomic.Int64
	opt := &redis.Options{Addr: m.Addr(), DialTimeout: time.Hour}
	opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			<-hang // whatever ctx says, as a dial of go-redis with TLS
			return nil, net.ErrClosed
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	cfg := config()
	cfg.AnswerTimeout = some
	h := newHub(t, newClient(t, opt), cfg)
	defer close(hang)
	subscribeLive(t, h, "a")
	require.GreaterOrEqual(t, dials.Load(), int64(2)) // a busy machine may give up a good one, too
}

var _ wake.Subscriber = redis.UniversalClient(nil)
