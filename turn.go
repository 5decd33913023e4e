package relock

import (
	"time"

	"github.com/relock-go/relock/internal/queue"
)

// inTurn is the way of a plain lock: one waiter of a process at a time has the turn on a
// key. He alone asks Redis for it, and keeps the turn for as long as he holds it, so that
// he can hand both over to the next.
type inTurn struct{}

func (inTurn) queue(g *gate) *queue.Queue[*hold] { return &g.queue }
func (inTurn) listen(c *Client, g *gate)         { g.listen(c.hub) }
func (inTurn) unlisten(g *gate)                  { g.unlisten() }
func (inTurn) listening(g *gate) bool            { return g.listening() }
func (inTurn) rivals(*hold) int                  { return 0 }
func (inTurn) longest(s *settings) time.Duration { return s.safetyPoll }

// line collects the turns on all keys.
func (inTurn) line(w *wait) (bool, error) {
	for {
		if turn, err := w.turn(); !turn {
			return false, err
		}
		if w.named() {
			if !w.late() {
				return true, nil
			}
			w.scatter()
		}
		if turn, err := w.gather(); turn || err != nil || !w.waits {
			return turn, err
		}
	}
}

func (inTurn) ask(w *wait) (grant, outcome) {
	g, out := w.try()
	if out.err != nil {
		return g, out
	}
	w.suspect(g)
	if g.held && w.queued {
		w.places[w.at].queue.Served()
	}
	return g, out
}

func (inTurn) request(w *wait, _ *identity, field string) (grant, outcome) {
	return w.target.kind.acquire(w.ctx, w.effort(), w.target, field, w.settings)
}

func (inTurn) rest(w *wait, d time.Duration) error {
	w.scatter()
	return w.rest(d)
}

func (inTurn) end(w *wait, granted bool) {
	if !granted {
		w.leave()
	}
}

// Somebody who wants several keys stands in one queue at a time, that of the key which was
// taken last: waiting for it, he is in nobody's way on the others. He collects the turns on
// those for a try, and lets nobody pass for as long as that takes: which is not long, or he
// would be in the way after all, and not never, or he would starve where every key is
// always in use.

// gathering is how long one turn is waited for while those on other keys are kept: at
// first, doubling with every time that was in vain, and at most.
const (
	gathering    = 40 * time.Millisecond
	gatheringMax = 2 * time.Second
)

// turn waits for the turn in the queue where w stands. A hand-over comes with the turn on
// every key. false, nil: not waiting, and somebody is there.
func (w *wait) turn() (bool, error) {
	t := w.places[w.at].ticket
	if state, _ := t.State(); state == queue.Turn {
		return true, nil
	}
	if !w.waits {
		return t.TryJoin(), nil
	}
	if !t.Join() {
		w.contend()
		if err := w.awaitTurn(t); err != nil {
			return false, err
		}
		if w.named() {
			w.takeOver()
			return true, nil
		}
	}
	if !w.news() {
		// The last holder gave the lock back to everybody, to give way to other processes:
		// compete with them, and wait for the message they wait for.
		if err := w.rest(jitter(2 * turnOfMessage)); err != nil {
			return false, err
		}
	}
	return true, nil
}

// awaitTurn waits until t has the turn, or was let out of the line, or failed, or the place on
// Redis has come to its end, or the wait is over.
func (w *wait) awaitTurn(t *queue.Ticket[*hold]) error {
	for {
		switch state, err := t.State(); {
		case state == queue.Turn, state == queue.Gone, w.entry.settled():
			return nil
		case state == queue.Failed:
			return err
		}
		over := w.sleep(-1)
		if over == nil {
			over = w.reads() // a fixed owner may have got to read meanwhile: see rouseOwner
		}
		if over == nil {
			continue
		}
		switch t.Quit() {
		case queue.Turn:
			if w.named() {
				return nil // a hand-over came first: it counts
			}
		case queue.Reserved:
			// The name that the hand-over carries is in use, in an unknown state.
			w.client.retire(w.offered)
			w.owe(w.settled)
		}
		return over
	}
}

// takeOver waits until a hand-over, which comes with the turn on one key, has passed the
// turns on the others, too. Nothing keeps it from that.
func (w *wait) takeOver() {
	for _, p := range w.places {
		for state, _ := p.ticket.State(); state != queue.Turn; state, _ = p.ticket.State() {
			<-w.alarm
		}
	}
}

// gather collects the turns on the other keys, in their order: only for later keys does w
// wait, so those who gather do not wait for each other in a circle. If one cannot be had in
// time, w goes to stand in that queue instead.
func (w *wait) gather() (bool, error) {
	for i, p := range w.places {
		if i == w.at || p.ticket.TryJoin() {
			continue
		}
		turn, err := false, error(nil)
		if w.waits && i > w.at {
			turn, err = w.insist(p.ticket)
		}
		if !turn {
			w.at = i
			w.scatter()
			return false, err
		}
	}
	return true, nil
}

// insist waits for a turn, for a while.
func (w *wait) insist(t *queue.Ticket[*hold]) (bool, error) {
	if t.Join() {
		return true, nil
	}
	w.contend()
	until := w.client.now().after(jitter(min(gathering<<min(w.vain, 10), gatheringMax)))
	for {
		if state, err := t.State(); state == queue.Turn || state == queue.Failed {
			return state == queue.Turn, err
		}
		left := w.client.now().until(until)
		if left <= 0 {
			w.vain++
			return t.Quit() == queue.Turn, nil
		}
		if err := w.sleep(left); err != nil {
			return false, err
		}
	}
}

// scatter gives up the turns on the keys in whose queues w does not stand.
func (w *wait) scatter() {
	for i, p := range w.places {
		if i != w.at {
			p.ticket.Leave()
		}
	}
}

// contend notes that the lock is taken and, at the first time, starts to listen for messages.
func (w *wait) contend() {
	w.queued = true
	if w.listens {
		return
	}
	w.listens = true
	for _, p := range w.places {
		w.target.kind.listen(w.client, p.gate)
	}
	report(w.settings.hooks.Contended, Event{Name: w.target.name, Elapsed: w.client.now().since(w.started)})
}

func (w *wait) unlisten() {
	if w.listens {
		for _, p := range w.places {
			w.target.kind.unlisten(p.gate)
		}
	}
}

// listening reports whether a release of the key that w waits for would reach it as a message.
func (w *wait) listening() bool { return w.target.kind.listening(w.places[w.at].gate) }

// news reports whether there is a reason to try at once, and starts a try.
func (w *wait) news() bool { return w.places[w.at].ticket.News() || w.entry.settled() }
