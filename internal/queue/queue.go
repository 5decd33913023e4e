// Package queue lines up the waiters of one process for one lock.
//
// One ticket at a time has the turn. Only its owner may ask Redis for the lock, and it keeps
// the turn for as long as it holds the lock. The others wait, first come, first served, and cost
// Redis nothing. The turn passes to the next when its ticket leaves, or is handed over together with the
// lock.
//
//	Gone --Join, TryJoin--> Turn if no ticket has it, else Waiting by Join, or still Gone
//	the first that is Waiting --the one with the turn leaves--> Turn
//	Waiting --Reserve--> Reserved --Grant, PassTo--> Turn, or --Refuse--> Waiting
//	Waiting --Fail--> Failed
//	any --its owner leaves, or the queue is opened, or it passes the turn on--> Gone
//
// Invariants:
//   - If a ticket waits, another one has the turn. So the turn always has a next owner.
//   - At most one ticket is Reserved, and it is the first in the queue.
//   - If another owner's action gives a ticket the turn, or removes it from the queue, its alarm rings after that.
//
// What can come late: a Grant or a Refuse for a ticket that has left, which changes nothing; and an alarm for
// a change that its owner has already seen. So an alarm is only a reason to check the State.
package queue

import (
	"container/list"
	"sync"
)

// Queue is the local queue for one name. The zero Queue is empty. V is the value of a ticket, for
// the owner that hands the lock over.
type Queue[V any] struct {
	Bell // its mu also guards the queue

	turn    *Ticket[V] // nil only if the queue is empty
	waiting list.List  // of the tickets that wait, including the reserved one

	// handoffs counts the hand-overs in a row, since the lock was last released to all.
	handoffs int

	// turnAt is the number of wake-ups after which it is the turn of this process again: since it
	// gave way, every other process should have had one turn.
	turnAt uint64
}

// Bell wakes the ticket with the turn, whatever the type of V.
type Bell struct {
	mu sync.Mutex

	// wakes counts the wake-ups. They belong to the queue: if a wake-up came while no ticket could
	// act on it, it is still news for the next ticket with the turn.
	wakes uint64

	alarm *Alarm // of the ticket with the turn; nil: none has it
}

// Ticket is a waiter's place in a Queue. Its owner checks the State whenever its alarm rings.
type Ticket[V any] struct {
	Value V

	queue *Queue[V]
	alarm *Alarm

	state State
	err   error  // of a failed ticket
	seen  uint64 // the wake-ups that this ticket, with the turn, need not act on
	fresh bool   // it has just received the turn and should try at once

	element *list.Element // in the queue, while it waits
}

// State is the state of a ticket.
type State int

// The states. A ticket that is Gone may join again.
const (
	Gone     State = iota // not in the queue
	Waiting               // in the queue
	Reserved              // in the queue, with a hand-over to it in progress
	Turn                  // may ask Redis, or holds the lock
	Failed                // removed from the queue with an error
)

// Ticket returns a ticket for q, which is not in the queue yet. alarm rings whenever another owner changes the
// state of the ticket, and at each wake-up while it has the turn.
func (q *Queue[V]) Ticket(value V, alarm *Alarm) *Ticket[V] {
	t := new(Ticket[V])
	q.Issue(t, value, alarm)
	return t
}

// Issue is Ticket for a ticket that is part of another object.
func (q *Queue[V]) Issue(t *Ticket[V], value V, alarm *Alarm) {
	*t = Ticket[V]{Value: value, queue: q, alarm: alarm}
}

// Join adds t to the queue, and reports whether it has the turn at once.
// The state changes under the mutex of the queue, and the alarm rings after that: a waiter that it wakes sees the change.
func (t *Ticket[V]) Join() bool {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.turn == nil {
		q.give(t)
		return true
	}
	t.state, t.element = Waiting, q.waiting.PushBack(t)
	return false
}

// TryJoin gives t the turn if the queue is empty. It never waits, and so needs no alarm.
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

// give gives t the turn, and makes it try at once, because nothing may wake it later.
func (q *Queue[V]) give(t *Ticket[V]) {
	q.turn, q.Bell.alarm, t.state, t.seen, t.fresh = t, t.alarm, Turn, q.wakes, true
}

// first returns the next ticket in the queue, or nil.
func (q *Queue[V]) first() *Ticket[V] {
	e := q.waiting.Front()
	if e == nil {
		return nil
	}
	return e.Value.(*Ticket[V])
}

// Leave gives up t's place, or its turn, which passes to the next in the queue. That ticket tries at once.
func (t *Ticket[V]) Leave() {
	t.leave(func(*Queue[V], *Ticket[V]) {})
}

// GiveWay is Leave after the lock was released to all because it is the turn of
// other processes. The next ticket does not try at once, but waits for the same wake-up as
// those processes. mark is the value of Wakes before the release; processes is the number of
// processes that wait for it, including this one.
func (t *Ticket[V]) GiveWay(mark uint64, processes int) {
	t.leave(func(q *Queue[V], next *Ticket[V]) {
		// Wake-ups after mark are news: the lock may be free again already.
		next.seen, next.fresh = mark, false
		q.turnAt = mark + uint64(processes)
	})
}

// Pass is Leave by an owner that was served, or no longer wants to be: the next ticket
// need not try at once. It takes over what t has seen, and tries when there is news.
func (t *Ticket[V]) Pass() {
	t.leave(func(_ *Queue[V], next *Ticket[V]) { next.seen, next.fresh = t.seen, t.fresh })
}

// Open is Leave by an owner that was served and does not exclude the others: all waiting tickets
// leave the queue with it, and their owners try. A ticket without the turn leaves alone.
func (t *Ticket[V]) Open() {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.state != Turn {
		q.drop(t)
		return
	}
	t.state, q.turn, q.Bell.alarm, q.handoffs = Gone, nil, nil, 0
	for e := q.waiting.Front(); e != nil; e = q.waiting.Front() {
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

// Holder returns the value of the ticket with the turn, or the zero V.
func (q *Queue[V]) Holder() (v V) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.turn != nil {
		v = q.turn.Value
	}
	return v
}

// Since makes t, which has the turn, act only on wake-ups after mark, a value of Wakes: it has just asked Redis, without
// the turn.
func (t *Ticket[V]) Since(mark uint64) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.seen, t.fresh = mark, false
}

// Served records that this process has the lock again: it need not give way any more.
func (q *Queue[V]) Served() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turnAt = 0
}

// Ahead returns how many other processes should have the lock before this one has it again:
// as many as it gave way to, less the processes that have released it since.
func (q *Queue[V]) Ahead() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.turnAt <= q.wakes {
		return 0
	}
	return int(q.turnAt - q.wakes)
}

// leave removes t. If t has the turn, the turn passes to the next in the queue, for which pass sets what is news.
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
	q.waiting.Remove(next.element)
	q.give(next)
	// mutant: wakeup-consumed/1
	pass(q, next)
	next.alarm.Ring()
}

// drop makes a ticket without the turn Gone.
func (q *Queue[V]) drop(t *Ticket[V]) {
	if t.state == Waiting || t.state == Reserved {
		q.waiting.Remove(t.element)
	}
	t.state = Gone
}

// Quit is Leave for a ticket that waits, and returns the state in which it was. A ticket that has received the turn
// meanwhile keeps it, because a hand-over may have come with it. Anything may have happened between the decision to
// give up and this call.
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

// Reserve picks the next in the queue for a hand-over by t, which has the turn, if accept returns true. Until Grant or
// Refuse the ticket keeps its place, except that it may leave. The hand-over takes a round trip to Redis. If it fails,
// the ticket must still be first; if it succeeds, no other ticket may have come before it. So it is neither removed from
// the queue nor free to be picked again.
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

// Grant passes the turn, and with it the lock, from t to the reserved ticket. If that ticket
// has left meanwhile, Grant returns false, and t still has the turn.
func (t *Ticket[V]) Grant(to *Ticket[V]) bool { return t.transfer(to, true) }

// PassTo passes the turn from t, which does not have the lock, to the reserved ticket. If that ticket has left
// meanwhile, PassTo returns false, and t still has the turn. It is no hand-over, and ends a row of them.
func (t *Ticket[V]) PassTo(to *Ticket[V]) bool { return t.transfer(to, false) }

func (t *Ticket[V]) transfer(to *Ticket[V], lock bool) bool {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	// mutant: handoff-to-gone-waiter
	if to.state != Reserved {
		return false
	}
	q.waiting.Remove(to.element)
	t.state = Gone
	q.give(to)
	if q.handoffs++; !lock {
		q.handoffs = 0
	}
	to.alarm.Ring()
	return true
}

// Refuse makes a reserved ticket wait again: the hand-over failed.
func (t *Ticket[V]) Refuse() {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	if t.state == Reserved {
		t.state = Waiting
	}
}

// Replace passes the turn from t to a ticket outside the queue, before the tickets in it. So several keys can be handed over
// to one waiter, although it waits in only one of their queues.
func (t *Ticket[V]) Replace(to *Ticket[V]) {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	t.state = Gone
	q.give(to)
	to.alarm.Ring()
}

// State returns the state of t, and the error of a failed one.
func (t *Ticket[V]) State() (State, error) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	return t.state, t.err
}

// News reports whether t, which has the turn, should try now: it has just received the turn, or
// has been woken since its last try began. It counts as the beginning of a try.
func (t *Ticket[V]) News() bool {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	news := t.fresh || t.seen != q.wakes
	t.fresh, t.seen = false, q.wakes
	return news
}

// Handoffs returns the number of hand-overs in a row, and whether other tickets wait.
func (q *Queue[V]) Handoffs() (inRow int, waiting bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.handoffs, q.waiting.Len() > 0
}

// Wakes returns the number of wake-ups so far.
func (b *Bell) Wakes() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wakes
}

// Wake records that the lock may be free, until the next try. It counts even if no ticket has the turn: then it is news
// for the next one that has.
func (b *Bell) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wakes++
	if b.alarm != nil {
		b.alarm.Ring()
	}
}

// Recheck makes the owner of the turn check its state. Unlike a wake-up it is no reason to ask Redis.
func (b *Bell) Recheck() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.alarm != nil {
		b.alarm.Ring()
	}
}

// Fail removes with err every waiting ticket for which which returns true. The owner of the turn gets the error from
// its own request.
func (q *Queue[V]) Fail(err error, which func(V) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for e := q.waiting.Front(); e != nil; {
		t := e.Value.(*Ticket[V])
		e = e.Next()
		if t.state == Waiting && which(t.Value) {
			q.waiting.Remove(t.element)
			t.state, t.err = Failed, err
			t.alarm.Ring()
		}
	}
}
