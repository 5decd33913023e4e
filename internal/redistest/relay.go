package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Relay is a TCP relay between Redis clients and one server, and parses where commands
// and replies begin and end, so that it can lose or withhold exactly the chosen one.
// Rules choose commands and say what happens to them; the methods of the relay itself
// break everything at once.
//
// It pairs replies with commands in RESP2 and RESP3, pipelined or not; pushed messages
// go through unpaired. CLIENT REPLY OFF is not understood. Its methods are safe for
// concurrent use, and may be called from hooks, Close excepted.
type Relay struct {
	Addr string // where clients connect to

	upstream string
	latency  atomic.Int64
	life     context.Context // ends with Close
	end      context.CancelFunc
	running  sync.WaitGroup

	mu         sync.Mutex   // guards the fields below; never held during I/O or hooks
	listener   net.Listener // nil while refusing
	conns      map[*conn]bool
	accepted   int
	cuts       int  // how often Cut was called
	blackHoled int  // how often BlackHoleCurrent was called
	blackHole  bool // new connections are black holes, too
	rules      []*Rule
	log        []*Entry
	scripts    map[string]string        // to be loaded on the server: sources by digest
	taught     map[string]chan struct{} // by digest: closed when the script is loaded
}

// StartRelay starts a relay to the server at addr. It needs no server yet: a client
// whose connection cannot be passed on is disconnected.
func StartRelay(addr string) (*Relay, error) {
	r := &Relay{upstream: addr, conns: map[*conn]bool{}}
	r.life, r.end = context.WithCancel(context.Background())
	if isInMemory(addr) {
		r.Addr = inMemory.newAddr()
		return r, r.Refuse(false)
	}
	var err error
	for range 5 { // another program may take the port that was just free
		var port int
		if port, err = freePort(); err != nil {
			break
		}
		r.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if err = r.Refuse(false); err == nil {
			return r, nil
		}
	}
	r.end()
	return nil, err
}

// NewRelay is StartRelay for the length of a test, which is a [Timed] one unless the server is in memory.
func NewRelay(tb testing.TB, addr string) *Relay {
	tb.Helper()
	if !isInMemory(addr) {
		Timed(tb)
	}
	r, err := StartRelay(addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.Close)
	return r
}

// Close ends all connections, and waits for all goroutines of the relay. Commands that it holds back or delays are lost.
func (r *Relay) Close() {
	r.mu.Lock()
	r.end()
	if r.listener != nil {
		r.listener.Close()
		r.listener = nil
	}
	for c := range r.conns {
		c.client.Close()
		c.server.Close()
	}
	r.mu.Unlock()
	r.running.Wait()
	if !isInMemory(r.Addr) {
		givePortBack(r.Addr)
	}
}

// Refuse with on true makes new connections fail with "connection refused". Existing connections stay. With on false the
// relay accepts again.
func (r *Relay) Refuse(on bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.life.Err() != nil:
		return errors.New("redistest: relay is closed")
	case on && r.listener != nil:
		err := r.listener.Close()
		r.listener = nil
		return err
	case !on && r.listener == nil:
		l, err := listen(r.Addr)
		if err != nil {
			return err
		}
		r.listener = l
		r.running.Go(func() { r.accept(l) })
	}
	return nil
}

func listen(addr string) (net.Listener, error) {
	if isInMemory(addr) {
		return inMemory.listen(addr, 0), nil
	}
	return net.Listen("tcp", addr)
}

func (r *Relay) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		opened, welcome := r.opens(l)
		if !welcome {
			client.Close()
			return
		}
		r.running.Go(func() { r.serve(client.(duplex), opened) })
	}
}

// opening has the numbers of calls at the time when a connection was accepted. Calls for the current connections also
// affect a connection that is accepted and not yet served.
type opening struct{ cuts, blackHoled int }

// opens records that l has accepted a connection; false: the relay refuses by now.
func (r *Relay) opens(l net.Listener) (opening, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return opening{r.cuts, r.blackHoled}, r.listener == l
}

// serve passes on one client's connection until both ends have closed it.
func (r *Relay) serve(client duplex, opened opening) {
	defer client.Close()
	ctx, cancel := context.WithTimeout(r.life, readyTimeout)
	defer cancel()
	server, err := dial(ctx, r.upstream)
	if err != nil {
		return
	}
	defer server.Close()
	if c := r.register(client, server, opened); c != nil {
		c.run()
		r.forget(c)
	}
}

// duplex is a connection whose two directions can be closed separately: a socket, or a connection in memory.
type duplex interface {
	net.Conn
	CloseWrite() error
}

func dial(ctx context.Context, addr string) (duplex, error) {
	conn, err := Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return conn.(duplex), nil
}

// register adds the connection to the relay, unless the relay was closed, or the connection cut, meanwhile.
func (r *Relay) register(client, server duplex, opened opening) *conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life.Err() != nil || r.cuts > opened.cuts {
		return nil
	}
	blackHole := r.blackHole || r.blackHoled > opened.blackHoled
	r.accepted++
	c := newConn(r, r.accepted, client, server)
	c.swallowCommands.Store(blackHole)
	c.swallowReplies.Store(blackHole)
	r.conns[c] = true
	return c
}

func (r *Relay) forget(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// Teach makes the relay load each of these scripts, sources by digest, before it forwards the first EVALSHA for it. So a
// rule for the script applies to a run, not to an EVALSHA that is answered with NOSCRIPT. To load all scripts at once
// would take a miniredis longer than most tests.
func (r *Relay) Teach(scripts map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scripts, r.taught = maps.Clone(scripts), make(map[string]chan struct{})
}

// teach loads the script of an EVALSHA, if it is one of the scripts to load. A failure shows in the run.
func (r *Relay) teach(command Command) {
	if command.Name() != "EVALSHA" {
		return
	}
	digest := command.Arg(1)
	r.mu.Lock()
	source, ours := r.scripts[digest]
	taught, begun := r.taught[digest]
	if ours && !begun {
		taught = make(chan struct{})
		r.taught[digest] = taught
	}
	r.mu.Unlock()
	switch {
	case begun:
		<-taught
	case ours:
		r.load(source)
		close(taught)
	}
}

// load loads a script on the server, unless the relay is closed before.
func (r *Relay) load(source string) {
	server, err := dial(r.life, r.upstream)
	if err != nil {
		return
	}
	defer server.Close()
	defer context.AfterFunc(r.life, func() { server.Close() })()
	fmt.Fprintf(server, "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$%d\r\n%s\r\n", len(source), source)
	_, _ = readFrame(bufio.NewReader(server))
}

func (r *Relay) current() []*conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	conns := make([]*conn, 0, len(r.conns))
	for c := range r.conns {
		conns = append(conns, c)
	}
	slices.SortFunc(conns, func(a, b *conn) int { return a.id - b.id })
	return conns
}

// Cut ends all current connections: their clients see EOF. Forwarded commands are executed, others are lost.
func (r *Relay) Cut() {
	r.mu.Lock()
	r.cuts++
	r.mu.Unlock()
	for _, c := range r.current() {
		c.cut()
	}
}

// BlackHoleCurrent turns all current connections into black holes for good: they stay open, but no byte passes in either
// direction. New connections are not affected. cut ends these connections.
func (r *Relay) BlackHoleCurrent() (cut func()) {
	r.mu.Lock()
	r.blackHoled++
	r.mu.Unlock()
	conns := r.current()
	for _, c := range conns {
		c.makeBlackHole()
	}
	return func() {
		for _, c := range conns {
			c.cut()
		}
	}
}

// SilenceSubscribers is BlackHoleCurrent for the connections that have subscribed: no message arrives any more, but answers do.
func (r *Relay) SilenceSubscribers() {
	for _, c := range r.current() {
		c.mu.Lock()
		subscriber := c.subscriber
		c.mu.Unlock()
		if subscriber {
			c.makeBlackHole()
		}
	}
}

// BlackHole with on true is BlackHoleCurrent for the current connections, and for all that are opened until BlackHole is
// called with false. A connection that is a black hole stays one.
func (r *Relay) BlackHole(on bool) {
	r.mu.Lock()
	r.blackHole = on
	r.mu.Unlock()
	if on {
		r.BlackHoleCurrent()
	}
}

// Latency delays every command and every reply by d from now on, so a round trip takes 2d longer. The order does not
// change, and the delay of one does not delay the next.
func (r *Relay) Latency(d time.Duration) { r.latency.Store(int64(d)) }

// Conns returns the number of open connections. A connection that was cut counts until its client has closed it, too.
func (r *Relay) Conns() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns)
}

// Accepted returns the number of connections that were served so far.
func (r *Relay) Accepted() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted
}
