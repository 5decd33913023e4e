package wake

import (
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
)

// Majority wakes the subscribers of channels on which several servers publish the same events independently. An event
// is for example the release of a lock, which has to be free on most servers. It is safe for concurrent use.
//
// A subscription is live while it is live on most of the servers. That is enough: an event that counts is published
// by a majority, which includes at least one of them.
//
// An event wakes once, when messages of most servers have arrived: on the first message, a waiter would be too early
// for the other servers. Messages from a minority wake after a short delay, because the other servers may have published
// nothing, or their messages may be lost. The delay is random, so that the waiters of different processes do not act
// together.
type Majority struct {
	hubs   []*Hub
	window time.Duration
}

// NewMajority returns a Majority of the hubs of different servers. Its Close closes the hubs.
// window is the longest time between the messages of the servers about one event.
func NewMajority(hubs []*Hub, window time.Duration) *Majority {
	return &Majority{hubs: hubs, window: window}
}

// Subscribe is Hub.Subscribe on every hub.
func (m *Majority) Subscribe(name string, wake func()) *Subscription {
	c := &merged{wake: wake, window: m.window, needed: len(m.hubs)/2 + 1, received: make([]bool, len(m.hubs))}
	for i, h := range m.hubs {
		c.parts = append(c.parts, h.Subscribe(name, func() { c.receive(i) }))
	}
	return &Subscription{merged: c}
}

// Suspect is Hub.Suspect on every hub.
func (m *Majority) Suspect(name string) {
	for _, h := range m.hubs {
		h.Suspect(name)
	}
}

// Missed is Hub.Missed on every hub.
func (m *Majority) Missed(name string) {
	for _, h := range m.hubs {
		h.Missed(name)
	}
}

// Close closes every hub.
func (m *Majority) Close() {
	var all sync.WaitGroup
	for _, h := range m.hubs {
		all.Go(h.Close)
	}
	all.Wait()
}

// merged is one waiter's interest in the same channel of several servers.
type merged struct {
	wake   func()
	window time.Duration
	needed int
	parts  []*Subscription // by server

	// The fields guarded by mu are about one event on the servers, such as one release:
	//
	//	first message --most have arrived--> byMajority: the other messages of the event are ignored
	//	        \--the timer ends--> byMinority --most have arrived--> byMajority, after a second wake
	//	any --a second message of one server, or window has passed--> the next event
	mu         sync.Mutex
	received   []bool      // by server: its message of the current event has arrived
	since      time.Time   // when the first of these messages arrived
	byMajority bool        // wake was called for a majority
	byMinority bool        // wake was called for a minority
	timer      *time.Timer // calls wake if no majority follows; nil if no wake is pending
	closed     bool
}

// receive records a message or another event of server i.
func (c *merged) receive(i int) {
	if c.note(i) {
		c.wake()
	}
}

// note is receive without the wake. It reports whether a wake is due.
func (c *merged) note(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	overdue := false
	now := time.Now()
	if c.received[i] || now.Sub(c.since) > c.window {
		// The next event. A pending wake of the previous event is due now.
		overdue = c.rest()
		clear(c.received)
		c.since, c.byMajority, c.byMinority = now, false, false
	}
	c.received[i] = true
	// If both are due, one wake is enough.
	switch n := count(c.received); {
	case c.byMajority:
	case n >= c.needed:
		c.rest()
		c.byMajority = true
		return true
	case c.timer == nil && !c.byMinority:
		c.timer = time.AfterFunc(clock.Jitter(c.window), c.wakeByMinority)
	}
	return overdue
}

// rest stops the timer, and reports whether a wake was pending. mu is held.
func (c *merged) rest() bool {
	if c.timer == nil {
		return false
	}
	c.timer.Stop() // if it has fired already, it finds that it is no longer c.timer
	c.timer = nil
	return true
}

// wakeByMinority wakes after the messages of a minority.
func (c *merged) wakeByMinority() {
	c.mu.Lock()
	due := c.timer != nil && !c.closed
	if due {
		c.timer, c.byMinority = nil, true
	}
	c.mu.Unlock()
	if due {
		c.wake()
	}
}

func count(received []bool) int {
	n := 0
	for _, h := range received {
		if h {
			n++
		}
	}
	return n
}

// live reports whether most parts are live.
func (c *merged) live() bool {
	n := 0
	for _, p := range c.parts {
		if p.Live() {
			n++
		}
	}
	return n >= c.needed
}

func (c *merged) close() {
	c.mu.Lock()
	c.closed = true
	c.rest()
	c.mu.Unlock()
	for _, p := range c.parts {
		p.Close()
	}
}
