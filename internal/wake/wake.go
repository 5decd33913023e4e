// Package wake turns Redis pub/sub messages into wake-ups for waiters.
//
// A message is a hint: it may be lost, late, repeated, or about a state that has changed again. So a hub promises two
// things. It wakes a waiter whenever the waiter may have missed something. And it reports whether the waiter may rely on
// messages, and sleep long:
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
// A hub has one connection for all channels and subscriptions, and none if there are no channels. Shards is the same for
// the sharded pub/sub of a Cluster, with a hub for the channels of each master. Majority wakes after messages from most
// of several servers.
package wake

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Subscriber opens pub/sub connections. Every redis.UniversalClient is one, except *redis.Ring, whose Subscribe panics
// without channels.
type Subscriber interface {
	// Subscribe is called without channels, and must then do no I/O.
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Config has the durations of a hub. All must be positive, except Linger.
type Config struct {
	// PingInterval is the silence on the connection after which the hub sends a PING.
	PingInterval time.Duration

	// PongTimeout is the silence after which a connection with a command in flight is replaced. So a connection that
	// receives nothing is replaced after PingInterval + PongTimeout.
	PongTimeout time.Duration

	// AnswerTimeout bounds the wait for an answer while other messages arrive, and the wait for the first answer on a new
	// connection, which includes dialing, TLS and authentication.
	AnswerTimeout time.Duration

	// Linger is how long a channel without subscriptions stays subscribed at the server, so that a busy lock does not
	// subscribe and unsubscribe again and again. With 0 it is unsubscribed at once.
	Linger time.Duration

	// RefusalRetry is the pause before the hub requests a channel again, on the same connection, that the server has
	// refused (NOPERM).
	RefusalRetry time.Duration

	// MinBackoff and MaxBackoff bound the pause before a lost connection is replaced. It doubles with each loss within
	// MaxBackoff of the end of the last pause. A random part of it, up to one half, is left out.
	MinBackoff, MaxBackoff time.Duration

	// CloseTimeout bounds Close.
	CloseTimeout time.Duration
}

// A Hub wakes the subscribers of channels. It is safe for concurrent use.
//
// Only its own goroutines do I/O: go-redis holds the mutex of a PubSub while it dials, so any call of a PubSub may take
// as long as a dial.
type Hub struct {
	*common
	shards *Shards // that the hub is part of; nil if it stands alone
	rdb    Subscriber
	cfg    Config
	verbs  *verbs

	kick chan struct{} // holds one: makes the run goroutine look

	// The fields below are guarded by mu.
	running  bool                  // the run goroutine exists; false only if channels is empty
	cancel   context.CancelFunc    // ends the dial, and the first command of a connection
	channels map[string]*channel   // by name; each has subscriptions, or lingers
	wanted   map[*channel]struct{} // exactly the channels in state wanted
	idle     map[*channel]struct{} // channels that have lingered, to be unsubscribed
	wakes    []func()              // to be called as soon as mu is free

	ps        *redis.PubSub // the connection in use or being opened; nil if there is none yet
	spoken    bool          // the server has sent something on it
	fresh     time.Time     // when something was last sent or received
	suspect   bool          // a PING is requested
	missed    int           // messages that are missing since the last one that arrived
	misplaced bool          // some channels belong to another hub

	// What is not answered of the command in flight. None of these: no command is in flight.
	asked   map[*channel]struct{} // of a SUBSCRIBE: exactly the channels in state asked
	leaving int                   // of an UNSUBSCRIBE: the number of channels
	pinging bool                  // a PING

	sent    time.Time // when the last command was sent
	pinged  time.Time // when the last PING was sent
	moved   time.Time // when a connection was last given up because of missed messages
	backoff time.Duration
	retryAt time.Time // no connection is opened before
}

// NewHub returns a hub that subscribes through rdb. It starts nothing: the connection and the goroutines exist only while
// there are channels.
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
		wanted:   make(map[*channel]struct{}),
		asked:    make(map[*channel]struct{}),
		idle:     make(map[*channel]struct{}),
		backoff:  cfg.MinBackoff,
	}
}

// common is shared by hubs that pass channels to each other.
type common struct {
	// mu is never held over I/O, over a wake, or over any other wait.
	mu     sync.Mutex
	closed bool
	all    sync.WaitGroup // of all goroutines
}

// A Subscription is one waiter's interest in one channel. It is safe for concurrent use.
type Subscription struct {
	merged *merged // of a Majority; the other fields are a Hub's

	common  *common
	ch      *channel // nil if the hub was closed already
	wake    func()
	message func(payload string) // called instead of wake for a message; may be nil
}

// Subscribe calls wake on every event of the channel:
//
//   - a message has arrived;
//   - the server has confirmed the channel: earlier messages may be missed, later ones are not;
//   - the connection is lost: messages may be missed;
//   - the server has refused the channel: no messages will come.
//
// Live has its new value before wake is called. wake must not block, and must be safe for concurrent use. It may be
// called before Subscribe returns, and once more after Close. Subscribe does not block. If the channel is confirmed
// already, the subscription is live at once, without a wake. After Hub.Close it is never live.
func (h *Hub) Subscribe(name string, wake func()) *Subscription {
	return h.SubscribeTo(name, wake, nil)
}

// SubscribeTo is Subscribe for a caller that reads messages. It calls message with the payload of each message, and wake
// on the other events. The same rules hold for message as for wake.
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

// Rejoin is SubscribeTo if the channel is in use already, or lingers, so that it causes no traffic. Otherwise it returns
// nil. It is for a caller whose next request may be answered by a message: if the message reaches this process, the
// caller gets it.
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

// adopt adds a channel that is on no hub. mu is held.
func (h *Hub) adopt(ch *channel) {
	ch.hub = h
	h.channels[ch.name] = ch
	h.wanted[ch] = struct{}{}
	if !h.running {
		h.running = true
		ctx, cancel := context.WithCancel(context.Background())
		h.cancel = cancel
		h.all.Go(func() { h.run(ctx) })
	}
	h.nudge()
}

// Live reports whether messages of the channel reach the subscription: the server has confirmed the channel on the
// connection in use. A connection that has failed counts until the failure is noticed.
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

// open reports whether s is not closed. mu is held.
func (s *Subscription) open() bool {
	return s.ch != nil && slices.Contains(s.ch.subs, s)
}

// Suspect reports to the hub that a poll found a change which a message on the channel might have announced. The hub
// sends a PING, at most once per PongTimeout, and replaces the connection if no answer arrives. Suspect does not block.
func (h *Hub) Suspect(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.channels[name].suspect(false)
}

// Missed is Suspect for a caller that is certain that a message is missing while the channel was live. The server may
// answer the PING, and still be the wrong one, such as a former master. So if a second message is missing before any
// arrives, the connection is replaced. This happens at most once per PingInterval, because the publisher may be at
// fault.
func (h *Hub) Missed(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.channels[name].suspect(true)
}

// Close ends all subscriptions, closes the connection, and waits for the hub's goroutines, for CloseTimeout at most: a
// handshake of go-redis ends only by its own time-outs, and remaining goroutines end with it. Live subscriptions are
// woken. Close is idempotent. A wake must not call it.
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

// nudge makes the run goroutine look.
func (h *Hub) nudge() {
	select {
	case h.kick <- struct{}{}:
	default: // it will look anyway
	}
}
