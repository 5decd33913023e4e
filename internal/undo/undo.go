// Package undo releases names on one Redis, in the background.
//
// Such names may have keys that no hold here has: names of tries without an answer, of waiters that gave up, of holds
// that were lost or could not be released. Each name has been retired, and no later hold uses it. So it may be
// released at any time, any number of times.
//
// The states of an undo in its queue:
//
//	due         Add puts it there, and starts a worker if there are few. A worker takes the oldest and sends it.
//	unanswered  It was sent without effect. After a pause, which all such undos share, it is due again.
//	gone        It is settled, its lease has ended, the client is closed, or it was dropped.
//
// An undo may overtake the command that it undoes: on another connection, or when a silent network delivers everything
// at once. Then the name is back on Redis, without a hold, until its lease ends. So while a delayed copy may still
// arrive, the name is released again after pauses that double. If a copy arrives a time t after the first release, its
// keys remain for about t, and not for a whole lease.
//
// A newer undo of the same name replaces an older one, whatever the state of the older one is, because a release that was
// sent before the last command of the name may have come too early. The older undo stays in its list, or in flight, but
// pending has the newer one. So take skips the older one, and an answer to the older one settles nothing. Callers that
// waited for the older one wait for the newer one.
//
// Undos only tidy up. If one is dropped, no owner gets the lock too early: at worst its name stays on this one
// Redis until its lease ends. So the number of undos is bounded by mostUndos. To make room, the queue drops one that has
// little of its lease left.
package undo

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// Queue is the names to be released on one Redis. A few goroutines of the client release them, while there are any. It
// is safe for concurrent use.
type Queue struct {
	life goroutine.Life
	// settle releases one name, and reports whether nothing remains to be done. It blocks for as long as
	// a command is waited for. No mutex is held meanwhile, and several calls may run at once.
	settle func(Name) bool

	mu         sync.Mutex
	pending    map[id]*Name // all names: in due, in unanswered, or being sent
	due        []*Name      // to be sent, including names that newer ones have replaced
	unanswered []*Name      // sent without effect, to be sent again after a pause
	misses     int          // pauses in a row
	workers    int          // goroutines that send
	late       int          // released, and to be released again after a pause: mostUndos at most
}

// New returns a queue whose names are released by settle.
func New(life goroutine.Life, settle func(Name) bool) *Queue {
	return &Queue{life: life, settle: settle, pending: make(map[id]*Name)}
}

const (
	// mostWorkers bounds the undos in flight: many waiters may give up at once, and if Redis does
	// not answer, each undo takes as long as a command is waited for.
	mostWorkers = 16
	// mostUndos bounds the undos that wait. While a Redis is down, the end of every hold leads to an undo.
	// This number of them takes 5 MB.
	mostUndos = 8192
)

// Name is a name of one owner, and the keys that it may have on Redis.
type Name struct {
	Keys             *keys.Set
	Field            string
	Until            clock.Instant // by then the lease has ended by itself
	PlaceholderUntil clock.Instant // the end of its min hold; zero: it has none
	Unobserved       bool          // no waiter has observed it, so none needs to be woken
	Late             bool          // a copy of the command that created it may be executed after it was released

	// Release releases the keys in the way of their kind of lock. The queues of a quorum have their own way, and do
	// not call it.
	Release func(redisexec.CallOptions) redisexec.Outcome
	// Missed: it was sent without effect. The queue sets it.
	Missed bool

	// tallies are notified when nothing remains to be done: those of this undo, and of the ones that it replaced.
	tallies []*tally
	pause   time.Duration // before the last repeated release
}

// id identifies an undo. One field may have several sets of keys to be released.
type id struct {
	field string
	keys  keys.ID
}

func (n *Name) id() id { return id{field: n.Field, keys: n.Keys.ID} }

// tally records when most nodes of a quorum have settled an undo. A single Redis is its only node. The
// queues of all nodes share it.
type tally struct {
	missing atomic.Int64  // nodes still needed; below 0: more than most
	settled chan struct{} // closed when most nodes have settled it
}

func newTally(nodes int) *tally {
	t := &tally{settled: make(chan struct{})}
	t.missing.Store(int64(nodes/2 + 1))
	return t
}

// count counts one more node.
func (t *tally) count() {
	if t.missing.Add(-1) == 0 {
		close(t.settled)
	}
}

// Add makes every one of the queues release n. It does not block. The channel is closed when most of the queues have
// released n or given up, so a caller that waits for it is never stuck.
func Add(n Name, queues ...*Queue) (settled <-chan struct{}) {
	t := newTally(len(queues))
	n.tallies = []*tally{t}
	for _, q := range queues {
		q.Add(n)
	}
	return t.settled
}

// Await waits until most of the queues have settled each undo that was added to all of them, or until ctx ends. It does
// not wait for undos of single queues, because on a quorum the other nodes are enough.
func Await(ctx context.Context, queues ...*Queue) {
	for _, q := range queues {
		for _, n := range q.Pending() {
			for _, t := range n.tallies {
				select {
				case <-t.settled:
				case <-ctx.Done():
					return
				}
			}
		}
	}
}

// Add queues next, which replaces a pending undo of the same name, because that may have been sent too early. It does not
// block. The newer undo lasts as long as the older one, and wakes waiters if either of them does.
func (q *Queue) Add(next Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if before := q.pending[next.id()]; before != nil {
		next.Unobserved = next.Unobserved && before.Unobserved
		next.Late = next.Late || before.Late
		next.Until = clock.Latest(next.Until, before.Until)
		next.tallies = slices.Concat(before.tallies, next.tallies)
	}
	// mutant: undo-dropped
	q.pending[next.id()] = &next
	q.send(&next)
	for len(q.due)+len(q.unanswered) > mostUndos {
		q.drop()
	}
}

// drop forgets the oldest undo of due or of unanswered, whichever of the two has less of its lease left. To find the
// one with the least lease of all would require a search. mu is held.
func (q *Queue) drop() {
	list := &q.due
	if len(q.due) == 0 || len(q.unanswered) > 0 && q.unanswered[0].Until.Mono < q.due[0].Until.Mono {
		list = &q.unanswered
	}
	q.forget(first(list))
}

// first removes the first element of a list.
func first(list *[]*Name) *Name {
	u := (*list)[0]
	(*list)[0] = nil // the array behind the slice would keep it alive
	*list = (*list)[1:]
	return u
}

// send queues all to be sent, oldest first, and starts a worker for each, up to mostWorkers. mu is held.
func (q *Queue) send(all ...*Name) {
	q.due = append(q.due, all...)
	for range all {
		if q.workers < mostWorkers {
			q.workers++
			q.life.Go(q.work)
		}
	}
}

// work sends due undos until there are none. It runs in a goroutine that Close waits for.
func (q *Queue) work() {
	for next := q.take(); next != nil; next = q.take() {
		switch {
		case q.over(next):
			q.remove(next)
		case q.settle(*next):
			q.remove(next)
			q.releaseAgain(*next)
		default:
			q.repeat(next)
		}
	}
}

// take returns the next undo to send. If there is none, it returns nil, and the worker, which no longer counts, has to
// end. Both happen under one mutex, so an undo that is added now starts another worker.
func (q *Queue) take() *Name {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.due) > 0 {
		if next := first(&q.due); q.pending[next.id()] == next {
			return next
		}
	}
	q.due = nil
	q.workers--
	return nil
}

// over reports whether it is too late for an undo: the client is closed, or the name has expired by itself.
func (q *Queue) over(n *Name) bool {
	return q.life.Ctx.Err() != nil || q.life.Now().Until(n.Until) <= 0
}

// remove forgets an undo.
func (q *Queue) remove(done *Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget(done)
}

// forget forgets an undo, unless a newer one of the same name has replaced it: then the newer one has its tallies. mu is
// held.
func (q *Queue) forget(done *Name) {
	if q.pending[done.id()] != done {
		return
	}
	delete(q.pending, done.id())
	if len(q.pending) == 0 {
		q.misses = 0
	}
	for _, t := range done.tallies {
		t.count()
	}
}

// repeat sends an undo again after a pause. All undos in unanswered share one pause, which the first of them begins.
// The goroutine that waits ends with the client.
func (q *Queue) repeat(n *Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n.Missed = true
	if q.unanswered = append(q.unanswered, n); len(q.unanswered) > 1 {
		return
	}
	q.misses++
	d := clock.Backoff(q.misses)
	q.life.Go(func() {
		clock.Pause(q.life.Ctx, d)
		q.mu.Lock()
		defer q.mu.Unlock()
		again := q.unanswered
		q.unanswered = nil
		q.send(again...)
	})
}

// firstPause is the pause before the second release of a name, if a delayed copy may still arrive.
const firstPause = 200 * time.Millisecond

// releaseAgain releases a name once more after a pause, if a delayed copy may arrive until then. No caller waits for
// that, and neither does Close.
func (q *Queue) releaseAgain(n Name) {
	n.pause = max(firstPause, 2*n.pause)
	q.mu.Lock()
	defer q.mu.Unlock()
	if !n.Late || q.late == mostUndos || q.life.Now().After(n.pause).UntilMono(n.Until) <= 0 {
		return
	}
	q.late++
	n.tallies, n.Missed, n.Unobserved = nil, false, false // a waiter may have observed the copy by then
	time.AfterFunc(n.pause, func() {
		q.mu.Lock()
		q.late--
		q.mu.Unlock()
		if !q.over(&n) {
			q.Add(n)
		}
	})
}

// Pending returns the names that still have to be released, in no order.
func (q *Queue) Pending() []Name {
	q.mu.Lock()
	defer q.mu.Unlock()
	names := make([]Name, 0, len(q.pending))
	for _, n := range q.pending {
		names = append(names, *n)
	}
	return names
}
