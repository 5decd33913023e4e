package wake

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
)

// A hub makes its connection what the subscriptions want it to be:
//
//	no goroutine --adopt: the first channel--> no connection
//	no connection --a channel is wanted, and the pause is over--> connected, a command in flight
//	connected, in flight --all of it answered, or refused--> connected, idle --a command to send--> connected, in flight
//	connected --broken, overdue, misled, or an answer that was not asked for--> no connection, for a pause (lose)
//	any --Close, or no channel is left and nothing is in flight--> no goroutine
//
// The run goroutine decides what is sent, by the state alone, whenever it is kicked. So one kick stands for any number of
// changes. It does no I/O: go-redis may hold the mutex of a PubSub for as long as a dial. A command is sent on a goroutine
// of its own. The one that sent the first command of a connection reads it from then on, and handles what it reads.
//
// A connection is one PubSub. If anything goes wrong with it, it is replaced as a whole, because a PubSub that reconnects
// subscribes to all channels in one command: if one is refused, none is subscribed, and a Cluster refuses channels of
// different slots.
//
// Invariants:
//   - At most one command is in flight. So an error reply, which names no channel, is about the channels in state asked.
//   - A channel is live only on the connection in use. When that is lost, the subscribers are woken, and poll.
//   - Wakes are recorded under mu, and called when mu is free. Live has its new value by then.
//
// What can come late: what an old connection still reads or reports, which is discarded, because that is not h.ps; a wake for
// a subscription that is closed by then; and a subscription that begins just as the run goroutine ends: running is false
// by then, so adopt starts another one.

// A verb is a method of the PubSub, which sends a command.
type verb = func(*redis.PubSub, context.Context, ...string) error

// Verbs are the two kinds of pub/sub: the one of any server, and the sharded one of a Cluster,
// in which messages stay within a shard.
type verbs struct {
	subscribe, unsubscribe verb

	// maxArgs bounds the channels in one SUBSCRIBE or UNSUBSCRIBE. If one channel is refused, each channel of the
	// command costs a round trip of its own. With a lower bound, a new connection needs more round trips for many
	// channels.
	maxArgs int
}

var (
	plain = verbs{(*redis.PubSub).Subscribe, (*redis.PubSub).Unsubscribe, 128}
	// One SSUBSCRIBE takes channels of one slot only.
	sharded = verbs{(*redis.PubSub).SSubscribe, (*redis.PubSub).SUnsubscribe, 1}
)

// A step is what the run goroutine does without mu.
type step struct {
	send verb          // the command; nil: none
	ps   *redis.PubSub // to send it on; nil: a new one
	args []string
	next time.Time // when to look again if nothing happens
	end  bool
}

// run has commands sent for as long as there are channels. ctx ends with the last channel, or with Close.
func (h *Hub) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		todo := h.look(time.Now())
		if todo.end {
			return
		}
		if todo.send != nil {
			h.send(ctx, todo)
		}
		timer.Reset(time.Until(todo.next))
		select {
		case <-h.kick:
		case <-timer.C:
		}
	}
}

// send sends a command in the background. The first command is a SUBSCRIBE and opens the connection, because a Cluster client
// chooses the node by the channel. Reading starts after that.
func (h *Hub) send(ctx context.Context, todo step) {
	if todo.ps != nil {
		h.all.Go(func() { h.call(ended, todo.ps, todo) })
		return
	}
	ps, err := h.open(ctx)
	if err != nil {
		h.lost(nil, time.Now())
		return
	}
	h.all.Go(func() {
		if h.call(ctx, ps, todo) {
			h.read(ps)
		}
	})
}

// ended is a context that has ended. With it, go-redis writes and reads, but its dial ends at once. Otherwise it would report
// that a connection is lost only after it has opened another one, which may take as long as a dial. With TLS it still does: its
// dialer takes no context there.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// open makes the PubSub. If the client panics, as a wrapped *redis.Ring does, there are no messages, and waiters keep
// polling.
func (h *Hub) open(ctx context.Context) (ps *redis.PubSub, err error) {
	defer goroutine.Recover(&err)
	ps = h.rdb.Subscribe(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ps = ps
	return ps, nil
}

// call sends a command, and reports whether that succeeded. It may take longer than the hub waits for it, if the dialer or the
// connection takes no context and no deadline.
func (h *Hub) call(ctx context.Context, ps *redis.PubSub, todo step) bool {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.AnswerTimeout)
	defer cancel()
	err := todo.on(ctx, ps)
	if err != nil {
		h.lost(ps, time.Now())
	}
	return err == nil
}

// on sends the command of the step on ps.
func (s step) on(ctx context.Context, ps *redis.PubSub) (err error) {
	defer goroutine.Recover(&err)
	return s.send(ps, ctx, s.args...)
}

// look decides what run does next. A SUBSCRIBE comes first, because waiters need it; then an UNSUBSCRIBE; then a PING.
func (h *Hub) look(now time.Time) step {
	h.mu.Lock()
	defer h.unlock()
	if h.misled(now) || h.inFlight() && !now.Before(h.deadline()) {
		h.lose(now)
	}
	// If all channels have lingered, they need no UNSUBSCRIBE, because the connection is closed. Not during a handshake: until it
	// ends, nobody can close the connection.
	if h.closed || len(h.channels) == len(h.idle) && !h.inFlight() {
		h.disconnect()
		for _, ch := range h.channels {
			h.forget(ch)
		}
		h.running = false
		h.cancel()
		return step{end: true}
	}
	if h.ps == nil && now.Before(h.retryAt) {
		return step{next: h.retryAt}
	}
	if h.inFlight() {
		return step{next: h.deadline()}
	}
	if names := h.takeWanted(); names != nil {
		return h.command(h.verbs.subscribe, names, now)
	}
	if names := h.takeIdle(); names != nil {
		h.leaving = len(names)
		return h.command(h.verbs.unsubscribe, names, now)
	}
	due := h.fresh.Add(h.cfg.PingInterval)
	suspect := h.suspect && !now.Before(h.pinged.Add(h.cfg.PongTimeout))
	h.suspect = false
	if h.ps != nil && (suspect || !now.Before(due)) {
		h.pinging, h.pinged = true, now
		return h.command((*redis.PubSub).Ping, nil, now)
	}
	return step{next: due}
}

// command is the step of a command that is in flight from now on.
func (h *Hub) command(send verb, args []string, now time.Time) step {
	h.sent, h.fresh = now, now
	return step{send: send, ps: h.ps, args: args, next: h.deadline()}
}

// inFlight reports whether a command is in flight.
func (h *Hub) inFlight() bool { return len(h.asked) > 0 || h.leaving > 0 || h.pinging }

// deadline returns the time at which the command in flight is overdue. Before the server has sent anything,
// dialing and authentication may take long, so AnswerTimeout alone counts. After that, a silence of PongTimeout
// is enough.
func (h *Hub) deadline() time.Time {
	late := h.sent.Add(h.cfg.AnswerTimeout)
	if silent := h.fresh.Add(h.cfg.PongTimeout); h.spoken && silent.Before(late) {
		return silent
	}
	return late
}

// misled reports whether the connection leads to the wrong server, by the map or by the number of missed messages.
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

// takeWanted moves channels to asked, and returns their names: as many as fit into one command, or a single channel that was
// refused before.
func (h *Hub) takeWanted() (names []string) {
	for ch := range h.wanted {
		if ch.alone && names != nil {
			continue
		}
		delete(h.wanted, ch)
		h.asked[ch] = struct{}{}
		ch.state = asked
		if names = append(names, ch.name); ch.alone || len(names) == h.verbs.maxArgs {
			break
		}
	}
	return names
}

// takeIdle removes channels that have lingered, and returns their names. No command is in flight, so none of them is asked
// for. A later subscription makes a new channel, whose SUBSCRIBE follows the UNSUBSCRIBE.
func (h *Hub) takeIdle() (names []string) {
	for ch := range h.idle {
		h.forget(ch)
		if names = append(names, ch.name); len(names) == h.verbs.maxArgs {
			break
		}
	}
	return names
}

// want makes a channel wanted.
func (h *Hub) want(ch *channel) {
	delete(h.asked, ch)
	ch.stop()
	ch.state = wanted
	h.wanted[ch] = struct{}{}
	h.nudge()
}

// backToBack is the longest time between two messages that count as arrived together. The woken waiters run after the
// last of them, because yielding takes long on a busy machine.
const backToBack = 100 * time.Microsecond

// read passes on what the server sends, until the connection fails. It delivers messages on its own goroutine, because
// another one in between would add a tenth to the time from a release to the waiter.
func (h *Hub) read(ps *redis.PubSub) {
	for {
		began := time.Now()
		msg, err := receive(ps)
		now := time.Now()
		var reply redis.Error
		switch m, ok := msg.(*redis.Message); {
		case ok:
			h.deliver(ps, m, now)
			if now.Sub(began) > backToBack {
				runtime.Gosched() // woken waiters run first, because the next read takes a system call
			}
		case err == nil:
			h.confirm(ps, msg, now)
		case errors.As(err, &reply) && h.refusal(ps, err, now):
		default:
			h.lost(ps, now)
			return
		}
	}
}

// receive returns what the server sends next.
func receive(ps *redis.PubSub) (msg any, err error) {
	defer goroutine.Recover(&err)
	return ps.Receive(ended)
}

// lost is lose, if the connection is in use.
func (h *Hub) lost(ps *redis.PubSub, now time.Time) {
	h.mu.Lock()
	defer h.unlock()
	if h.ps == ps {
		h.lose(now)
	}
}

// lose gives up the connection, or the attempt to open one. The next is opened after a pause, which limits the load on a
// server that is down. The pause is random, so that processes that lost their connections together do not reconnect
// together.
func (h *Hub) lose(now time.Time) {
	if now.Sub(h.retryAt) > h.cfg.MaxBackoff {
		h.backoff = h.cfg.MinBackoff
	}
	h.retryAt = now.Add(clock.Jitter(h.backoff))
	h.backoff = min(2*h.backoff, h.cfg.MaxBackoff)
	h.disconnect()
	h.nudge()
}

// disconnect closes the connection, and makes every channel wanted again. Subscribers of live channels are woken, because
// they may have missed a message. The others poll anyway. Channels of a shard are looked up again, because their master may
// be gone for good.
func (h *Hub) disconnect() {
	if ps := h.ps; ps != nil {
		h.all.Go(func() { // go-redis may hold its mutex for as long as a dial
			var err error
			defer goroutine.Recover(&err)
			_ = ps.Close()
		})
	}
	h.ps, h.leaving, h.spoken, h.pinging, h.missed, h.misplaced = nil, 0, false, false, 0, false
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

// confirm handles what is neither a message nor an error.
func (h *Hub) confirm(ps *redis.PubSub, msg any, now time.Time) {
	h.mu.Lock()
	defer h.unlock()
	if h.ps != ps {
		return
	}
	h.fresh, h.spoken = now, true
	m, ok := msg.(*redis.Subscription)
	if !ok {
		h.pinging = false
		h.nudge()
		return
	}
	ch := h.channels[m.Channel]
	switch subscribed := m.Kind == "subscribe" || m.Kind == "ssubscribe"; {
	case subscribed && ch != nil && ch.state == asked:
		delete(h.asked, ch)
		ch.state, ch.alone = live, false
		h.noteWakes(ch)
	case !subscribed && h.leaving > 0 && (ch == nil || ch.state != live):
		h.leaving--
	case !subscribed && h.shards != nil && ch != nil && ch.state == live: // its slot has moved to another node
		h.noteWakes(ch)
		h.part(ch)
		h.shards.astray(ch, h.shards.pause(now))
	default:
		h.lose(now) // it was not requested
	}
	h.nudge()
}

// refusal handles an error reply, and reports whether the connection is still good. The server checks all channels of a
// SUBSCRIBE before it subscribes to any, and the reply does not name the refused channel. So each channel is requested
// again, alone.
func (h *Hub) refusal(ps *redis.PubSub, reply error, now time.Time) bool {
	h.mu.Lock()
	defer h.unlock()
	if h.ps != ps {
		return true
	}
	h.fresh, h.spoken = now, true
	h.nudge()
	switch n := len(h.asked); {
	case n == 0 && h.inFlight() && !strings.Contains(reply.Error(), "permissions to access"):
		// The user may not use PING or UNSUBSCRIBE. The reply still shows that the connection works. (A refusal to access a
		// channel answers neither of them: go-redis has reconnected.)
		h.leaving, h.pinging = 0, false
		return true
	case n == 0: // not for a command of the hub: go-redis has reconnected, and was refused
		return false
	case passing(reply):
		// The reason is not the channels. As refused channels they would wait for RefusalRetry.
		return false
	}
	company := len(h.asked) > 1
	for ch := range h.asked {
		if len(ch.subs) == 0 {
			h.forget(ch)
			continue
		}
		if company {
			ch.alone = true
			h.want(ch)
			continue
		}
		delete(h.asked, ch)
		if h.shards != nil && elsewhere(reply) {
			h.part(ch)
			h.shards.astray(ch, h.shards.pause(now))
			continue
		}
		ch.state, ch.alone = refused, true
		h.noteWakes(ch)
		ch.after(h.cfg.RefusalRetry, func() { h.want(ch) })
	}
	return true
}

// passing reports whether the reason of a refusal is a passing state of the server, not the channels.
func passing(reply error) bool {
	return slices.ContainsFunc([]string{"BUSY ", "LOADING ", "MASTERDOWN "}, func(state string) bool {
		return redis.HasErrorPrefix(reply, state)
	})
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
	delete(h.wanted, ch)
	delete(h.asked, ch)
	delete(h.idle, ch)
	delete(h.channels, ch.name)
	ch.stop()
	ch.hub, ch.state, ch.alone = nil, wanted, false
}

// noteWakes wakes the subscribers of ch once mu is free.
func (h *Hub) noteWakes(ch *channel) {
	for _, s := range ch.subs {
		h.wakes = append(h.wakes, s.wake)
	}
}

// unlock frees mu, and wakes.
func (h *Hub) unlock() {
	wakes := h.wakes
	h.wakes = nil
	h.mu.Unlock()
	for _, wake := range wakes {
		wake()
	}
}

// deliver passes a message to the subscribers of its channel.
func (h *Hub) deliver(ps *redis.PubSub, msg *redis.Message, now time.Time) {
	h.mu.Lock()
	// A copy, because subscriptions may change as soon as mu is free, and no wake is called under mu.
	var buf [4]*Subscription
	subs := buf[:0]
	if h.ps == ps {
		h.fresh, h.missed = now, 0
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
