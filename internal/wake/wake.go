// Package wake turns Redis pub/sub messages into wake-ups for waiters.
//
// A message is a hint and never the truth: it may be lost, late, doubled, or
// about a state that has changed again. So the hub promises only to wake a
// waiter whenever the waiter may have missed something, and to report whether
// a long sleep is worthwhile:
//
//	sub := hub.Subscribe(channel, wake)
//	defer sub.Close()
//	for !try() {
//		if sub.Live() {
//			sleep long, until woken
//		} else {
//			sleep for one polling interval, until woken
//		}
//	}
//
// A hub has at most one connection, however many channels and subscriptions
// there are, and none while there are none. Shards is the same for the sharded
// pub/sub of a Cluster: a hub for each master, with the channels of its
// slots for as long as it has them. Majority wakes after messages from most of several
// servers.
package wake

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Subscriber opens pub/sub connections. Every redis.UniversalClient is one,
// except *redis.Ring, whose Subscribe needs the channels beforehand.
type Subscriber interface {
	// Subscribe is called without channels, and must then do no I/O.
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Config holds the durations that a hub works with. All of them must be
// positive, but for Linger.
type Config struct {
	// PingInterval is the silence on the connection after which the hub asks
	// the server for a sign of life.
	PingInterval time.Duration

	// PongTimeout is the silence after which a connection that owes an answer
	// is replaced. So a connection that no longer receives anything is noticed
	// after PingInterval + PongTimeout.
	PongTimeout time.Duration

	// AnswerTimeout bounds the wait for an answer while other messages keep
	// coming, and the wait for the first answer on a new connection: dialing,
	// TLS, and authentication are part of it.
	AnswerTimeout time.Duration

	// Linger is how long a channel without subscriptions stays subscribed at
	// the server, so that a busy lock does not subscribe and unsubscribe at
	// every turn. With 0 it is unsubscribed at once.
	Linger time.Duration

	// RefusalRetry is how long a channel that the server has refused (NOPERM)
	// is left alone before the hub asks for it again on the same connection.
	RefusalRetry time.Duration

	// MinBackoff and MaxBackoff bound the pause before a lost connection is
	// replaced. It doubles with every connection that does not last as long as
	// MaxBackoff; the real pause is a random one between half of it and all.
	MinBackoff, MaxBackoff time.Duration

	// CloseTimeout bounds Close.
	CloseTimeout time.Duration
}

// A Hub wakes the subscribers of channels. It is safe for concurrent use.
//
// Only its own goroutines do I/O: go-redis holds the lock of a PubSub while it
// dials, so any call of a PubSub may take as long as dialing does.
type Hub struct {
	*common
	shards *Shards // that the hub is part of; nil if it stands alone
	rdb    Subscriber
	cfg    Config
	verbs  *verbs

	kick chan struct{} // holds one: the run goroutine has something to look at

	// The fields below are guarded by mu.
	running  bool                // the run goroutine exists; false only if channels is empty
	channels map[string]*channel // by name; each has subscriptions, or lingers
	wanted   line                // channels to ask for: exactly those in state wanted
	refused  line                // channels to ask for again: exactly those in state refused
	idle     line                // channels to unsubscribe: those sent, without subscriptions
	suspect  bool                // a ping has been asked for
	missed   int                 // messages that should have come since the last one that did

	misplaced bool // channels belong to another hub

	// The fields below are changed by the run goroutine only, under mu.
	lookAt  time.Time // when it looks again if nothing happens
	link    *link     // the connection in use or being opened; nil if there is none
	wakes   []func()  // to be called as soon as mu is free
	pings   int       // numbers the pings
	pinged  time.Time // when the last ping was sent
	moved   time.Time // when a link was last given up because of missed messages
	backoff time.Duration
	retryAt time.Time // no connection is opened before
}

// NewHub returns a hub that subscribes through rdb. It starts nothing: the
// connection and the goroutines exist only while there are subscriptions, or
// channels that linger.
func NewHub(rdb Subscriber, cfg Config) *Hub {
	return newHub(new(common), rdb, cfg, &plain)
}

func newHub(c *common, rdb Subscriber, cfg Config, v *verbs) *Hub {
	return &Hub{
		common:   c,
		rdb:      rdb,
		cfg:      cfg,
		verbs:    v,
		kick:     make(chan struct{}, 1),
		channels: make(map[string]*channel),
		backoff:  cfg.MinBackoff,
	}
}

// common is what hubs that pass channels to each other share.
type common struct {
	// mu is never held over I/O, over a wake, or over any other wait.
	mu     sync.Mutex
	closed bool
	all    sync.WaitGroup // every goroutine that was started
}

// A Subscription is one waiter's interest in one channel. It is safe for
// concurrent use.
type Subscription struct {
	merged *merged // of a Majority; the other fields are a Hub's

	common  *common
	ch      *channel // nil if the hub was closed already
	wake    func()
	message func(payload string) // in place of wake, if a message has arrived; may be nil
}

// Subscribe asks for wake to be called on every event of the channel:
//
//   - a message has arrived;
//   - the server has confirmed the channel, so what was published earlier may
//     have been missed and what is published from now on will not be;
//   - the connection is lost, so messages may have been missed;
//   - the server has refused the channel, so no messages will come.
//
// Live has its new value before wake is called. wake must not block, must be
// safe for concurrent use, and may be called before Subscribe returns and once
// more after Close. Subscribe never blocks either. If the channel is confirmed
// already, the subscription is live at once, without a wake. After Hub.Close it
// never is.
func (h *Hub) Subscribe(name string, wake func()) *Subscription {
	return h.SubscribeTo(name, wake, nil)
}

// SubscribeTo is Subscribe for one that reads the messages: message is called with the
// payload of each that arrives, on the terms of wake, and wake on the other events.
func (h *Hub) SubscribeTo(name string, wake func(), message func(payload string)) *Subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return &Subscription{common: h.common}
	}
	ch := h.channels[name]
	if ch == nil {
		ch = &channel{name: name}
		h.adopt(ch)
	}
	return ch.subscribe(h.common, wake, message)
}

// Rejoin is SubscribeTo if the channel is in use already, or lingers, so that it costs no
// traffic; otherwise it returns nil. It is for a caller that is about to send a request, which a message may
// answer: if such a message reaches this process at all, the caller gets it.
func (h *Hub) Rejoin(name string, wake func(), message func(payload string)) *Subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ch := h.channels[name]; ch != nil && !h.closed {
		return ch.subscribe(h.common, wake, message)
	}
	return nil
}

// Uses reports whether the channel is in use, or lingers.
func (h *Hub) Uses(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.channels[name] != nil
}

// adopt takes in a channel that is on no hub; mu must be held.
func (h *Hub) adopt(ch *channel) {
	ch.hub = h
	h.channels[ch.name] = ch
	h.wanted.put(ch, time.Time{})
	if !h.running {
		h.running = true
		h.all.Go(h.run)
	}
	h.nudge()
}

// Live reports whether messages of the channel reach the subscription: the
// server has confirmed the channel on the connection that is in use now. It is
// as true as the last sign of life from the server is fresh.
func (s *Subscription) Live() bool {
	if s.merged != nil {
		return s.merged.live()
	}
	s.common.mu.Lock()
	defer s.common.mu.Unlock()
	return s.open() && s.ch.state == live
}

// Close ends the subscription. It is idempotent and never blocks.
func (s *Subscription) Close() {
	if s.merged != nil {
		s.merged.close()
		return
	}
	s.common.mu.Lock()
	defer s.common.mu.Unlock()
	if !s.open() {
		return
	}
	s.ch.subs = slices.DeleteFunc(s.ch.subs, func(other *Subscription) bool { return other == s })
	if len(s.ch.subs) == 0 && !s.common.closed {
		s.ch.unused()
	}
}

// open reports whether s has not been closed; mu must be held.
func (s *Subscription) open() bool {
	return s.ch != nil && slices.Contains(s.ch.subs, s)
}

// Suspect reports to the hub that a poll found a change that a message on the channel
// might have announced. The hub asks the server for a sign of
// life, at most once per PongTimeout, and replaces the connection if there is
// none. Suspect never blocks.
func (h *Hub) Suspect(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.channels[name].suspect(false)
}

// Missed is Suspect for a caller that is certain that a message on the channel should
// have come while it was live. The server may answer, and yet be the wrong one:
// a former master. So the connection is replaced when a second message is
// missed before any has arrived; at most once per PingInterval, because the publisher
// may be to blame.
func (h *Hub) Missed(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.channels[name].suspect(true)
}

// Close ends all subscriptions, closes the connection, and waits until the
// hub's goroutines have ended, at most for CloseTimeout: go-redis may be caught
// in a handshake that only its own time-outs end; what is left then ends with
// it. Subscriptions that were live are woken. Close is idempotent. It must not
// be called by a wake.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	h.nudge()
	h.mu.Unlock()
	h.end(h.cfg.CloseTimeout)
}

// end waits until all goroutines have ended, at most for d.
func (c *common) end(d time.Duration) {
	ended := make(chan struct{})
	go func() {
		c.all.Wait()
		close(ended)
	}()
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	select {
	case <-ended:
	case <-timeout.C:
	}
}

// nudge makes the run goroutine look at the state of things.
func (h *Hub) nudge() {
	select {
	case h.kick <- struct{}{}:
	default: // it will look anyway
	}
}
