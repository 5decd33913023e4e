package wake

import (
	"container/list"
	"time"
)

// A channel has a subscription, or had one until a moment ago. mu guards all its fields.
//
//	wanted ──► subscribing ──► live
//	   ▲            │
//	   ├────────────┤ refused together with others: requested again, alone
//	   │            ▼
//	   └──────── refused         after RefusalRetry
//
// If the connection is lost, every channel is wanted again.
type channel struct {
	name  string
	hub   *Hub // nil while Shards look up its hub
	state state
	subs  []*Subscription // few: different kinds of lock listen to the same channel

	// sent: a SUBSCRIBE for the channel was sent on the connection in use. Only such a channel needs an UNSUBSCRIBE.
	// If it is wanted again, the SUBSCRIBE was refused, perhaps because of another channel in it. Then the channel gets
	// a SUBSCRIBE of its own.
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

// unused releases a channel without subscriptions. If the channel is on no hub, the search of the shards releases it.
func (ch *channel) unused() {
	h := ch.hub
	switch {
	case h == nil:
		return
	case ch.sent: // the server has it, or will get it: it lingers first, and is unsubscribed after that
		end := time.Now().Add(h.cfg.Linger)
		h.idle.put(ch, end)
		if h.lookAt.Before(end) {
			return // the run goroutine looks before that anyway
		}
	default: // nothing was sent for it, so there is nothing to unsubscribe
		h.forget(ch)
	}
	h.nudge()
}

// suspect makes the link of a live channel suspect. No messages are expected on any other channel, or if ch is nil.
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
	refused                  // refused by the server in a SUBSCRIBE of its own
)

// A schedule is a queue of channels, each with the time when it is due. It stays sorted, because all channels in it
// wait for the same duration. The zero value is empty.
type schedule struct {
	order list.List // of due
	by    map[*channel]*list.Element
}

type due struct {
	ch *channel
	at time.Time
}

// put appends ch. If ch was in the schedule, it moves to the end.
func (s *schedule) put(ch *channel, at time.Time) {
	s.remove(ch)
	if s.by == nil {
		s.by = make(map[*channel]*list.Element)
	}
	s.by[ch] = s.order.PushBack(due{ch, at})
}

// remove removes ch if it is in the schedule.
func (s *schedule) remove(ch *channel) {
	if e, ok := s.by[ch]; ok {
		s.order.Remove(e)
		delete(s.by, ch)
	}
}

// first returns the first channel and its time, or nil.
func (s *schedule) first() (*channel, time.Time) {
	e := s.order.Front()
	if e == nil {
		return nil, time.Time{}
	}
	d := e.Value.(due)
	return d.ch, d.at
}

// take removes and returns the first channel if it is due, or returns nil.
func (s *schedule) take(now time.Time) *channel {
	ch, at := s.first()
	if ch == nil || at.After(now) {
		return nil
	}
	s.remove(ch)
	return ch
}
