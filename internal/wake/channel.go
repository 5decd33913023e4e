package wake

import (
	"container/list"
	"time"
)

// A channel is one that has a subscriber, or was until a moment ago.
// All its fields are guarded by mu.
//
//	wanted ──► subscribing ──► live
//	   ▲            │
//	   ├────────────┤ refused with others: asked for again, alone
//	   │            ▼
//	   └──────── refused         after RefusalRetry
//
// The loss of the connection takes every channel back to wanted.
type channel struct {
	name  string
	hub   *Hub // nil while Shards look for the one that it belongs to
	state state
	subs  []*Subscription // few: different kinds of lock listen to the same channel

	// sent: the channel was sent to the server on the connection in use. Only
	// such a channel needs to be unsubscribed. A channel that was sent and is wanted again
	// was refused, maybe because of others in the same SUBSCRIBE,
	// so it gets a SUBSCRIBE of its own.
	sent bool
}

// subscribe adds a subscription.
func (ch *channel) subscribe(c *common, wake func(), message func(payload string)) *Subscription {
	s := &Subscription{common: c, ch: ch, wake: wake, message: message}
	ch.subs = append(ch.subs, s)
	if ch.hub != nil {
		ch.hub.idle.remove(ch) // it may have lingered: it stays subscribed, without traffic
	}
	return s
}

// unused lets a channel go that has lost its last subscription. A channel that is on
// no hub is let go by the search of the shards.
func (ch *channel) unused() {
	h := ch.hub
	switch {
	case h == nil:
		return
	case ch.sent: // the server has it, or will get it: it lingers, and is unsubscribed then
		end := time.Now().Add(h.cfg.Linger)
		h.idle.put(ch, end)
		if h.lookAt.Before(end) {
			return // the one that was woken is on its way: it need not start another goroutine
		}
	default: // nothing was sent for it, so there is nothing to take back
		h.forget(ch)
	}
	h.nudge()
}

// suspect makes the link of a live channel suspect. On any other channel,
// and on nil, no one expects messages.
func (ch *channel) suspect(missed bool) {
	if ch == nil || ch.state != live {
		return
	}
	ch.hub.suspect = true
	if missed {
		ch.hub.missed++
	}
	ch.hub.nudge()
}

type state int

const (
	wanted      state = iota // waits for its SUBSCRIBE to be sent
	subscribing              // its SUBSCRIBE is the command in flight
	live                     // confirmed by the server
	refused                  // refused by the server, by itself
)

// A line is a queue of channels, each with the time when its turn comes. It
// stays sorted because all channels of one line wait for the same duration.
// The zero value is an empty line.
type line struct {
	order list.List // of turn
	place map[*channel]*list.Element
}

type turn struct {
	ch *channel
	at time.Time
}

// put appends ch; if it was in the line, it loses its place.
func (l *line) put(ch *channel, at time.Time) {
	l.remove(ch)
	if l.place == nil {
		l.place = make(map[*channel]*list.Element)
	}
	l.place[ch] = l.order.PushBack(turn{ch, at})
}

// remove takes ch out, if it is in the line.
func (l *line) remove(ch *channel) {
	if e, ok := l.place[ch]; ok {
		l.order.Remove(e)
		delete(l.place, ch)
	}
}

// first returns the first channel and its time; nil if the line is empty.
func (l *line) first() (*channel, time.Time) {
	e := l.order.Front()
	if e == nil {
		return nil, time.Time{}
	}
	t := e.Value.(turn)
	return t.ch, t.at
}

// take removes and returns the first channel if its turn has come, else nil.
func (l *line) take(now time.Time) *channel {
	ch, at := l.first()
	if ch == nil || at.After(now) {
		return nil
	}
	l.remove(ch)
	return ch
}
