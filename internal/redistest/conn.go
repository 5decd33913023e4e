package redistest

import (
	"bufio"
	"sync"
	"sync/atomic"
	"time"
)

// conn is one client's connection through the relay. Four goroutines serve it:
//
//	client -> readCommands -> commands -> forward      -> server
//	client <- writeReplies <- replies  <- readReplies  <- server
//
// If a connection is cut, both ends are closed for writing, and then drained. So the client sees EOF instead of a reset,
// and the server executes the commands that it was sent.
type conn struct {
	relay          *Relay
	id             int
	client, server duplex

	commands *line[*exchange] // a nil item: the client has closed its end
	replies  *line[[]byte]    // a nil item: close the client's connection

	swallowCommands atomic.Bool // nothing more is forwarded
	swallowReplies  atomic.Bool // nothing more reaches the client
	muted           atomic.Bool // no later reply reaches the client

	toServer *bufio.Writer // of forward

	// greets: a connection in memory has sent only its greetings. These take no time, whatever the latency: go-redis holds
	// the mutex of a subscription while it waits for their answers, and the clock of a bubble stands still while another
	// goroutine waits for that mutex.
	greets atomic.Bool

	mu         sync.Mutex  // guards pending and subscriber
	pending    []*exchange // forwarded commands that wait for their replies, oldest first
	subscriber bool        // replies may be interspersed with messages, in RESP2 too
}

// makeBlackHole lets no byte pass any more, either way. The connection stays open.
func (c *conn) makeBlackHole() {
	c.swallowCommands.Store(true)
	c.swallowReplies.Store(true)
}

// exchange is a command, and the state of its reply.
type exchange struct {
	command Command
	raw     []byte
	entry   *Entry
	rules   []*Rule // to apply to the reply
	replies int     // the missing ones; a SUBSCRIBE gets one for each channel

	// answer replaces the reply of a command that was not forwarded. It runs when all earlier commands are answered.
	answer func()
}

func newConn(r *Relay, id int, client, server duplex) *conn {
	c := &conn{
		relay: r, id: id, client: client, server: server,
		commands: newLine[*exchange](), replies: newLine[[]byte](),
		toServer: bufio.NewWriter(server),
	}
	c.greets.Store(isInMemory(r.Addr))
	return c
}

// delay returns how long data that is sent now is in flight.
func (c *conn) delay() time.Duration {
	if c.greets.Load() {
		return 0
	}
	return time.Duration(c.relay.latency.Load())
}

// run serves the connection until the client and the server have both closed it.
func (c *conn) run() {
	var all sync.WaitGroup
	all.Go(c.readCommands)
	all.Go(c.forward)
	all.Go(c.readReplies)
	all.Go(c.writeReplies)
	all.Wait()
}

func (c *conn) readCommands() {
	r := bufio.NewReader(c.client)
	for {
		command, raw, err := readCommand(r)
		if name := command.Name(); err == nil && name != "HELLO" && name != "CLIENT" {
			c.greets.Store(false)
		}
		if err != nil {
			c.commands.push(nil, c.delay())
			return
		}
		c.commands.push(&exchange{command: command, raw: raw, replies: 1}, c.delay())
	}
}

// forward sends the commands that the rules let pass to the server.
func (c *conn) forward() {
	defer c.hangUpOnServer()
	for {
		ex, ok := c.commands.next(c.relay.life.Done(), c.flush)
		if !ok || ex == nil {
			c.flush()
			return
		}
		if c.swallowCommands.Load() {
			continue
		}
		if c.applyRules(ex) && !c.swallowCommands.Load() {
			c.send(ex)
		}
	}
}

func (c *conn) flush() { c.toServer.Flush() }

// send forwards the command. It ignores a failure, because readReplies gets it, too.
func (c *conn) send(ex *exchange) {
	c.relay.teach(ex.command)
	if len(ex.command) > 0 { // an empty line has no reply
		ex.entry = c.relay.record(c.id, ex.command)
		c.expect(ex)
	}
	c.toServer.Write(ex.raw)
}

// expect puts the exchange in the queue for replies.
func (c *conn) expect(ex *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name := ex.command.Name(); isConfirmation(name) {
		c.subscriber = true
		ex.replies = max(1, len(ex.command)-1)
	}
	c.pending = append(c.pending, ex)
	c.runAnswers()
}

// runAnswers runs the answers that are due. c.mu is held.
func (c *conn) runAnswers() {
	for len(c.pending) > 0 && c.pending[0].answer != nil {
		c.pending[0].answer()
		c.pending = c.pending[1:]
	}
}

func (c *conn) readReplies() {
	r := bufio.NewReader(c.server)
	for {
		frame, err := readFrame(r)
		if err != nil {
			c.hangUp()
			return
		}
		ex := c.match(frame)
		if ex == nil || c.settle(ex, string(frame)) {
			c.reply(frame)
		}
		c.finish(ex)
	}
}

// settle applies the rules for the reply, and reports whether it may go on to the client.
func (c *conn) settle(ex *exchange, reply string) bool {
	c.relay.answered(ex.entry, reply)
	for _, rule := range ex.rules {
		pass := rule.onReply(c, ex.command, reply)
		rule.fire()
		if !pass {
			return false
		}
	}
	return true
}

// match returns the exchange that the frame completes; nil for a message, or if more confirmations follow. The exchange
// stays at the head of pending until finish, so that the next answer keeps its position.
func (c *conn) match(frame []byte) *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	var head *exchange
	if len(c.pending) > 0 {
		head = c.pending[0]
	}
	kind := ""
	if frame[0] == '>' || c.subscriber && frame[0] == '*' {
		kind = pushKind(frame)
	}
	switch {
	case head == nil:
		return nil
	case isConfirmation(kind):
		// A server that moves a slot also unsubscribes clients that did not request it.
		if head.command.Name() != kind {
			return nil
		}
		head.replies--
	case frame[0] == '>', isMessage(kind):
		return nil
	default:
		head.replies = 0
	}
	if head.replies > 0 {
		return nil
	}
	return head
}

// finish removes the exchange that has its reply from the queue.
func (c *conn) finish(ex *exchange) {
	if ex == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = c.pending[1:]
	c.runAnswers()
}

func isConfirmation(kind string) bool {
	switch kind {
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE":
		return true
	}
	return false
}

func isMessage(kind string) bool {
	return kind == "MESSAGE" || kind == "PMESSAGE" || kind == "SMESSAGE"
}

// reply sends the frame to the client.
func (c *conn) reply(frame []byte) {
	if !c.muted.Load() {
		c.replies.push(frame, c.delay())
	}
}

// hangUp ends the connection for the client after the data that was sent to it, and for the server after the commands that
// were sent to it.
func (c *conn) hangUp() {
	c.swallowCommands.Store(true)
	c.replies.push(nil, c.delay())
	c.hangUpOnServer()
}

// cut is hangUp without waiting for anything.
func (c *conn) cut() {
	c.swallowCommands.Store(true)
	c.swallowReplies.Store(true)
	c.client.CloseWrite()
	c.hangUpOnServer()
}

func (c *conn) hangUpOnServer() { c.server.CloseWrite() }

func (c *conn) writeReplies() {
	w := bufio.NewWriter(c.client)
	for {
		frame, ok := c.replies.next(c.relay.life.Done(), func() { w.Flush() })
		if !ok {
			return
		}
		blackHole := c.swallowReplies.Load()
		if frame == nil {
			w.Flush()
			if !blackHole && !c.muted.Load() { // a black hole does not even let the end through
				c.client.CloseWrite()
			}
			return
		}
		if !blackHole {
			w.Write(frame)
		}
	}
}
