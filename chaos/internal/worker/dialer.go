package worker

import (
	"bytes"
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// dialer connects through the relays, and counts open connections.
type dialer struct {
	relays map[string]string

	mu    sync.Mutex
	conns map[*countedConn]bool
}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if relay, ok := d.relays[addr]; ok {
		addr = relay
	}
	plain := net.Dialer{Timeout: 5 * time.Second}
	c, err := plain.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	counted := &countedConn{TCPConn: c.(*net.TCPConn), dialer: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns == nil {
		d.conns = make(map[*countedConn]bool)
	}
	d.conns[counted] = true
	return counted, nil
}

// open returns the number of open connections.
func (d *dialer) open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.conns)
}

// subscribers returns the number of open connections that ever subscribed to a wake-up channel.
func (d *dialer) subscribers() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for c := range d.conns {
		if c.subscribed.Load() {
			n++
		}
	}
	return n
}

// countedConn is a connection of a dialer. It embeds a TCPConn, because go-redis uses the socket.
type countedConn struct {
	*net.TCPConn
	dialer     *dialer
	subscribed atomic.Bool
}

// wakeUps are parts of the names of wake-up channels, and of no key.
var wakeUps = [][]byte{[]byte("redisson_lock__channel"), []byte("redisson_rwlock:"), []byte("relock_line_grants")}

func (c *countedConn) Write(b []byte) (int, error) {
	wakes := func(channel []byte) bool { return bytes.Contains(b, channel) }
	if slices.ContainsFunc(wakeUps, wakes) && bytes.Contains(bytes.ToLower(b), []byte("subscribe\r\n")) {
		c.subscribed.Store(true)
	}
	return c.TCPConn.Write(b)
}

func (c *countedConn) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.conns, c)
	c.dialer.mu.Unlock()
	return c.TCPConn.Close()
}
