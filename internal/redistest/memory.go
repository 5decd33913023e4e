package redistest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/relock-go/relock/internal/linktest"
)

// inMemory has the listeners in memory, by address. No listener is shared by two bubbles.
var inMemory = memoryNet{listeners: make(map[string]*memoryListener)}

// memoryNet returns loopback addresses without a listening socket: to dial one without [Dial] is refused.
type memoryNet struct {
	mu        sync.Mutex // guards the rest
	listeners map[string]*memoryListener
	count     int
}

const memoryPrefix = "127.127."

func isInMemory(addr string) bool { return strings.HasPrefix(addr, memoryPrefix) }

// newAddr returns an unused address.
func (n *memoryNet) newAddr() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	return fmt.Sprintf("%s0.%d:%d", memoryPrefix, 1+n.count/60000, 1+n.count%60000)
}

func (n *memoryNet) listen(addr string, latency time.Duration) *memoryListener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &memoryListener{addr: addr, opened: make(chan net.Conn, 1024), closed: make(chan struct{})}
	l.link = linktest.NewLink(addr, func(c net.Conn) { l.opened <- c }, func() {}, latency, 0)
	n.listeners[addr] = l
	return l
}

func (n *memoryNet) close(l *memoryListener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[l.addr] != l {
		return
	}
	delete(n.listeners, l.addr)
	close(l.closed)
	for len(l.opened) > 0 { // connections that were not accepted
		select {
		case c := <-l.opened:
			_ = c.Close()
		default:
		}
	}
}

func (n *memoryNet) dial(addr string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[addr]
	if l == nil {
		return nil, linktest.Refused(addr)
	}
	return l.link.Dial()
}

// memoryListener is a net.Listener.
type memoryListener struct {
	addr   string
	link   *linktest.Link
	opened chan net.Conn
	closed chan struct{}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.opened:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	inMemory.close(l)
	return nil
}

func (l *memoryListener) Addr() net.Addr { return linktest.Address(l.addr) }

// memoryLatency is the latency of each message in Each. So time passes even for owners that lock and unlock in a loop, and
// no two events have the same time.
const memoryLatency = 20 * time.Microsecond

// InBubble runs test in a bubble of testing/synctest, with a miniredis in memory whose messages take no time. In a bubble
// time passes only while all goroutines wait, so nothing there depends on the speed of the machine.
func InBubble(t *testing.T, test func(t *testing.T, b *Backend)) {
	t.Helper()
	inBubble(t, 0, test)
}

// aQuarterOfACentury is how far the clock of a bubble is behind. A token that Redis makes of the real time has more digits.
const aQuarterOfACentury = 25 * 365 * 24 * time.Hour

func inBubble(t *testing.T, latency time.Duration, test func(t *testing.T, b *Backend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// Time stops at the end of the test, but go-redis keeps dialing for a while after Close.
		t.Cleanup(func() { time.Sleep(10 * time.Second) })
		time.Sleep(aQuarterOfACentury)
		test(t, memoryBackend(t, latency))
	})
}

// memoryBackend starts a miniredis without a socket for the length of a test.
func memoryBackend(tb testing.TB, latency time.Duration) *Backend {
	tb.Helper()
	m := miniredis.NewMiniRedis()
	first, err := m.Dial() // the first Dial starts it
	if err != nil {
		tb.Fatal(err)
	}
	_ = first.Close()
	m.ClockTTL(true)
	l := inMemory.listen(inMemory.newAddr(), latency)
	server := m.Server()
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			server.ServeConn(c)
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		accepting.Wait() // a closed server would keep a connection that it is passed
		m.Close()
	})
	return &Backend{Name: "miniredis", Addr: l.Addr().String(), Miniredis: m, latency: latency}
}

// Dial connects to a server or relay of this package, with a socket or in memory.
func Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if isInMemory(addr) {
		return inMemory.dial(addr)
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// memoryPool is the size of a pool that is never full: go-redis waits for a free connection with timers that it reuses,
// perhaps in another bubble.
const memoryPool = 1000

// Options returns the options of a client of the server or relay at addr: go-redis' defaults, but for what a bubble
// does not allow, with these changes.
func Options(addr string, changes ...func(*redis.Options)) *redis.Options {
	opt := &redis.Options{Addr: addr}
	if isInMemory(addr) {
		opt.Dialer = Dial
		opt.PoolSize = memoryPool
		// Their setup would outlive the bubble.
		opt.MaintNotificationsConfig = &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled, EndpointType: maintnotifications.EndpointTypeNone,
		}
	}
	for _, change := range changes {
		change(opt)
	}
	if isInMemory(addr) && opt.PoolSize < memoryPool {
		panic("redistest: a pool that may be full is for EachInRealTime")
	}
	return opt
}
