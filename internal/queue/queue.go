// Package queue lines up the waiters of one process for one lock.
//
// One ticket at a time has the turn: its owner alone may ask Redis for the lock, and keeps
// the turn for as long as it holds it. The others wait, first come, first served, and cost
// nothing. The turn goes on when its ticket leaves, or is handed over together with the
// lock itself.
//
//	Gone --Join, TryJoin--> Turn if no ticket has it, else Waiting by Join, or still Gone
//	the first that is Waiting --the one with the turn leaves--> Turn
//	Waiting --Reserve--> Reserved --Grant, PassTo--> Turn, or --Refuse--> Waiting
//	Waiting --Fail--> Failed
//	any --its owner leaves, or another opens the line, or it has passed the turn on--> Gone
//
// Invariants:
//   - If a ticket waits, another one has the turn. So the turn always has a next owner.
//   - One ticket at most is Reserved, and it is the first in line.
//   - A ticket that gets the turn, or is let out of the line, by another one's owner hears its alarm after that.
//
// What can come late: a Grant or a Refuse for a ticket that has left, which changes nothing; and an alarm for
// what its owner has seen already. So an alarm is only a reason to look at the State.
package queue

import (
	"container/list"
	"sync"
)

// Queue is the line for one name. The zero Queue is empty. V is what a ticket carries for
// the one who hands the lock over.
type Queue[V any] struct {
	Bell // its mu guards the queue, too

	turn *Ticket[V] // nil only if the queue is empty
	line list.List  // of the tickets that wait, the reserved one included

	// handoffs counts the hand-overs in a row, since the lock was last free for all.
	handoffs int

	// turnAt is the number of wake-ups after which it is this process' turn again: since it
	// gave way, every other process should have had one.
	turnAt uint64
}

// Bell wakes the ticket of a queue that has the turn, whatever the tickets carry.
type Bell struct {
	mu sync.Mutex

	// wakes counts the wake-ups. They belong to the queue: one that came while no one could
	// act on it is still news to the next that has the turn.
	wakes uint64

	alarm *Alarm // of the ticket that has the turn; nil: none has it
}

// Ticket is one place in a Queue. Its owner looks at its State whenever its alarm rings.
type Ticket[V any] struct {
	Value V

	queue *Queue[V]
	alarm *Alarm

	state State
	err   error  // of a failed ticket
	seen  uint64 // the wake-ups that this ticket, having the turn, need not act on
	fresh bool   // it got the turn and should try at once

	place *list.Element // in the line, while it waits
}

// State is how a ticket stands.
type State int

// The states. A ticket that is Gone may join again.
const (
	Gone     State = iota // not in the queue
	Waiting               // in line
	Reserved              // in line, with a hand-over to it under way
	Turn                  // may ask Redis, or holds the lock
	Failed                // taken out of the line with an error
)

// Ticket returns a ticket for q, which is not in line yet. alarm rings whenever the ticket's
// state changes by another's doing, and at each wake-up while it has the turn.
func (q *Queue[V]) Ticket(value V, alarm *Alarm) *Ticket[V] {
	t := new(Ticket[V])
	q.Issue(t, value, alarm)
	return t
}

// Issue is Ticket for a ticket that is part of something else.
func (q *Queue[V]) Issue(t *Ticket[V], value V, alarm *Alarm) {
	*t = Ticket[V]{Value: value, queue: q, alarm: alarm}
}

// Join gets t into line, and reports whether it has the turn at once.
// The state changes under the lock of the queue, and the alarm rings after that: a waiter that it wakes sees the change.
func (t *Ticket[V]) Join() bool {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.turn == nil {
		q.give(t)
		return true
	}
	t.state, t.place = Waiting, q.line.PushBack(t)
	return false
}

// TryJoin gets t the turn if the queue is empty.
// It never waits, and so needs no alarm.
func (t *Ticket[V]) TryJoin() bool {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.turn != nil {
		return false
	}
	q.give(t)
	return true
}

// give lets t have the turn, and try at once.
// A new turn is a reason to try by itself: nothing may wake it later.
func (q *Queue[V]) give(t *Ticket[V]) {
	q.turn, q.Bell.alarm, t.state, t.seen, t.fresh = t, t.alarm, Turn, q.wakes, true
}

// first returns the next in line, or nil.
func (q *Queue[V]) first() *Ticket[V] {
	e := q.line.Front()
	if e == nil {
		return nil
	}
	return e.Value.(*Ticket[V])
}

// Leave gives up t's place, or its turn, which goes to the next in line. That one tries at once.
func (t *Ticket[V]) Leave() {
	t.leave(func(*Queue[V], *Ticket[V]) {})
}

// GiveWay is Leave after the lock was given back to all because it is the turn of
// other processes: the next in line does not try at once, but waits for the wake-up that
// those wait for. mark is what Wakes said before the lock was given back, processes how
// many wait for it, this one included.
func (t *Ticket[V]) GiveWay(mark uint64, processes int) {
	t.leave(func(q *Queue[V], next *Ticket[V]) {
		// Wake-ups from after mark are news: the lock may have come back already.
		next.seen, next.fresh = mark, false
		q.turnAt = mark + uint64(processes)
	})
}

// Pass is Leave by one that was served, or does not want to be any more: the next in
// line need not try at once, but goes on where t was, and tries when there is news.
func (t *Ticket[V]) Pass() {
	t.leave(func(_ *Queue[V], next *Ticket[V]) { next.seen, next.fresh = t.seen, t.fresh })
}

// Open is Leave by one that was served with what others can have besides: all that wait
// leave the line with it, and are told to try. A ticket without the turn leaves alone.
func (t *Ticket[V]) Open() {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.state != Turn {
		q.drop(t)
		return
	}
	t.state, q.turn, q.Bell.alarm, q.handoffs = Gone, nil, nil, 0
	for e := q.line.Front(); e != nil; e = q.line.Front() {
		next := e.Value.(*Ticket[V])
		q.drop(next)
		next.alarm.Ring()
	}
}

// Taken reports whether a ticket has the turn.
func (b *Bell) Taken() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.alarm != nil
}

// Holder returns the value of the ticket that has the turn; the zero V if none has it.
func (q *Queue[V]) Holder() (v V) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.turn != nil {
		v = q.turn.Value
	}
	return v
}

// Since says that t, if it has the turn, need only act on what came after mark, a number of
// wake-ups: it has just asked, though it did not have the turn then.
func (t *Ticket[V]) Since(mark uint64) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.seen, t.fresh = mark, false
}

// Served says that this process has the lock again: it need not let others pass.
func (q *Queue[V]) Served() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turnAt = 0
}

// Ahead returns how many other processes should have the lock before this one has it again:
// as many as it gave way to, less those that have given it back since.
func (q *Queue[V]) Ahead() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.turnAt <= q.wakes {
		return 0
	}
	return int(q.turnAt - q.wakes)
}

// leave takes t out. If it has the turn that goes to the next in line, to which pass may say what is news.
func (t *Ticket[V]) leave(pass func(q *Queue[V], next *Ticket[V])) {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.state != Turn {
		q.drop(t)
		return
	}
	t.state, q.turn, q.Bell.alarm, q.handoffs = Gone, nil, nil, 0
	next := q.first()
	if next == nil {
		return
	}
	q.line.Remove(next.place)
	q.give(next)
	// mutant: wakeup-consumed/1
	pass(q, next)
	next.alarm.Ring()
}

// drop makes a ticket gone that does not have the turn.
func (q *Queue[V]) drop(t *Ticket[V]) {
	if t.state == Waiting || t.state == Reserved {
		q.line.Remove(t.place)
	}
	t.state = Gone
}

// Quit is Leave for a ticket that waits. One that has got the turn meanwhile keeps it: a
// hand-over may have come with it. It reports the state that t was in.
// Between the decision to give up and this call anything may have happened: the state says what.
func (t *Ticket[V]) Quit() State {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	was := t.state
	if was != Turn {
		q.drop(t)
	}
	return was
}

// Reserve picks the next in line for a hand-over by t, which has the turn, if accept agrees
// to it. Until Grant or Refuse nothing happens to it, except that it may leave.
// The hand-over takes a round trip to Redis. If it failed the ticket must still be first in line, and if it went well no
// other may have been before it: so it is neither taken out of the line nor left free to be picked again.
func (t *Ticket[V]) Reserve(accept func(V) bool) *Ticket[V] {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	next := q.first()
	if q.turn != t || next == nil || next.state != Waiting || !accept(next.Value) {
		return nil
	}
	next.state = Reserved
	return next
}

// Grant passes the turn, and with it the lock, from t to the reserved ticket. false: that
// one has left meanwhile, and t still has the turn.
func (t *Ticket[V]) Grant(to *Ticket[V]) bool {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	// mutant: handoff-to-nobody
	if to.state != Reserved {
		return false
	}
	q.line.Remove(to.place)
	t.state = Gone
	q.give(to)
	q.handoffs++
	to.alarm.Ring()
	return true
}

// PassTo passes the turn from t, which has not got the lock, to the reserved ticket. false: that one has
// left meanwhile, and t still has the turn.
// It is no hand-over: the row of those ends with it.
func (t *Ticket[V]) PassTo(to *Ticket[V]) bool {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if to.state != Reserved {
		return false
	}
	q.line.Remove(to.place)
	t.state, q.handoffs = Gone, 0
	q.give(to)
	to.alarm.Ring()
	return true
}

// Refuse puts a reserved ticket back: the hand-over did not succeed.
func (t *Ticket[V]) Refuse() {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	if t.state == Reserved {
		t.state = Waiting
	}
}

// Replace passes the turn from t to a ticket that is not in line, past those that are. So several keys can go
// to one waiter, though that stands in line at one of them only.
func (t *Ticket[V]) Replace(to *Ticket[V]) {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	t.state = Gone
	q.give(to)
	to.alarm.Ring()
}

// State returns how t stands, and the error of a failed one.
func (t *Ticket[V]) State() (State, error) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	return t.state, t.err
}

// News reports whether t, which has the turn, should try now: it has just got the turn, or
// has been woken since its last try began. It counts as the beginning of a try.
func (t *Ticket[V]) News() bool {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	news := t.fresh || t.seen != q.wakes
	t.fresh, t.seen = false, q.wakes
	return news
}

// Handoffs returns how many hand-overs in a row there have been, and whether others wait.
func (q *Queue[V]) Handoffs() (inRow int, waiting bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.handoffs, q.line.Len() > 0
}

// Wakes returns the number of wake-ups so far.
func (b *Bell) Wakes() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wakes
}

// Wake says that the lock may be free. It is remembered until one has tried.
// It is counted even if no ticket has the turn: the next one finds it as news.
func (b *Bell) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wakes++
	if b.alarm != nil {
		b.alarm.Ring()
	}
}

// Recheck has the owner of the turn look at how things stand. Unlike a wake-up it is no reason to ask Redis.
func (b *Bell) Recheck() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.alarm != nil {
		b.alarm.Ring()
	}
}

// Fail takes every waiting ticket that which agrees to out of the line, with err.
// The one that has the turn is told by its own request.
func (q *Queue[V]) Fail(err error, which func(V) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for e := q.line.Front(); e != nil; {
		t := e.Value.(*Ticket[V])
		e = e.Next()
		if t.state == Waiting && which(t.Value) {
			q.line.Remove(t.place)
			t.state, t.err = Failed, err
			t.alarm.Ring()
		}
	}
}
