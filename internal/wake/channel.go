package wake

import (
	"container/list"
	"time"
)

// A channel is one that somebody is subscribed to, or was until a moment ago.
// All its fields are guarded by Hub.mu.
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
	state state
	subs  map[*Subscription]struct{}

	// sent says that the connection in use has been told of the channel. Only
	// such a channel needs to be unsubscribed. One that is wanted again in
	// spite of it was refused, maybe because of others in the same SUBSCRIBE,
	// so it gets a SUBSCRIBE of its own.
	sent bool
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
