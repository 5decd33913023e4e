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

// Relay is a TCP relay between Redis clients and one server that knows where commands
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

	mu       sync.Mutex   // guards the rest; never held during I/O or hooks
	listener net.Listener // nil while refusing
	conns    map[*conn]bool
	accepted int
	cuts     int  // how often Cut was called
	deafened int  // how often Deafen was
	deaf     bool // swallow what new connections send
	rules    []*Rule
	log      []*Entry
	scripts  map[string]string        // what the server is to be taught: sources by digest
	taught   map[string]chan struct{} // by digest: closed once the server knows the script
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

// Close disconnects everybody and waits until nothing of the relay is left running.
// Commands that it still holds back or delays are gone.
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

// Refuse has new connections fail with "connection refused" if on is true, while existing
// ones live on; else it accepts again.
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

// opening is what had been done to a relay when a connection was accepted. What is done to the
// current connections until that is passed on is done to it, too.
type opening struct{ cuts, deafened int }

// opens notes that l has accepted a connection; false: the relay refuses by now.
func (r *Relay) opens(l net.Listener) (opening, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return opening{r.cuts, r.deafened}, r.listener == l
}

// serve passes one client's connection on until both ends are through with it.
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

// duplex is a connection whose two directions end one by one: a socket, or one in memory.
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

// register makes the connection known to the relay, unless that was closed, or cut, meanwhile.
func (r *Relay) register(client, server duplex, opened opening) *conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life.Err() != nil || r.cuts > opened.cuts {
		return nil
	}
	deaf := r.deaf || r.deafened > opened.deafened
	r.accepted++
	c := newConn(r, r.accepted, client, server)
	c.swallowCommands.Store(deaf)
	c.swallowReplies.Store(deaf)
	r.conns[c] = true
	return c
}

func (r *Relay) forget(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// Teach has the server know each of these scripts, sources by digest, before it is asked to run it by that: so a rule for
// the script meets its run, and not an EVALSHA that is answered with NOSCRIPT. To load all of them at once would take a
// miniredis longer than most tests do.
func (r *Relay) Teach(scripts map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scripts, r.taught = maps.Clone(scripts), make(map[string]chan struct{})
}

// teach returns when the server knows the script that the command runs by its digest, if that is to be taught. A failure
// shows in the run.
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

// load has the server load a script, unless the relay is closed before.
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

// Cut ends all current connections: their clients see EOF. What was forwarded is
// executed; what was not yet is gone.
func (r *Relay) Cut() {
	r.mu.Lock()
	r.cuts++
	r.mu.Unlock()
	for _, c := range r.current() {
		c.cut()
	}
}

// Deafen turns all current connections into black holes for good: they stay open, but
// no byte passes any more, either way. New connections are not affected.
func (r *Relay) Deafen() {
	r.mu.Lock()
	r.deafened++
	r.mu.Unlock()
	for _, c := range r.current() {
		c.deafen()
	}
}

// DeafenSubscribers is Deafen for the connections that have subscribed: no message arrives any more, but answers do.
func (r *Relay) DeafenSubscribers() {
	for _, c := range r.current() {
		c.mu.Lock()
		subscriber := c.subscriber
		c.mu.Unlock()
		if subscriber {
			c.deafen()
		}
	}
}

// BlackHole with on true is Deafen for the current connections and for all that are opened
// until it is called with false. Connections that were once deaf stay deaf.
func (r *Relay) BlackHole(on bool) {
	r.mu.Lock()
	r.deaf = on
	r.mu.Unlock()
	if on {
		r.Deafen()
	}
}

// Latency delays every command and every reply by d from now on, without changing their
// order and without holding up what follows: a round trip takes 2d longer.
func (r *Relay) Latency(d time.Duration) { r.latency.Store(int64(d)) }

// Conns is the number of connections that are open now. One that was cut counts until
// its client has closed it too.
func (r *Relay) Conns() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns)
}

// Accepted is the number of connections that were passed on so far.
func (r *Relay) Accepted() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted
}
