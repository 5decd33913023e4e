// Package linktest connects clients and servers in memory, and does harm to what is on its way. It is for bubbles of
// testing/synctest: a goroutine that waits for a socket keeps the clock of its bubble from moving on, one that waits for a
// [Conn] does not.
//
// A link takes time, and can be slow, stand still, refuse connections, or lose a message. What a fault does to a
// command that is under way is known exactly: it is lost, or its reply is, or it arrives late.
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

// Link is the way between one client and one server. Its methods are safe for concurrent use.
type Link struct {
	addr    string         // of both ends
	serve   func(net.Conn) // has the server serve the far end of a connection
	arrives func()         // is called before the server reads what has arrived
	latency time.Duration  // one way, of a message that meets no fault

	mu      sync.Mutex // guards the rest
	seed    uint64
	slow    time.Duration // is added to the latency
	still   time.Time     // until then nothing arrives
	refused time.Time     // until then no connection is made
	deaf    time.Time     // until then messages of subscriptions are lost
	traps   []Trap
	sprung  func(Trap)
	conns   map[*Conn]struct{}
	dials   int
}

// Loss is what becomes of commands on their way when a connection breaks.
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
	Silent bool          // the client does not hear that the connection is broken
	Skip   int           // commands that pass before
}

// NewLink returns a link to the server at addr, on which a message takes between latency and a fifth more. serve has the
// server serve a connection, and arrives is called before it reads what has arrived. All
// that is random comes from seed.
func NewLink(addr string, serve func(net.Conn), arrives func(), latency time.Duration, seed uint64) *Link {
	return &Link{addr: addr, serve: serve, arrives: arrives, latency: latency, seed: seed, conns: make(map[*Conn]struct{})}
}

// Refused is the error of a connection to addr that nobody accepts.
func Refused(addr string) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: Address(addr), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// Dial connects, or refuses to. It does not wait: go-redis holds a mutex while it dials for messages, and
// the clock of a bubble stands still while that is waited for.
func (l *Link) Dial() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dials++
	if time.Now().Before(l.refused) {
		return nil, Refused(l.addr)
	}
	there, back := newHalf(), newHalf()
	open := &atomic.Bool{}
	// Each direction has a source of its own: whichever of two messages is sent first, they take the same time.
	near := &Conn{link: l, in: back, out: there, open: open, client: true, random: rand.New(rand.NewPCG(l.seed, uint64(l.dials)*2))}
	far := &Conn{link: l, in: there, out: back, open: open, random: rand.New(rand.NewPCG(l.seed, uint64(l.dials)*2+1))}
	l.conns[near] = struct{}{}
	l.serve(far)
	return near, nil
}

// Addr is the address of the server.
func (l *Link) Addr() string { return l.addr }

// Dials returns how often a connection was asked for.
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

// Slow has each message take so much longer from now on; 0: no more.
func (l *Link) Slow(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = d
}

// Freeze has nothing arrive for d, from now on. What is sent meanwhile arrives then.
func (l *Link) Freeze(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.still = later(l.still, d)
}

// Deafen has all messages of subscriptions be lost for d, from now on.
func (l *Link) Deafen(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf = later(l.deaf, d)
}

// Refuse has no connection made for d, from now on.
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

// Mute stops all arrivals at the client on all present connections, without notice to either end.
func (l *Link) Mute() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.in.mute()
	}
}

// Set has commands fall into traps, one after the other. sprung is called when one has.
func (l *Link) Set(sprung func(Trap), traps ...Trap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sprung, l.traps = sprung, traps
}
