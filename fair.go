package relock

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/wake"
)

// FairMutex returns a handle of the lock name that is served in order: whoever asked first, in
// any goroutine of any process, gets it first. Asked means that Redis has executed the
// request. It is the lock of [Client.Mutex]: both exclude and wake each other, and a goroutine
// that holds it by one handle re-enters it by the other. Only those who use a Mutex or
// MultiMutex may overtake. A bad name or option is returned by the first call that would use
// it; on a client of NewQuorum that is ErrUnsupported.
//
// Lock waits in a queue on Redis. A release gives the lock to the first who waits and lives,
// and tells that process alone, which needs no further request to know that it holds it. A
// place in the queue is a lease of 10 s, or twice WithSafetyPoll or the TTL if one of those
// is less; one request in a third of it keeps the places of all who wait in this process.
// A waiter that has died keeps the others waiting for that lease at most, and a client that
// was cut off for longer loses its places: it waits again, behind the others. One that gives
// up leaves at once. TryLock does not overtake: it returns false while anybody waits.
//
// The lease of a lock that was waited for is that of the place at first; the watchdog soon
// raises it to the TTL, once even WithoutRenewal. WithLocalHandoffs has no effect: the next
// of the same process is served like any other. State after a failure, errors and concurrent
// use are those of [Mutex.Lock]. FairMutex itself makes no round trip. A Lock takes one, which
// gets the lock or a place in the queue; who has a place needs no other to hold the lock.
// WithReplicas takes one more, for whoever has got the lock: to have it confirmed.
//
// Beside the keys of a Mutex it uses relock_fair_queue:{name}, relock_fair_entries:{name} and
// channels that begin with relock_fair_grants:{name}; with an ACL the token counter must be
// allowed, too.
func (c *Client) FairMutex(name string, opts ...MutexOption) *Mutex {
	m := c.mutex(c.fair, []string{name}, opts)
	if m.err == nil {
		m.err = helped(m.target.keys[0])
	}
	if m.err == nil {
		m.target.fair = newFairKeys(m.target.keys[0])
	}
	return m
}

// messageHub is a hub for those who read the messages.
type messageHub interface {
	hub
	SubscribeTo(channel string, wake func(), message func(payload string)) *wake.Subscription
	Rejoin(channel string, wake func(), message func(payload string)) *wake.Subscription
}

// inOrder is the way of a fair lock: every waiter stands in the queue on Redis, and is told
// when the lock is his. The turn here is only that to poll, for all of the process: whoever
// is served passes it on, and what he holds is not handed over here but given back.
type inOrder struct{ *fair }

func (inOrder) queue(g *gate) *queue.Queue[*hold] { return &g.fairly().queue }
func (inOrder) listening(g *gate) bool            { return g.fairly().listening() }
func (inOrder) rivals(*hold) int                  { return 0 }
func (inOrder) longest(s *settings) time.Duration { return s.entryPoll() }
func (inOrder) unlisten(g *gate)                  { g.fairly().unlisten() }

func (f inOrder) listen(_ *Client, g *gate) {
	g.fairly().listen(f.hub.SubscribeTo, g.channel, f.grantsFor(g))
}

// grantsFor is the channel on which this process is told of grants.
func (f inOrder) grantsFor(g *gate) string {
	return derived(fairGrantsPrefix, g.key) + ":" + f.process
}

// line lets a newcomer ask at once. Who has a place on Redis waits until that has become the
// lock, or has ended, or it is his turn to poll and time for it.
func (inOrder) line(w *wait) (bool, error) {
	for w.entry != nil {
		if s := w.entry.standing(); s.state > entryWaiting {
			return w.settle(s)
		}
		if due, err := w.awaitPoll(); due || err != nil {
			return due, err
		}
	}
	return true, nil
}

// settle acts on what has become of w's place. true: w is named, and holds the lock; or it has
// lost the place, and asks anew.
func (w *wait) settle(s standing) (bool, error) {
	switch s.state {
	case entryFailed:
		return false, s.err
	case entryGone:
		// However that came about: nobody is to come back under that name.
		w.client.retire(w.entry.identity)
		w.forgo()
		return true, nil
	}
	w.accept()
	if w.late() {
		return true, nil
	}
	out := w.confirm()
	if out.err == nil {
		return true, nil
	}
	if err := w.failed(out); err != nil {
		return false, err
	}
	err := w.rest(backoff(w.misses))
	return err == nil, err
}

// awaitPoll waits until it is w's turn to poll, and time for it. false, nil: the place is to be
// looked at first, there may be news of it.
func (w *wait) awaitPoll() (bool, error) {
	ticket := w.places[0].ticket
	state, _ := ticket.State()
	if state == queue.Gone && ticket.Join() {
		ticket.Since(w.entry.mark)
		state = queue.Turn
	}
	if state != queue.Turn {
		return false, w.awaitTurn(ticket)
	}
	if !w.news() { // of before it had the turn, even
		if err := w.restUntil(w.entry.party.due); err != nil {
			return false, err
		}
	}
	return !w.entry.settled(), nil
}

// ask gets w a place on Redis; from then on it polls for all of the process. The grant may
// be told before the answer has come: the ticket is known, and messages that reach this
// process are heard, before the request is sent.
func (f inOrder) ask(w *wait) (grant, outcome) {
	if w.entry != nil {
		return f.poll(w)
	}
	if !w.waits {
		return w.try()
	}
	p := w.places[0].fairly()
	if !w.attends {
		w.attends = true
		p.listen(f.hub.Rejoin, w.places[0].channel, f.grantsFor(w.places[0].gate))
	}
	w.entry = p.enter(w.hold)
	g, out := w.try()
	switch {
	case out.err != nil:
		w.forgo()
	case g.held:
		w.forgo()
		out = w.confirm()
		g.held = out.err == nil
	default:
		p.placed(w.entry, out)
	}
	return g, out
}

func (f inOrder) request(w *wait, identity *identity, field string) (grant, outcome) {
	if w.entry == nil {
		return f.acquire(w.ctx, w.effort(), w.target, field, w.settings)
	}
	// Replicas are not waited for yet: a place is to be kept meanwhile.
	w.entry.identity, w.entry.field = identity, field
	return f.enqueue(w.ctx, w.entry.paced(acquireEffort), w.target, field, w.settings, w.entry.ticket)
}

// mostPolled is how many waiters one script polls for: Redis does nothing else meanwhile.
const mostPolled = 500

// poll keeps the places of all who wait in this process, and learns how they stand.
func (f inOrder) poll(w *wait) (g grant, out outcome) {
	p := w.entry.party
	for entries := range slices.Chunk(p.waiting(), mostPolled) {
		waiters := make([]waiter, len(entries))
		effort := acquireEffort
		for i, e := range entries {
			waiters[i] = waiter{field: e.field, settings: e.hold.settings}
			effort = e.paced(effort)
		}
		var all []standing
		all, g, out = f.fair.poll(w.ctx, effort, w.target, waiters)
		if out.err != nil {
			return g, out
		}
		w.places[0].heard()
		if served := p.learn(entries, all, out.sent); served && w.polled {
			w.client.hub.Suspect(f.grantsFor(w.places[0].gate)) // a message might have told
		}
	}
	return g, out
}

// rest sets the time of the next poll, which is for whoever has the turn then.
func (inOrder) rest(w *wait, d time.Duration) error {
	if w.entry == nil {
		return w.rest(d) // it has no place yet: Redis did not answer
	}
	state, _ := w.places[0].ticket.State()
	w.entry.party.schedule(w.entry, w.client.now(), d, state == queue.Turn)
	return nil
}

// end passes the turn on, and gives a place up that has not become the lock; or has, by now.
// The name is retired: what it is given up with may be sent again at any time.
func (inOrder) end(w *wait, _ bool) {
	if e := w.entry; e != nil {
		w.client.retire(e.identity)
		w.undo(e.field, 2*w.settings.entryLease(), false)
		w.forgo()
	}
	if w.attends {
		w.places[0].fairly().unlisten()
	}
	if ticket := w.places[0].ticket; w.misses > 0 {
		ticket.Leave() // what it was to find out was not answered: whoever is next asks at once
	} else {
		ticket.Pass()
	}
}

// accept makes a place that has become the lock a hold.
func (w *wait) accept() {
	e := w.entry
	s := e.standing()
	w.receive(e.identity, e.field, s.token, s.proof, w.settings.entryLease())
	w.mu.Lock()
	now := w.client.now()
	w.raiseAt = now.after(now.until(w.deadline) / raiseWithin)
	w.mu.Unlock()
	w.forgo()
}

// confirm has the replicas confirm a lock that w has got: nobody has asked them yet. It raises
// the lease before they are waited for. After a failure the grant has been given back.
func (w *wait) confirm() outcome {
	if w.settings.replicas.n == 0 {
		return outcome{}
	}
	w.places[0].ticket.Pass() // others poll meanwhile
	ours, out := w.target.kind.renew(w.ctx, w.effort(), w.target, w.field, w.settings.ttl)
	switch {
	case out.err != nil:
	case !ours:
		out.err = errNotOnRedis
	case out.unconfirmed != nil:
		out.err, out.permanent = out.unconfirmed, true
	default:
		if out.doubt {
			w.client.retire(w.identity)
		}
		w.mu.Lock()
		w.prove(out.sent, w.settings.ttl)
		w.mu.Unlock()
		return out
	}
	w.disown()
	return out
}

// raiseWithin is the part of a short lease after which it is raised to the full one: at
// once would be a request more for each of the many holds that end sooner.
const raiseWithin = 16

// forgo forgets a place.
func (w *wait) forgo() {
	w.entry.party.remove(w.entry)
	w.entry = nil
}
