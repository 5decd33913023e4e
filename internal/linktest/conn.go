package linktest

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// half has the data in flight in one direction of a connection.
type half struct {
	mu       sync.Mutex // may be taken under the mutex of the link, never the other way round
	chunks   []chunk
	last     time.Time // when the last chunk arrives: they do not overtake each other
	end      error     // after the chunks; nil: the connection is open
	endAt    time.Time // zero: at once, even if the link is frozen
	muted    bool      // nothing arrives any more, not even the end
	deadline time.Time
	changed  chan struct{}
}

type chunk struct {
	at   time.Time
	data []byte
}

func newHalf() *half { return &half{changed: make(chan struct{}, 1)} }

func (h *half) notify() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// add sends data, which arrives later. If the other end is closed, the sender notices at its next read.
func (h *half) add(data []byte, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end != nil || h.muted {
		return
	}
	if at.Before(h.last) && !at.IsZero() {
		at = h.last
	}
	h.last = at
	h.chunks = append(h.chunks, chunk{at, bytes.Clone(data)})
	h.notify()
}

// finish ends the connection after the data in flight, which arrives later by the given time.
func (h *half) finish(end error, late time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end != nil || h.muted {
		return
	}
	for i := range h.chunks {
		h.chunks[i].at = h.chunks[i].at.Add(late)
	}
	h.last = h.last.Add(late)
	if h.end, h.endAt = end, h.last; h.last.IsZero() {
		h.endAt = time.Now()
	}
	h.notify()
}

// drop discards the data in flight, and ends the connection.
func (h *half) drop(end error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.chunks = nil
	h.end, h.endAt = end, time.Time{}
	h.notify()
}

// read returns the data that has arrived, or how long to wait for the next data.
func (h *half) read(p []byte, still time.Time) (n int, wait time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if !h.deadline.IsZero() && !now.Before(h.deadline) {
		return 0, 0, os.ErrDeadlineExceeded
	}
	due, has := h.endAt, h.end != nil
	if len(h.chunks) > 0 {
		due, has = h.chunks[0].at, true
	}
	if has && due.Before(still) && !due.IsZero() {
		due = still
	}
	if has && !due.After(now) {
		if len(h.chunks) == 0 {
			return 0, 0, h.end
		}
		first := &h.chunks[0]
		n = copy(p, first.data)
		if first.data = first.data[n:]; len(first.data) == 0 {
			h.chunks = h.chunks[1:]
		}
		return n, 0, nil
	}
	wait = time.Duration(1<<63 - 1)
	if has {
		wait = due.Sub(now)
	}
	if !h.deadline.IsZero() {
		wait = min(wait, h.deadline.Sub(now))
	}
	return 0, wait, nil
}

// Conn is one end of a connection.
type Conn struct {
	link    *Link
	in, out *half
	client  bool
	broken  atomic.Bool
	random  *rand.Rand   // guarded by the mutex of the link
	open    *atomic.Bool // shared by both ends: more than greetings was sent
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		c.link.mu.Lock()
		still := c.link.still
		c.link.mu.Unlock()
		n, wait, err := c.in.read(p, still)
		if n > 0 || err != nil {
			if n > 0 && !c.client {
				c.link.arrives()
			}
			return n, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-c.in.changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// message is what each message of a subscription begins with, in either version of the protocol.
var message = []byte("3\r\n$7\r\nmessage\r\n")

// The first commands of go-redis. It waits for the answers while it holds the mutex of a subscription. The clock of a
// bubble stands still while another goroutine waits for that mutex. So greetings take no time, whatever fault the link
// has.
var (
	hello  = []byte("\r\nhello\r\n")
	client = []byte("\r\nclient\r\n")
)

// arrival returns when data that is sent now arrives, without faults; zero: at once. The mutex of the link is held.
func (c *Conn) arrival() time.Time {
	if !c.open.Load() {
		return time.Time{}
	}
	l := c.link
	jitter := time.Duration(c.random.Int64N(int64(l.latency)/5 + 1))
	return time.Now().Add(l.latency + jitter + l.slow)
}

// script is contained in every command that runs a script.
var script = []byte("\r\neval")

// Write implements net.Conn. It does not block.
func (c *Conn) Write(p []byte) (int, error) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.broken.Load():
		return 0, c.fault("write", syscall.ECONNRESET)
	case !c.client && time.Now().Before(l.lossy) && len(p) > 0 && bytes.HasPrefix(p[1:], message):
		return len(p), nil
	case c.client && !bytes.Contains(p, hello) && !bytes.Contains(p, client):
		c.open.Store(true)
	}
	c.out.add(p, c.arrival())
	if c.client && len(l.traps) > 0 && bytes.Contains(p, script) {
		if l.traps[0].Skip > 0 {
			l.traps[0].Skip--
			return len(p), nil
		}
		t := l.traps[0]
		l.traps = l.traps[1:]
		c.breakNow(t)
		l.sprung(t)
	}
	return len(p), nil
}

// fault is the error of an operation on a socket.
func (c *Conn) fault(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: Address(c.link.addr), Err: os.NewSyscallError(op, err)}
}

// breakNow breaks the connection. c is the client's end. The mutex of the link is held.
func (c *Conn) breakNow(t Trap) {
	switch t.Loss {
	case Command:
		c.out.drop(io.EOF)
	case Late:
		c.out.finish(io.EOF, t.Late)
	default:
		c.out.finish(io.EOF, 0)
	}
	if t.Silent {
		c.in.mute()
		return
	}
	c.broken.Store(true)
	delete(c.link.conns, c)
	c.in.drop(c.fault("read", syscall.ECONNRESET))
}

// mute stops all arrivals, without notice to either end.
func (h *half) mute() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.chunks, h.muted = nil, true
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.client {
		delete(c.link.conns, c)
		c.broken.Store(true)
	}
	c.out.finish(io.EOF, 0)
	c.in.drop(net.ErrClosed)
	return nil
}

// CloseWrite makes the other end read only the data in flight, and then the end.
func (c *Conn) CloseWrite() error {
	c.out.finish(io.EOF, 0)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.deadline = t
	c.in.notify()
	return nil
}

// SetDeadline implements net.Conn. A write does not block, so it has none.
func (c *Conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return Address(c.link.addr) }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return Address(c.link.addr) }

// Address is the address of a server.
type Address string

// Network implements net.Addr, as String does.
func (Address) Network() string  { return "tcp" }
func (a Address) String() string { return string(a) }

// SyscallConn returns a socket that has no data, or has the end of the connection: go-redis checks this before it uses an
// idle connection.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return quiet{}, c.in.end
}

type quiet struct{}

func (quiet) Control(func(fd uintptr)) error    { return nil }
func (quiet) Read(func(fd uintptr) bool) error  { return nil }
func (quiet) Write(func(fd uintptr) bool) error { return nil }
