package wake

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
)

// The run goroutine of a hub makes the connection what the subscriptions want it to be:
//
//	no goroutine --adopt: the first channel--> no link
//	no link --a channel is wanted, and the pause is over--> link, a command in flight
//	link, in flight --all of it answered, or refused--> link, idle --something to say--> link, in flight
//	link --broken, overdue, misled, or an answer that was not asked for--> no link, for a pause (lose)
//	any --no channel is left, or Close--> no goroutine (finish)
//
// Subscribe, Close, Suspect and Missed change what is wanted, under mu, and kick. The goroutines of the link
// send, read, and tell events. The run goroutine alone makes and drops links, and moves channels between their
// states (see channel). Messages are the exception: the goroutine that reads them delivers them.
//
// Invariants:
//   - One command at most is in flight. So an error reply, which names no channel, belongs to that.
//   - look decides by the state alone. So one kick stands for any number of changes.
//   - A channel is live only on the link in use. When that is lost, its subscribers are woken, and poll.
//   - Wakes are noted under mu, and called when it is free: Live has its new value by then.
//
// What can come late: an event or a message of a link that was dropped, which tell and deliver throw away; a
// wake for a subscription that has been closed since; and a subscription that comes just as the goroutine ends:
// running is false by then, so adopt starts another one.

// A step is what remains to be done when mu is free again.
type step struct {
	link  *link    // the connection in use; nil if there is none
	send  *command // to be sent on link; nil if there is none
	wakes []func()
	next  time.Time // when to look again if nothing happens
	end   bool      // there is nothing left to do, ever
}

// run makes the connection what the subscriptions want it to be, for as long as
// there are any. It is the only goroutine that moves channels between states,
// and it does no I/O.
func (h *Hub) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		todo := h.look(time.Now())
		for _, wake := range todo.wakes {
			wake()
		}
		if todo.end {
			return
		}
		var events chan event
		if todo.link != nil {
			events = todo.link.events
		}
		if todo.send != nil {
			todo.link.send(h.rdb, todo.send)
		}
		timer.Reset(time.Until(todo.next))
		select {
		case ev := <-events:
			h.handle(ev, time.Now())
		case <-h.kick:
		case <-timer.C:
		}
	}
}

// look compares what is with what should be and decides what to do next. It
// needs to know only the state, not what has changed since the last look, so no
// order of events can make it forget anything.
func (h *Hub) look(now time.Time) step {
	h.mu.Lock()
	defer h.mu.Unlock()
	// First, because choose looks at the link: a command must not be sent on one that is given up.
	if l := h.link; l != nil && (l.flight != nil && !now.Before(l.deadline(&h.cfg)) || h.misled(now)) {
		h.lose(now)
	}
	var send *command
	if !h.closed && h.free(now) {
		send = h.choose(now)
	}
	// After choose, which may have forgotten the last channel that lingered. Then its UNSUBSCRIBE is not sent: the
	// connection is closed instead.
	if h.closed || len(h.channels) == 0 {
		return h.finish()
	}
	if send != nil {
		if h.link == nil {
			h.link = newLink(h, now)
		}
		h.link.expect(send, now)
	}
	h.lookAt = h.nextLook()
	return step{link: h.link, send: send, wakes: h.takeWakes(), next: h.lookAt}
}

// misled reports whether the link leads to the wrong server: by the map, or because
// so many messages were missed.
func (h *Hub) misled(now time.Time) bool {
	if h.misplaced {
		return true
	}
	// One message may be lost on the way. And if the publisher is to blame, a new connection does not help: without
	// the pause the hub would connect again and again.
	if h.missed < 2 || now.Before(h.moved.Add(h.cfg.PingInterval)) {
		return false
	}
	h.moved = now
	return true
}

// free reports whether a command may be sent.
func (h *Hub) free(now time.Time) bool {
	if h.link == nil {
		return !now.Before(h.retryAt)
	}
	return h.link.flight == nil
}

// nextLook returns when there is something to do if nothing happens before.
// While a command is in flight, nothing else can be sent, whatever is due.
func (h *Hub) nextLook() time.Time {
	l := h.link
	switch {
	case l == nil:
		return h.retryAt
	case l.flight != nil:
		return l.deadline(&h.cfg)
	}
	next := l.fresh.Add(h.cfg.PingInterval)
	for _, q := range []*line{&h.idle, &h.refused} {
		if ch, at := q.first(); ch != nil && at.Before(next) {
			next = at
		}
	}
	return next
}

// choose returns the next command; nil if there is nothing to send to the
// server. Waiters come first, then tidiness, then doubt.
func (h *Hub) choose(now time.Time) *command {
	for ch := h.refused.take(now); ch != nil; ch = h.refused.take(now) {
		ch.state = wanted
		h.wanted.put(ch, now)
	}
	if names := h.takeWanted(); names != nil {
		return &command{verb: h.verbs.subscribe, args: names}
	}
	if names := h.takeIdle(now); names != nil {
		return &command{verb: h.verbs.unsubscribe, args: names}
	}
	// Without a link there is nothing to ping; with one, silence is suspicious.
	suspect := h.suspect && !now.Before(h.pinged.Add(h.cfg.PongTimeout))
	h.suspect = false
	if l := h.link; l == nil || !suspect && now.Before(l.fresh.Add(h.cfg.PingInterval)) {
		return nil
	}
	h.pings++
	h.pinged = now
	return &command{verb: ping, args: []string{"relock-" + strconv.Itoa(h.pings)}}
}

// takeWanted moves channels to subscribing and returns their names: as many as
// fit into one command, or a single one that has been refused before.
func (h *Hub) takeWanted() (names []string) {
	for len(names) < h.verbs.maxArgs {
		ch, _ := h.wanted.first()
		// One that was sent before was in a SUBSCRIBE that was refused as a whole. If it is the reason, the others
		// would be refused with it again.
		if ch == nil || ch.sent && len(names) > 0 {
			break
		}
		h.wanted.remove(ch)
		names = append(names, ch.name)
		ch.state = subscribing
		if ch.sent {
			break
		}
		ch.sent = true
	}
	return names
}

// takeIdle forgets channels that have lingered long enough, and returns their
// names. It is called with no command in flight, so none of them is
// subscribing. A subscription that comes later makes a new channel, and its
// SUBSCRIBE follows the UNSUBSCRIBE.
func (h *Hub) takeIdle(now time.Time) (names []string) {
	for len(names) < h.verbs.maxArgs {
		ch := h.idle.take(now)
		if ch == nil {
			break
		}
		h.forget(ch)
		names = append(names, ch.name)
	}
	return names
}

// handle changes the state of channels by an event of the link.
func (h *Hub) handle(ev event, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.link
	if ev.broken != nil {
		h.lose(now)
		return
	}
	l.fresh, l.spoken = now, true
	if ev.refuse != nil {
		h.refusal(ev.refuse, now)
		return
	}
	switch msg := ev.msg.(type) {
	case *redis.Pong:
		l.answered(ping, msg.Payload)
	case *redis.Subscription:
		h.confirm(msg, now)
	}
}

// confirm handles a confirmation of the server about a subscription.
func (h *Hub) confirm(msg *redis.Subscription, now time.Time) {
	// The channel of a SUBSCRIBE in flight exists: one that has been sent is
	// forgotten only when nothing is in flight, or together with the link.
	ch := h.channels[msg.Channel]
	switch asked := h.link.answered(msg.Kind, msg.Channel); {
	case asked && msg.Kind == h.verbs.subscribe:
		ch.state = live
		h.noteWakes(ch)
	case asked: // takeIdle has forgotten the channel already
	case h.shards != nil && ch != nil && ch.state == live && msg.Kind == h.verbs.unsubscribe:
		// The slot has moved to another node. Those of other channels have not.
		h.noteWakes(ch)
		h.part(ch)
		h.shards.astray(ch, h.shards.pause(now))
	default:
		// No one asked: the server has ended a subscription, or go-redis has
		// moved to another connection without saying so.
		h.lose(now)
	}
}

// refusal deals with an error reply to the command in flight. The server checks
// all channels of a SUBSCRIBE before it subscribes to any, and does not say
// which one it has refused: each is then asked for alone.
func (h *Hub) refusal(reply error, now time.Time) {
	c := h.link.flight
	if c == nil {
		// Not ours: go-redis has reconnected, and been refused.
		h.lose(now)
		return
	}
	h.link.flight = nil
	if c.verb != h.verbs.subscribe {
		return // a user without PING or UNSUBSCRIBE; a refusal is a sign of life too
	}
	if passing(reply) {
		// The refusal is not about the channels. As refused ones they would be left alone for RefusalRetry.
		h.lose(now)
		return
	}
	for name := range c.open {
		ch := h.channels[name]
		if len(c.args) > 1 {
			ch.state = wanted
			h.wanted.put(ch, now)
			continue
		}
		if h.shards != nil && elsewhere(reply) {
			h.part(ch)
			h.shards.astray(ch, h.shards.pause(now))
			continue
		}
		// It stays known to the PubSub until it is unsubscribed like any other;
		// it could do harm only if the link survived a reconnect.
		ch.state = refused
		h.refused.put(ch, now.Add(h.cfg.RefusalRetry))
		h.noteWakes(ch)
	}
}

// passing reports whether a refusal is about the state that the server is in, not the channels:
// it will soon be another one.
func passing(reply error) bool {
	return slices.ContainsFunc([]string{"BUSY ", "LOADING ", "MASTERDOWN "}, func(state string) bool {
		return redis.HasErrorPrefix(reply, state)
	})
}

// lose gives the link up. The next one is opened after a pause, so that a dead
// server is not besieged; the jitter keeps processes that lost their
// connections together from coming back together.
func (h *Hub) lose(now time.Time) {
	if now.Sub(h.link.opened) > h.cfg.MaxBackoff {
		h.backoff = h.cfg.MinBackoff
	}
	h.retryAt = now.Add(h.backoff/2 + clock.N(h.backoff/2+1))
	h.backoff = min(2*h.backoff, h.cfg.MaxBackoff)
	h.disconnect()
}

// disconnect drops the link, if there is one, and takes every channel back to
// wanted. Those of a shard are looked up anew: their master may be gone for
// good. Those that were live may have missed something; the others are polling
// anyway, and a failed attempt to connect is no news to them.
func (h *Hub) disconnect() {
	if h.link == nil {
		return
	}
	h.link.drop()
	h.link, h.missed, h.misplaced = nil, 0, false
	for _, ch := range slices.Collect(maps.Values(h.channels)) {
		if len(ch.subs) == 0 { // it lingers: the next connection need not know of it
			h.forget(ch)
			continue
		}
		if ch.state == live {
			h.noteWakes(ch)
		}
		h.part(ch)
		if h.shards != nil {
			h.shards.astray(ch, h.retryAt)
		} else {
			h.adopt(ch)
		}
	}
}

// finish ends the run goroutine. The next subscription starts another one, maybe before this one has called its
// last wakes: they have nothing to do with that.
func (h *Hub) finish() step {
	h.disconnect()
	for _, ch := range h.channels {
		h.forget(ch)
	}
	h.running = false
	return step{wakes: h.takeWakes(), end: true}
}

// forget removes all traces of ch.
func (h *Hub) forget(ch *channel) {
	h.part(ch)
	if h.shards != nil {
		h.shards.forget(ch)
	}
}

// part gives ch away, as good as new.
func (h *Hub) part(ch *channel) {
	h.wanted.remove(ch)
	h.refused.remove(ch)
	h.idle.remove(ch)
	delete(h.channels, ch.name)
	ch.hub, ch.state, ch.sent = nil, wanted, false
}

// noteWakes wakes the subscribers of ch once mu is free.
func (h *Hub) noteWakes(ch *channel) {
	for _, s := range ch.subs {
		h.wakes = append(h.wakes, s.wake)
	}
}

// deliver gives a message that l has read to the subscribers of its channel, if l is
// still in use.
func (h *Hub) deliver(l *link, msg *redis.Message, now time.Time) {
	h.mu.Lock()
	// A copy, because subscriptions may come and go as soon as mu is free, and no wake is called under it.
	var buf [4]*Subscription
	subs := buf[:0]
	if h.link == l {
		l.fresh, h.missed = now, 0
		if ch := h.channels[msg.Channel]; ch != nil {
			subs = append(subs, ch.subs...)
		}
	}
	h.mu.Unlock()
	for _, s := range subs {
		if s.message == nil {
			s.wake()
		} else {
			s.message(msg.Payload)
		}
	}
}

func (h *Hub) takeWakes() []func() {
	wakes := h.wakes
	h.wakes = nil
	return wakes
}
