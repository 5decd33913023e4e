package wake

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/goroutine"
)

// A link is one pub/sub connection, from its opening until anything goes wrong
// with it for the first time.
//
// go-redis reconnects by itself, and then subscribes to all channels in one command. If the server refuses one channel,
// none is subscribed. And it is unknown whether a message comes from the old or the new connection. So a link whose
// connection has failed is replaced as a whole.
//
// A link has at most one command in flight. An error reply names no channel, so it belongs to that command.
type link struct {
	ps     *redis.PubSub // nil until the first command is sent
	hub    *Hub
	ctx    context.Context // done when the link has been dropped
	cancel context.CancelFunc
	events chan event // from the link's goroutines

	// The fields below are guarded by Hub.mu. The run goroutine writes them; deliver writes fresh, too.
	opened time.Time
	spoken bool      // the server has sent something
	fresh  time.Time // when something was last sent or received
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

	// maxArgs bounds the channels in one SUBSCRIBE or UNSUBSCRIBE. If one channel is refused, each channel of the
	// command costs a round trip of its own. With a lower bound, a new connection needs more round trips for many
	// channels.
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

// expect makes c the command in flight. It is called before c is sent, because the answer could come at once.
func (l *link) expect(c *command, now time.Time) {
	c.sent = now
	c.open = make(map[string]struct{}, len(c.args))
	for _, arg := range c.args {
		c.open[arg] = struct{}{}
	}
	l.flight, l.fresh = c, now
}

// answered records an answer, and reports whether the command in flight asked for it.
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

// send sends c in the background. The first command is a SUBSCRIBE and opens the connection, because a Cluster client
// chooses the node by the channel. Reading starts after that.
func (l *link) send(rdb Subscriber, c *command) {
	if l.ps != nil {
		l.hub.all.Go(func() { l.call(c) })
		return
	}
	if err := l.open(rdb); err != nil {
		l.hub.all.Go(func() { l.notify(event{broken: err}) })
		return
	}
	l.hub.all.Go(func() {
		if l.call(c) {
			l.read()
		}
	})
}

// open makes the PubSub. If the client panics, as a wrapped *redis.Ring does, there are no messages, and waiters keep
// polling.
func (l *link) open(rdb Subscriber) (err error) {
	defer goroutine.Recover(&err)
	l.ps = rdb.Subscribe(l.ctx)
	return nil
}

// call sends c, and reports a failure as an event.
func (l *link) call(c *command) (ok bool) {
	err := l.ask(c)
	if err != nil {
		l.notify(event{broken: err})
	}
	return err == nil
}

// ask calls the method of the PubSub that sends c.
func (l *link) ask(c *command) (err error) {
	defer goroutine.Recover(&err)
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

// backToBack is the longest time between two messages that count as arrived together. The woken waiters run after the
// last of them, because yielding takes long on a busy machine.
const backToBack = 100 * time.Microsecond

// read passes on what the server sends, until the connection fails. It delivers messages on its own goroutine, not as
// events, because another goroutine in between would add a tenth to the time from a release to the waiter.
//
// Receive gets no deadline, because go-redis would replace the connection at the deadline. It returns when the PubSub
// is closed.
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
					runtime.Gosched() // woken waiters run first, because the next read takes a system call
				}
			} else {
				l.notify(event{msg: msg})
			}
		case errors.As(err, &reply) && l.ctx.Err() == nil:
			l.notify(event{refuse: err})
		default:
			l.notify(event{broken: err})
			return
		}
	}
}

// receive returns what the server sends next.
func (l *link) receive() (msg any, err error) {
	defer goroutine.Recover(&err)
	return l.ps.Receive(l.ctx)
}

// notify passes ev to the run goroutine. It blocks until the run goroutine takes ev, or the link is dropped. So no
// goroutine of a dropped link stays.
func (l *link) notify(ev event) {
	select {
	case l.events <- ev:
	case <-l.ctx.Done():
	}
}

// drop closes the connection in the background, because go-redis may hold its mutex while it reconnects. The end of the
// context at least ends a dial.
func (l *link) drop() {
	l.cancel()
	if l.ps != nil {
		l.hub.all.Go(func() {
			var err error
			defer goroutine.Recover(&err)
			_ = l.ps.Close()
		})
	}
}
