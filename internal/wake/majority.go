package wake

import (
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
)

// Majority wakes the subscribers of channels on which several servers publish the same
// events, each for itself: for example the release of a lock, which has to be free on most of
// them. It is safe for concurrent use.
//
// A subscription is live while it is live on most of the servers. That is enough: an event that counts is published
// by a majority, which includes at least one of them.
//
// An event wakes once, when messages of most servers have arrived, and not
// at each message: a waiter that acts on the first message is too early on the other servers. Messages from a minority
// wake after a short delay, because the others may have no message, or it may be lost. The delay
// has a random length, so that the waiters of different processes do not act together.
type Majority struct {
	hubs   []*Hub
	window time.Duration
}

// NewMajority returns a Majority of hubs, of different servers, which it closes with itself.
// window is how far apart the messages of the servers about one thing may be.
func NewMajority(hubs []*Hub, window time.Duration) *Majority {
	return &Majority{hubs: hubs, window: window}
}

// Subscribe is Hub.Subscribe on every hub.
func (m *Majority) Subscribe(name string, wake func()) *Subscription {
	c := &merged{wake: wake, window: m.window, needed: len(m.hubs)/2 + 1, heard: make([]bool, len(m.hubs))}
	for i, h := range m.hubs {
		c.parts = append(c.parts, h.Subscribe(name, func() { c.hear(i) }))
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
	//	first message --most have arrived--> told: the other messages of the event are ignored
	//	        \--the timer ends--> spoke --most have arrived--> told, after a second wake
	//	any --a second message of one server, or window has passed--> the next event
	mu     sync.Mutex
	heard  []bool      // the servers whose message of the present event has arrived
	since  time.Time   // the first of them
	told   bool        // wake was called, for a majority
	spoke  bool        // wake was called, for a minority
	timer  *time.Timer // calls wake if the others stay silent; nil if no wake is pending
	closed bool
}

// hear records a message or another event of server i.
func (c *merged) hear(i int) {
	if c.note(i) {
		c.wake()
	}
}

// note is hear without the wake: it reports whether a wake is due.
func (c *merged) note(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	overdue := false
	now := time.Now()
	if c.heard[i] || now.Sub(c.since) > c.window {
		// The next event. A pending wake of the previous event is due now.
		overdue = c.rest()
		clear(c.heard)
		c.since, c.told, c.spoke = now, false, false
	}
	c.heard[i] = true
	// If both are due, one wake is enough.
	switch n := count(c.heard); {
	case c.told:
	case n >= c.needed:
		c.rest()
		c.told = true
		return true
	case c.timer == nil && !c.spoke:
		c.timer = time.AfterFunc(c.window/2+clock.N(c.window/2+1), c.speak)
	}
	return overdue
}

// rest stops the timer, and reports whether a wake was pending. mu is held.
func (c *merged) rest() bool {
	if c.timer == nil {
		return false
	}
	c.timer.Stop() // or it finds that it belongs to none
	c.timer = nil
	return true
}

// speak wakes after the messages of a minority.
func (c *merged) speak() {
	c.mu.Lock()
	tells := c.timer != nil && !c.closed
	if tells {
		c.timer, c.spoke = nil, true
	}
	c.mu.Unlock()
	if tells {
		c.wake()
	}
}

func count(heard []bool) int {
	n := 0
	for _, h := range heard {
		if h {
			n++
		}
	}
	return n
}

// live reports whether most parts are.
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
