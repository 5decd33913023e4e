package wake

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/guard"
)

// A link is one pub/sub connection, from its opening until anything goes wrong
// with it for the first time.
//
// go-redis would go on: it reconnects by itself and subscribes to all channels
// in one command. But then one refused channel silences all, and it is unknown whether a
// message belongs to the old or the new connection. So a link
// whose connection has failed is replaced as a whole.
//
// A link has one command in flight at most, so that an error reply, which names
// no channel, can be attributed.
type link struct {
	ps     *redis.PubSub // nil until the first command is sent
	hub    *Hub
	ctx    context.Context // done when the link has been dropped
	cancel context.CancelFunc
	events chan event // from the link's goroutines

	// The fields below are guarded by Hub.mu. The run goroutine writes them; deliver writes fresh, too.
	opened time.Time
	spoken bool      // the server has sent something
	fresh  time.Time // when something was sent or received last
	flight *command  // sent, or being sent, and not yet answered; nil if none
}

// An event is something that the server has sent, or the end of a link.
type event struct {
	msg    any   // *redis.Subscription or *redis.Pong
	refuse error // an error reply
	broken error // the connection has failed
}

// A command is a SUBSCRIBE, an UNSUBSCRIBE, the sharded kind of one, or a PING.
type command struct {
	verb string // as in redis.Subscription.Kind, or ping
	args []string
	sent time.Time
	open map[string]struct{} // the args for which no answer has arrived
}

const ping = "ping"

// Verbs are the two kinds of pub/sub: the one of any server, and the sharded one of a Cluster,
// in which messages stay within a shard.
type verbs struct {
	subscribe, unsubscribe string

	// maxArgs bounds the channels in one SUBSCRIBE or UNSUBSCRIBE. It is the
	// number of channels that each cost a round trip when one of them is
	// refused, against the number of round trips that a new connection costs
	// with many channels.
	maxArgs int
}

var (
	plain = verbs{"subscribe", "unsubscribe", 128}
	// One SSUBSCRIBE takes channels of one slot only.
	sharded = verbs{"ssubscribe", "sunsubscribe", 1}
)

func newLink(h *Hub, now time.Time) *link {
	ctx, cancel := context.WithCancel(context.Background())
	return &link{
		hub:    h,
		ctx:    ctx,
		cancel: cancel,
		events: make(chan event),
		opened: now,
	}
}

// expect makes c the command in flight. It is called before c is sent, or the answer could come first.
func (l *link) expect(c *command, now time.Time) {
	c.sent = now
	c.open = make(map[string]struct{}, len(c.args))
	for _, arg := range c.args {
		c.open[arg] = struct{}{}
	}
	l.flight, l.fresh = c, now
}

// answered records an answer, and reports whether there was a command in
// flight that asked for it.
func (l *link) answered(verb, arg string) bool {
	c := l.flight
	if c == nil || c.verb != verb {
		return false
	}
	if _, ok := c.open[arg]; !ok {
		return false
	}
	delete(c.open, arg)
	if len(c.open) == 0 {
		l.flight = nil
	}
	return true
}

// deadline returns the time at which the command in flight is overdue. Before the server has sent anything,
// dialing and authentication may take long, so AnswerTimeout alone counts. After that, a silence of PongTimeout
// is enough.
func (l *link) deadline(cfg *Config) time.Time {
	late := l.flight.sent.Add(cfg.AnswerTimeout)
	if silent := l.fresh.Add(cfg.PongTimeout); l.spoken && silent.Before(late) {
		return silent
	}
	return late
}

// send sends c in the background. The first command, a SUBSCRIBE, opens the
// connection; only then the reading starts, because a Cluster client lets the
// channel choose the node.
func (l *link) send(rdb Subscriber, c *command) {
	if l.ps != nil {
		l.hub.all.Go(func() { l.call(c) })
		return
	}
	if err := l.open(rdb); err != nil {
		l.hub.all.Go(func() { l.tell(event{broken: err}) })
		return
	}
	l.hub.all.Go(func() {
		if l.call(c) {
			l.read()
		}
	})
}

// open makes the PubSub, unless the client panics, as one behind which there is a *redis.Ring
// does: then messages cannot be had, and waiters go on polling.
func (l *link) open(rdb Subscriber) (err error) {
	defer guard.Recover(&err)
	l.ps = rdb.Subscribe(l.ctx)
	return nil
}

// call sends c, and reports a failure as an event.
func (l *link) call(c *command) (ok bool) {
	err := l.ask(c)
	if err != nil {
		l.tell(event{broken: err})
	}
	return err == nil
}

// ask calls the method of the PubSub that sends c.
func (l *link) ask(c *command) (err error) {
	defer guard.Recover(&err)
	switch c.verb {
	case plain.subscribe:
		return l.ps.Subscribe(l.ctx, c.args...)
	case plain.unsubscribe:
		return l.ps.Unsubscribe(l.ctx, c.args...)
	case sharded.subscribe:
		return l.ps.SSubscribe(l.ctx, c.args...)
	case sharded.unsubscribe:
		return l.ps.SUnsubscribe(l.ctx, c.args...)
	default:
		return l.ps.Ping(l.ctx, c.args...)
	}
}

// backToBack is the longest time between two messages that arrived together. All of them are
// delivered before the woken waiters run, because yielding takes long on a busy machine.
const backToBack = 100 * time.Microsecond

// read passes on what the server sends, until the connection fails. Messages
// are delivered on this goroutine, not as events: a waiter is there for each of them, and
// another goroutine in between would take a tenth of the time from a release to the waiter.
//
// Receive has no deadline: one would make go-redis replace the connection. It
// returns when the PubSub is closed.
func (l *link) read() {
	for {
		began := time.Now()
		msg, err := l.receive()
		var reply redis.Error
		switch {
		case err == nil:
			if m, ok := msg.(*redis.Message); ok {
				now := time.Now()
				l.hub.deliver(l, m, now)
				if now.Sub(began) > backToBack {
					runtime.Gosched() // woken waiters run first: to read again takes a system call
				}
			} else {
				l.tell(event{msg: msg})
			}
		case errors.As(err, &reply) && l.ctx.Err() == nil:
			l.tell(event{refuse: err})
		default:
			l.tell(event{broken: err})
			return
		}
	}
}

// receive waits for what the server sends next.
func (l *link) receive() (msg any, err error) {
	defer guard.Recover(&err)
	return l.ps.Receive(l.ctx)
}

// tell passes ev to the run goroutine. It blocks until that takes the event, or the link is dropped, so it never
// keeps a goroutine of a link that is not in use.
func (l *link) tell(ev event) {
	select {
	case l.events <- ev:
	case <-l.ctx.Done():
	}
}

// drop closes the connection in the background: go-redis may be holding its
// lock, to reconnect. Ending the context ends the dialing at least.
func (l *link) drop() {
	l.cancel()
	if l.ps != nil {
		l.hub.all.Go(func() {
			var err error
			defer guard.Recover(&err)
			_ = l.ps.Close()
		})
	}
}
