package wake

import (
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
)

// Majority wakes the subscribers of channels on which several servers publish the same
// things, each for itself: as one that a lock was released which has to be free on most of
// them. It is safe for concurrent use.
//
// A subscription is live while it is on most of the servers. That is enough: of those that
// have to publish something for it to count, one at least is among them.
//
// What the servers publish together wakes once, when most of them have been heard, and not
// at each message: a waiter that acts on the first message is too early on the other servers. What only a
// few say wakes after a moment: the others may have nothing to say, or have not been understood. The moment
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

	// What mu guards is about one thing that the servers say, such as one release:
	//
	//	first server heard --most heard--> told: the rest of it is silent
	//	        \--the timer has run out--> spoke --most heard--> told, so it has woken twice
	//	any --a server that was heard speaks again, or window is over--> the next thing
	mu     sync.Mutex
	heard  []bool      // the servers that have spoken about the present thing
	since  time.Time   // when the first of them did
	told   bool        // wake was called for it, by most of them
	spoke  bool        // wake was called for it, by a few
	timer  *time.Timer // calls it if the others stay silent; nil if nothing is to be told
	closed bool
}

// hear takes note of an event on server i.
func (c *merged) hear(i int) {
	if c.note(i) {
		c.wake()
	}
}

// note is hear but for the wake: it reports whether that is due.
func (c *merged) note(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	overdue := false
	now := time.Now()
	if c.heard[i] || now.Sub(c.since) > c.window {
		// The next thing. What was not told of the one before is told now.
		overdue = c.rest()
		clear(c.heard)
		c.since, c.told, c.spoke = now, false, false
	}
	c.heard[i] = true
	// overdue and told do not add up: one wake is enough for both things.
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

// rest stops the timer, and reports whether there was something to be told. mu is held.
func (c *merged) rest() bool {
	if c.timer == nil {
		return false
	}
	c.timer.Stop() // or it finds that it belongs to none
	c.timer = nil
	return true
}

// speak tells what only a few have said.
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
