package redistest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Servers and relays in memory are for bubbles of testing/synctest: a goroutine that waits for a socket keeps the
// clock of its bubble from moving on, one that waits for a memoryConn does not.

// inMemory are the listeners in memory, by address. A bubble shares none of them with another.
var inMemory = memoryNet{listeners: make(map[string]*memoryListener)}

// memoryNet hands out addresses of the loopback at which nobody listens: who dials one past [Dial] is refused.
type memoryNet struct {
	mu        sync.Mutex // guards the rest
	listeners map[string]*memoryListener
	count     int
}

const memoryPrefix = "127.127."

func isInMemory(addr string) bool { return strings.HasPrefix(addr, memoryPrefix) }

// newAddr returns an address that nobody else has.
func (n *memoryNet) newAddr() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	return fmt.Sprintf("%s0.%d:%d", memoryPrefix, 1+n.count/60000, 1+n.count%60000)
}

func (n *memoryNet) listen(addr string, latency time.Duration) *memoryListener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &memoryListener{addr: memoryAddr(addr), latency: latency, opened: make(chan *memoryConn, 1024), closed: make(chan struct{})}
	n.listeners[addr] = l
	return l
}

func (n *memoryNet) close(l *memoryListener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[string(l.addr)] != l {
		return
	}
	delete(n.listeners, string(l.addr))
	close(l.closed)
	for len(l.opened) > 0 { // whom nobody has accepted
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
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: memoryAddr(addr), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	there, back := newMemoryHalf(), newMemoryHalf()
	greeted := new(atomic.Bool)
	near := &memoryConn{in: back, out: there, remote: l.addr, latency: l.latency, greeted: greeted, client: true}
	l.opened <- &memoryConn{in: there, out: back, remote: l.addr, latency: l.latency, greeted: greeted}
	return near, nil
}

// memoryListener is a net.Listener. Its addr is that of both ends of its connections.
type memoryListener struct {
	addr    memoryAddr
	latency time.Duration // of each message
	opened  chan *memoryConn
	closed  chan struct{}
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

func (l *memoryListener) Addr() net.Addr { return l.addr }

type memoryAddr string

func (memoryAddr) Network() string  { return "tcp" }
func (a memoryAddr) String() string { return string(a) }

// memoryHalf is one direction of a connection: what was written and not yet read.
type memoryHalf struct {
	mu       sync.Mutex // guards the rest
	chunks   []memoryChunk
	end      error // of the reader, once all is read; nil: it goes on
	deadline time.Time
	news     chan struct{} // has a token when the rest may have changed
}

// memoryChunk is what was written at once, and when it arrives.
type memoryChunk struct {
	at   time.Time
	data []byte
}

func newMemoryHalf() *memoryHalf { return &memoryHalf{news: make(chan struct{}, 1)} }

// change makes a change, and wakes the reader.
func (h *memoryHalf) change(f func()) {
	h.mu.Lock()
	f()
	h.mu.Unlock()
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// finish ends the direction: what was written before is still read, unless drop is true.
func (h *memoryHalf) finish(end error, drop bool) {
	h.change(func() {
		if drop {
			h.chunks = nil
		}
		if h.end == nil || drop {
			h.end = end
		}
	})
}

// take reads what has arrived. If that is nothing, it returns when to look again; zero: at the next change.
func (h *memoryHalf) take(p []byte) (n int, again time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if again = h.deadline; !again.IsZero() && !now.Before(again) {
		return 0, again, os.ErrDeadlineExceeded
	}
	if len(h.chunks) == 0 {
		return 0, again, h.end
	}
	first := &h.chunks[0]
	if first.at.After(now) {
		if again.IsZero() || first.at.Before(again) {
			again = first.at
		}
		return 0, again, nil
	}
	n = copy(p, first.data)
	if first.data = first.data[n:]; len(first.data) == 0 {
		h.chunks = h.chunks[1:]
	}
	return n, again, nil
}

// await returns at a change, or at the time again.
func (h *memoryHalf) await(again time.Time) {
	if again.IsZero() {
		<-h.news
		return
	}
	timer := time.NewTimer(time.Until(again))
	defer timer.Stop()
	select {
	case <-h.news:
	case <-timer.C:
	}
}

// memoryConn is one end of a connection. It has as much room as is written to it, so a write never waits.
type memoryConn struct {
	in, out *memoryHalf
	remote  memoryAddr
	client  bool
	latency time.Duration
	greeted *atomic.Bool // of both ends: more than greetings has been sent
}

func (c *memoryConn) Read(p []byte) (int, error) {
	for {
		n, again, err := c.in.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		c.in.await(again)
	}
}

// isGreeting reports whether p is what go-redis sends first. It waits for the answers with the mutex of a subscription
// held, and the clock of a bubble stands still while another goroutine waits for that. So greetings take no time.
func isGreeting(p []byte) bool {
	return bytes.Contains(p, []byte("\r\nhello\r\n")) || bytes.Contains(p, []byte("\r\nclient\r\n"))
}

func (c *memoryConn) Write(p []byte) (n int, err error) {
	if c.client && !isGreeting(p) {
		c.greeted.Store(true)
	}
	at := time.Now()
	if c.greeted.Load() {
		at = at.Add(c.latency)
	}
	c.out.change(func() {
		if err = c.out.end; err == nil {
			c.out.chunks = append(c.out.chunks, memoryChunk{at, bytes.Clone(p)})
			n = len(p)
		}
	})
	if err != nil {
		err = &net.OpError{Op: "write", Net: "tcp", Addr: c.remote, Err: os.NewSyscallError("write", syscall.EPIPE)}
	}
	return n, err
}

func (c *memoryConn) Close() error {
	c.in.finish(net.ErrClosed, true)
	return c.CloseWrite()
}

func (c *memoryConn) CloseWrite() error {
	c.out.finish(io.EOF, false)
	return nil
}

func (c *memoryConn) SetReadDeadline(t time.Time) error {
	c.in.change(func() { c.in.deadline = t })
	return nil
}

func (c *memoryConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *memoryConn) SetWriteDeadline(time.Time) error { return nil }
func (c *memoryConn) LocalAddr() net.Addr              { return c.remote }
func (c *memoryConn) RemoteAddr() net.Addr             { return c.remote }

// SyscallConn fails once the other end has hung up, and else returns a socket with nothing to read: go-redis asks an
// idle connection which of the two it is.
func (c *memoryConn) SyscallConn() (syscall.RawConn, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return quietSocket{}, c.in.end
}

type quietSocket struct{}

func (quietSocket) Control(func(fd uintptr)) error    { return nil }
func (quietSocket) Read(func(fd uintptr) bool) error  { return nil }
func (quietSocket) Write(func(fd uintptr) bool) error { return nil }

// memoryLatency is how long each message of Each is under way. So time passes for those who lock and unlock in a loop,
// too, and no two things happen at the same time.
const memoryLatency = 20 * time.Microsecond

// InBubble runs test in a bubble of testing/synctest, with a miniredis in memory whose messages take no time. In a bubble
// time passes only while all goroutines wait, so nothing there depends on the speed of the machine.
func InBubble(t *testing.T, test func(t *testing.T, b *Backend)) {
	t.Helper()
	inBubble(t, 0, test)
}

// aQuarterOfACentury is how late the clock of a bubble is. What Redis makes of its time has more digits by now.
const aQuarterOfACentury = 25 * 365 * 24 * time.Hour

func inBubble(t *testing.T, latency time.Duration, test func(t *testing.T, b *Backend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// Time stops when the test is over, and go-redis goes on dialing for a while after Close.
		t.Cleanup(func() { time.Sleep(10 * time.Second) })
		time.Sleep(aQuarterOfACentury)
		test(t, memoryBackend(t, latency))
	})
}

// memoryBackend starts a miniredis without a socket for the length of a test.
func memoryBackend(tb testing.TB, latency time.Duration) *Backend {
	tb.Helper()
	m := miniredis.NewMiniRedis()
	first, err := m.Dial() // to be dialed starts it
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
		accepting.Wait() // a server that is closed would keep what it is given
		m.Close()
	})
	return &Backend{Name: "miniredis", Addr: l.Addr().String(), Miniredis: m, latency: latency}
}

// Dial connects to a server or relay of this package, whether it has a socket or not.
func Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if isInMemory(addr) {
		return inMemory.dial(addr)
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// memoryPool is the size of a pool that is never full: go-redis waits for a place with timers that it keeps for the next
// to wait, who may be in another bubble.
const memoryPool = 1000

// Options returns the options of a client of the server or relay at addr: go-redis' defaults, but for what a bubble
// does not allow, with these changes.
func Options(addr string, changes ...func(*redis.Options)) *redis.Options {
	opt := &redis.Options{Addr: addr}
	if isInMemory(addr) {
		opt.Dialer = Dial
		opt.PoolSize, opt.PipelinePoolSize = memoryPool, memoryPool
		// Their set-up would outlive the bubble.
		opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	}
	for _, change := range changes {
		change(opt)
	}
	if isInMemory(addr) && opt.PoolSize < memoryPool {
		panic("redistest: a pool that may be full is for EachInRealTime")
	}
	return opt
}
