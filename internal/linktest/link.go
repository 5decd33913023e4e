// Package linktest connects clients and servers in memory, and injects faults. It is for bubbles of testing/synctest: a
// goroutine that waits for a socket stops the clock of its bubble, a goroutine that waits for a [Conn] does not.
//
// A link has a latency. It can be slow, frozen, refuse connections, or lose messages. The effect of a fault on a command
// in flight is determined: the command is lost, or its reply is lost, or the command arrives late.
package linktest

import (
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Link is the network between one client and one server. Its methods are safe for concurrent use.
type Link struct {
	addr    string         // of both ends
	serve   func(net.Conn) // makes the server serve the far end of a connection
	arrives func()         // is called before the server reads data
	latency time.Duration  // one way, without faults

	mu      sync.Mutex // guards the rest
	seed    uint64
	slow    time.Duration // is added to the latency
	still   time.Time     // until then nothing arrives
	refused time.Time     // until then no connection is made
	lossy   time.Time     // until then messages of subscriptions are lost
	traps   []Trap
	sprung  func(Trap)
	conns   map[*Conn]struct{}
	dials   int
}

// Loss is the effect of a broken connection on the commands in flight.
type Loss string

// What is lost.
const (
	Command Loss = "the command is lost"
	Reply   Loss = "the reply is lost"
	Late    Loss = "the command arrives late"
)

// Trap breaks the connection of a command.
type Trap struct {
	Loss   Loss
	Late   time.Duration // how much later the command arrives, of Late
	Silent bool          // the client is not notified that the connection is broken
	Skip   int           // how many commands pass before
}

// NewLink returns a link to the server at addr. A message takes between latency and a fifth more. serve makes the server
// serve a connection, and arrives is called before the server reads data. All random choices follow from seed.
func NewLink(addr string, serve func(net.Conn), arrives func(), latency time.Duration, seed uint64) *Link {
	return &Link{addr: addr, serve: serve, arrives: arrives, latency: latency, seed: seed, conns: make(map[*Conn]struct{})}
}

// Refused returns the error of a refused connection to addr.
func Refused(addr string) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: Address(addr), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// Dial connects, or returns an error. It does not wait: go-redis holds the mutex of a subscription while it dials, and the
// clock of a bubble stands still while another goroutine waits for that mutex.
func (l *Link) Dial() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dials++
	if time.Now().Before(l.refused) {
		return nil, Refused(l.addr)
	}
	there, back := newHalf(), newHalf()
	open := &atomic.Bool{}
	// Each direction has its own source, so the order of two messages in different directions does not change their times.
	near := &Conn{link: l, in: back, out: there, open: open, client: true, random: rand.New(rand.NewPCG(l.seed, uint64(l.dials)*2))}
	far := &Conn{link: l, in: there, out: back, open: open, random: rand.New(rand.NewPCG(l.seed, uint64(l.dials)*2+1))}
	l.conns[near] = struct{}{}
	l.serve(far)
	return near, nil
}

// Addr is the address of the server.
func (l *Link) Addr() string { return l.addr }

// Dials returns how often Dial was called.
func (l *Link) Dials() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dials
}

// Open returns how many connections the client has.
func (l *Link) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// Slow makes each message take longer by d from now on.
func (l *Link) Slow(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = d
}

// Freeze stops all arrivals for d, from now on. Data that is sent meanwhile arrives after that.
func (l *Link) Freeze(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.still = later(l.still, d)
}

// LoseMessages loses all messages of subscriptions for d, from now on.
func (l *Link) LoseMessages(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lossy = later(l.lossy, d)
}

// Refuse refuses all connections for d, from now on.
func (l *Link) Refuse(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = later(l.refused, d)
}

func later(t time.Time, d time.Duration) time.Time {
	if u := time.Now().Add(d); u.After(t) {
		return u
	}
	return t
}

// Cut breaks all connections.
func (l *Link) Cut(loss Loss, late time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.breakNow(Trap{Loss: loss, Late: late})
	}
}

// Mute stops all arrivals at the client on all current connections. Neither end is notified.
func (l *Link) Mute() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.in.mute()
	}
}

// Set sets traps, which apply to commands one after the other. sprung is called after each.
func (l *Link) Set(sprung func(Trap), traps ...Trap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sprung, l.traps = sprung, traps
}
