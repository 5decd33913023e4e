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
//	link, in flight --all of it answered, or refused--> link, idle --a command to send--> link, in flight
//	link --broken, overdue, misled, or an answer that was not asked for--> no link, for a pause (lose)
//	any --no channel is left, or Close--> no goroutine (finish)
//
// Subscribe, Close, Suspect and Missed change what is wanted, under mu, and kick. The goroutines of the link send
// commands, read, and report events. Only the run goroutine makes and drops links, and moves channels between their
// states (see channel). The goroutine that reads messages also delivers them.
//
// Invariants:
//   - At most one command is in flight. So an error reply, which names no channel, belongs to it.
//   - look decides by the state alone. So one kick stands for any number of changes.
//   - A channel is live only on the link in use. When the link is lost, the subscribers are woken, and poll.
//   - Wakes are recorded under mu, and called when mu is free. Live has its new value by then.
//
// What can come late: an event or a message of a dropped link, which notify and deliver discard; a wake for a
// subscription that is closed by then; and a subscription that begins just as the goroutine ends: running is false by
// then, so adopt starts another goroutine.

// A step is what remains to be done when mu is free again.
type step struct {
	link  *link    // the connection in use; nil if there is none
	send  *command // to be sent on link; nil if there is none
	wakes []func()
	next  time.Time // when to look again if nothing happens
	end   bool      // the run goroutine ends
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

// look compares the state with what is wanted, and returns the next step. It depends only on the state, not on what has
// changed since the last look. So no order of events can make it miss a change.
func (h *Hub) look(now time.Time) step {
	h.mu.Lock()
	defer h.mu.Unlock()
	// First, because choose depends on the link: no command may be sent on a link that is given up.
	if l := h.link; l != nil && (l.flight != nil && !now.Before(l.deadline(&h.cfg)) || h.misled(now)) {
		h.lose(now)
	}
	var send *command
	if !h.closed && h.free(now) {
		send = h.choose(now)
	}
	// After choose, which may have removed the last lingering channel. Then the connection is closed, and no UNSUBSCRIBE
	// is sent.
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

// misled reports whether the link leads to the wrong server, by the map or by the number of missed messages.
func (h *Hub) misled(now time.Time) bool {
	if h.misplaced {
		return true
	}
	// A single message may be lost on the way. And if the publisher is at fault, a new connection does not help. Without
	// the pause the hub would reconnect again and again.
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

// nextLook returns when to look again if nothing happens before. While a command is in flight, no other can be sent,
// whatever is due.
func (h *Hub) nextLook() time.Time {
	l := h.link
	switch {
	case l == nil:
		return h.retryAt
	case l.flight != nil:
		return l.deadline(&h.cfg)
	}
	next := l.fresh.Add(h.cfg.PingInterval)
	for _, q := range []*schedule{&h.idle, &h.refused} {
		if ch, at := q.first(); ch != nil && at.Before(next) {
			next = at
		}
	}
	return next
}

// choose returns the next command, or nil. A SUBSCRIBE comes first, because waiters need it; then an UNSUBSCRIBE; then a
// PING.
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
	// A link is pinged if it is suspect, or silent for PingInterval.
	suspect := h.suspect && !now.Before(h.pinged.Add(h.cfg.PongTimeout))
	h.suspect = false
	if l := h.link; l == nil || !suspect && now.Before(l.fresh.Add(h.cfg.PingInterval)) {
		return nil
	}
	h.pings++
	h.pinged = now
	return &command{verb: ping, args: []string{"relock-" + strconv.Itoa(h.pings)}}
}

// takeWanted moves channels to subscribing, and returns their names: as many as fit into one command, or a single
// channel whose SUBSCRIBE was refused before.
func (h *Hub) takeWanted() (names []string) {
	for len(names) < h.verbs.maxArgs {
		ch, _ := h.wanted.first()
		// A channel that was sent before was in a refused SUBSCRIBE. It may be the reason, and then the others would be
		// refused again.
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

// takeIdle removes channels that have lingered long enough, and returns their names. It is called when no command is in
// flight, so none of them is subscribing. A later subscription makes a new channel, whose SUBSCRIBE follows the
// UNSUBSCRIBE.
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

// handle applies an event of the link to the states of channels.
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

// confirm handles the server's confirmation of a SUBSCRIBE or UNSUBSCRIBE.
func (h *Hub) confirm(msg *redis.Subscription, now time.Time) {
	// The channel of a SUBSCRIBE in flight exists: a channel that was sent is removed only when nothing is in flight, or
	// together with the link.
	ch := h.channels[msg.Channel]
	switch asked := h.link.answered(msg.Kind, msg.Channel); {
	case asked && msg.Kind == h.verbs.subscribe:
		ch.state = live
		h.noteWakes(ch)
	case asked: // takeIdle has removed the channel
	case h.shards != nil && ch != nil && ch.state == live && msg.Kind == h.verbs.unsubscribe:
		// The slot of this channel has moved to another node.
		h.noteWakes(ch)
		h.part(ch)
		h.shards.astray(ch, h.shards.pause(now))
	default:
		// It was not requested: the server has ended a subscription, or go-redis has replaced the connection.
		h.lose(now)
	}
}

// refusal handles an error reply to the command in flight. The server checks all channels of a SUBSCRIBE before it
// subscribes to any, and the reply does not name the refused channel. So each channel is requested again, alone.
func (h *Hub) refusal(reply error, now time.Time) {
	c := h.link.flight
	if c == nil {
		// It is not for a command of the hub: go-redis has reconnected, and was refused.
		h.lose(now)
		return
	}
	h.link.flight = nil
	if c.verb != h.verbs.subscribe {
		return // the user may not use PING or UNSUBSCRIBE; the reply still shows that the connection works
	}
	if passing(reply) {
		// The reason is not the channels. As refused channels they would wait for RefusalRetry.
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
		// The PubSub keeps the name until it is unsubscribed. That would matter only if the link survived a reconnect.
		ch.state = refused
		h.refused.put(ch, now.Add(h.cfg.RefusalRetry))
		h.noteWakes(ch)
	}
}

// passing reports whether the reason of a refusal is a passing state of the server, not the channels.
func passing(reply error) bool {
	return slices.ContainsFunc([]string{"BUSY ", "LOADING ", "MASTERDOWN "}, func(state string) bool {
		return redis.HasErrorPrefix(reply, state)
	})
}

// lose gives up the link. The next link is opened after a pause, which limits the load on a server that is down. The
// pause is random, so that processes that lost their connections together do not reconnect together.
func (h *Hub) lose(now time.Time) {
	if now.Sub(h.link.opened) > h.cfg.MaxBackoff {
		h.backoff = h.cfg.MinBackoff
	}
	h.retryAt = now.Add(clock.Jitter(h.backoff))
	h.backoff = min(2*h.backoff, h.cfg.MaxBackoff)
	h.disconnect()
}

// disconnect drops the link, if there is one, and makes every channel wanted again. Channels of a shard are looked up
// again, because their master may be gone for good. Subscribers of live channels are woken, because they may have missed
// a message. The others poll anyway.
func (h *Hub) disconnect() {
	if h.link == nil {
		return
	}
	h.link.drop()
	h.link, h.missed, h.misplaced = nil, 0, false
	for _, ch := range slices.Collect(maps.Values(h.channels)) {
		if len(ch.subs) == 0 { // it lingers, and is not needed on the next connection
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

// finish ends the run goroutine. The next subscription starts another one, perhaps before this one has called its last
// wakes. The two do not depend on each other.
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

// part removes ch from the hub, and resets it.
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

// deliver passes a message that l has read to the subscribers of its channel, if l is still in use.
func (h *Hub) deliver(l *link, msg *redis.Message, now time.Time) {
	h.mu.Lock()
	// A copy, because subscriptions may change as soon as mu is free, and no wake is called under mu.
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
