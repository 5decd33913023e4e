package wake

import "time"

// A channel has a subscription, or had one until a moment ago. mu guards all its fields.
//
//	wanted ──► asked ──► live
//	   ▲         │
//	   ├─────────┤ refused together with others: requested again, alone
//	   │         ▼
//	   └────── refused        after RefusalRetry
//
// If the connection is lost, every channel is wanted again.
type channel struct {
	name  string
	hub   *Hub // nil while Shards look up its hub
	state state
	subs  []*Subscription // few: different kinds of lock listen to the same channel
	timer *time.Timer     // ends its lingering, or its time as a refused channel

	// alone: a SUBSCRIBE for it was refused, perhaps because of another channel. So it gets one of its own.
	alone bool
}

type state int

const (
	wanted  state = iota // waits for its SUBSCRIBE to be sent
	asked                // its SUBSCRIBE was sent
	live                 // confirmed by the server
	refused              // refused by the server in a SUBSCRIBE of its own
)

// subscribe adds a subscription.
func (ch *channel) subscribe(c *common, wake func(), message func(payload string)) *Subscription {
	s := &Subscription{common: c, ch: ch, wake: wake, message: message}
	ch.subs = append(ch.subs, s)
	if ch.hub != nil && ch.state != refused { // it may have lingered: it stays subscribed, without traffic
		ch.stop()
		delete(ch.hub.idle, ch)
	}
	return s
}

// unused releases a channel without subscriptions, after it has lingered. If the channel is on no hub, the search of
// the shards releases it.
func (ch *channel) unused() {
	h := ch.hub
	switch {
	case h == nil:
	case ch.state == wanted || ch.state == refused: // there is nothing to unsubscribe
		h.forget(ch)
		h.nudge()
	default: // the server has it, or will get it
		ch.after(h.cfg.Linger, func() { h.idle[ch] = struct{}{} })
	}
}

// after does something later under mu, unless stop or after is called before.
func (ch *channel) after(d time.Duration, do func()) {
	h := ch.hub
	ch.stop()
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if ch.timer == timer {
			do()
			h.nudge()
		}
	})
	ch.timer = timer
}

// stop takes back what after was to do.
func (ch *channel) stop() {
	if ch.timer != nil {
		ch.timer.Stop() // if it has fired already, it finds that it is no longer ch.timer
		ch.timer = nil
	}
}

// suspect makes the connection of a live channel suspect. No messages are expected on any other channel, or if ch is nil.
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
