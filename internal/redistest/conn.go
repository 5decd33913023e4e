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
// A connection that is cut is only closed for writing at both ends, and then drained:
// so the client sees EOF instead of a reset, and the server executes what it was sent.
type conn struct {
	relay          *Relay
	id             int
	client, server duplex

	commands *line[*exchange] // nil: the client has hung up
	replies  *line[[]byte]    // nil: hang up on the client

	swallowCommands atomic.Bool // forward nothing more
	swallowReplies  atomic.Bool // let nothing more reach the client
	muted           atomic.Bool // let no later reply reach the client

	toServer *bufio.Writer // of forward

	// greets says that a connection in memory has sent no more than its greetings. These take no time, whatever the
	// latency: go-redis waits for their answers with the mutex of a subscription held, and the clock of a bubble stands
	// still while another goroutine waits for that.
	greets atomic.Bool

	mu         sync.Mutex  // guards pending and subscriber
	pending    []*exchange // forwarded commands that wait for their replies, oldest first
	subscriber bool        // replies may be interspersed with messages, in RESP2 too
}

// deafen lets no byte pass any more, either way. The connection stays open.
func (c *conn) deafen() {
	c.swallowCommands.Store(true)
	c.swallowReplies.Store(true)
}

// exchange is a command and what becomes of it.
type exchange struct {
	command Command
	raw     []byte
	entry   *Entry
	rules   []*Rule // to apply to the reply
	replies int     // still missing; a SUBSCRIBE gets one for each channel

	// answer stands in for the reply of a command that was not forwarded; it runs
	// when everything before it has been answered.
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

// delay is how long what is sent now is under way.
func (c *conn) delay() time.Duration {
	if c.greets.Load() {
		return 0
	}
	return time.Duration(c.relay.latency.Load())
}

// run serves the connection until the client and the server have both hung up.
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

// forward sends the commands to the server, those that the rules let pass.
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

// send forwards the command. Its failure needs no care: readReplies sees it too.
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

// runAnswers gives the answers whose turn has come. c.mu is held.
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

// match returns the exchange that the frame completes; nil for a message, or for one of
// several confirmations. The exchange stays at the head of pending until finish, so that
// the answer after it keeps its place.
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
		// A server that moves a slot also unsubscribes clients that did not ask.
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

// finish takes the exchange that has its reply from the queue.
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

// hangUp ends the connection for the client once it has what was sent to it before, and
// for the server once it has executed what it was sent.
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
		deaf := c.swallowReplies.Load()
		if frame == nil {
			w.Flush()
			if !deaf && !c.muted.Load() { // a black hole does not even let the end through
				c.client.CloseWrite()
			}
			return
		}
		if !deaf {
			w.Write(frame)
		}
	}
}
