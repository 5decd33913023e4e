// Package undo releases names on one Redis, in the background.
//
// Such names may hold keys there that no hold here has: names of tries whose answer did not come, of waiters
// that gave up, of holds that were lost or could not be released. Each name has been retired. So it may be
// released at any time, and any number of times: no later hold has it.
//
// The way of an undo through its queue:
//
//	due      Add puts it there, and starts a worker if there are few. A worker takes the oldest and sends it.
//	unheard  It was sent to no effect. After a pause, which is one for all of them, it is due again.
//	gone     It is settled, or its lease is over, or the client has no more time, or it was dropped.
//
// An undo may overtake what it undoes: on another connection, or when a network that was silent delivers all at
// once. Then the name stands there again, with no hold, until its lease is over. So a name of which a copy may
// come late is released again after pauses that double. A copy that comes some time after the first release keeps
// the keys for about as long, and not for a whole lease.
//
// A newer undo of the same name replaces it, wherever it is: a release that was sent before the last command of
// the name may have come too soon. What is replaced is still in its list, or under way, but pending has the
// newer one. So take skips the older one, and its end settles nothing. Callers that waited for it wait for
// the newer one.
//
// An undo is only tidiness. If one is dropped, no owner gets in too early: at worst its name stands on this one
// Redis, and keeps its keys there until its lease is over. So undos are bounded: mostUndos wait at most. For a
// new one the queue drops one that has little of its lease left.
package undo

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// Queue is the names that are to be released on one Redis. A few goroutines of the client do that, while there
// are any names. It is safe for concurrent use.
type Queue struct {
	env Env
	// settle releases one name, and reports whether nothing is left to do about it. It blocks for as long as
	// a command is waited for. No mutex is held meanwhile, and several calls may be under way.
	settle func(Name) bool

	mu      sync.Mutex
	pending map[id]*Name // all of them: in due, in unheard, or being sent
	due     []*Name      // those to be sent, and what newer ones of the same names have replaced
	unheard []*Name      // those that were sent to no effect, and are to be sent again after a pause
	misses  int          // pauses in a row
	workers int          // goroutines that send
	late    int          // names that were released, and are to be released again after a pause: mostUndos at most
}

// Env is what a queue needs of its client.
type Env struct {
	Now clock.Clock
	Go  func(func())    // runs in a goroutine that the client waits for
	Ctx context.Context // ends when the client has no more time for undos
}

// New returns a queue whose names are released by settle.
func New(env Env, settle func(Name) bool) *Queue {
	return &Queue{env: env, settle: settle, pending: make(map[id]*Name)}
}

const (
	// mostWorkers bounds what is sent at a time: many may give up at once, and a Redis that does
	// not answer keeps each that is sent for as long as a command is waited for.
	mostWorkers = 16
	// mostUndos bounds what waits to be sent. While a Redis is down, the end of every hold is to be undone
	// there. This number of them takes 5 MB.
	mostUndos = 8192
)

// Name is what one owner may have on Redis by one name.
type Name struct {
	Keys       *keys.Set
	Field      string
	Until      clock.Instant // by then the lease has run out by itself
	KeepUntil  clock.Instant // what it holds is to be kept until then, and free after that; zero: free at once
	Unobserved bool          // no waiter can have observed it: none is to be woken
	Late       bool          // a copy of the command that made it may be executed after it was released

	// Release gives the keys back in the way of their kind of lock. The queues of a quorum have a way of their
	// own, and do not call it.
	Release func(context.Context, redisexec.CallOptions, Name) redisexec.Outcome
	// Missed says that it was sent to no effect. The queue sets it.
	Missed bool

	// tallies are told when nothing is left to do about it: of this one, and of those that it has replaced.
	tallies []*tally
	pause   time.Duration // before it was released again, if it was
}

// id tells names apart. One field may have several sets of keys to be released.
type id struct {
	field string
	keys  keys.ID
}

func (n *Name) id() id { return id{field: n.Field, keys: n.Keys.ID} }

// tally tells when most of the nodes of a quorum have settled an undo: a single Redis is its only node. The
// queues of all nodes share it.
type tally struct {
	missing atomic.Int64  // nodes until it is settled; below 0: more than most
	settled chan struct{} // closed then
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

// Add has n released on every one of the queues, wherever it holds its keys. It does not block. The channel is
// closed when most of them have done it, or given it up: so a caller that waits for it is never stuck.
func Add(n Name, queues ...*Queue) (settled <-chan struct{}) {
	t := newTally(len(queues))
	n.tallies = []*tally{t}
	for _, q := range queues {
		q.Add(n)
	}
	return t.settled
}

// Await waits until most of the queues have settled each undo that was added to all of them, or for ctx. It does not
// wait for those of single queues: what the other nodes of a quorum have done is enough.
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

// Add has next sent, instead of what is pending by its name: that may have been sent too soon. It does not
// block. The newer one lasts as long as the older one, and wakes waiters if either is to.
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
	for len(q.due)+len(q.unheard) > mostUndos {
		q.drop()
	}
}

// drop forgets the oldest undo of due or of unheard, whichever of the two has less of its lease left. It is
// not the one with the least of all, which would have to be searched for. mu is held.
func (q *Queue) drop() {
	line := &q.due
	if len(q.due) == 0 || len(q.unheard) > 0 && q.unheard[0].Until.Mono < q.due[0].Until.Mono {
		line = &q.unheard
	}
	q.forget(first(line))
}

// first takes the first of a line away.
func first(line *[]*Name) *Name {
	u := (*line)[0]
	(*line)[0] = nil // the array below the slice lives on, and would keep it
	*line = (*line)[1:]
	return u
}

// send has all sent, oldest first, and starts a worker for each, up to mostWorkers. mu is held.
func (q *Queue) send(all ...*Name) {
	q.due = append(q.due, all...)
	for range all {
		if q.workers < mostWorkers {
			q.workers++
			q.env.Go(q.work)
		}
	}
}

// work sends what is due until nothing is. It runs in a goroutine that Close waits for.
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

// take returns what is to be sent next. nil: there is nothing, and the worker, which is not counted any more,
// has to end. Both happen under one mutex, so an undo that is added now starts another worker.
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

// over reports whether it is too late for an undo: the client has no more time, or the name has expired by
// itself.
func (q *Queue) over(n *Name) bool {
	return q.env.Ctx.Err() != nil || q.env.Now().Until(n.Until) <= 0
}

// remove forgets an undo.
func (q *Queue) remove(done *Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget(done)
}

// forget forgets an undo, unless a newer one of the same name has come: then that one has its tallies. mu is
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

// repeat has an undo sent again after a pause. The pause is one for all: the first undo of unheard begins it,
// and those that come during it join. The goroutine that waits has ended when the client has no more time.
func (q *Queue) repeat(n *Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n.Missed = true
	if q.unheard = append(q.unheard, n); len(q.unheard) > 1 {
		return
	}
	q.misses++
	d := clock.Backoff(q.misses)
	q.env.Go(func() {
		clock.Pause(q.env.Ctx, d)
		q.mu.Lock()
		defer q.mu.Unlock()
		again := q.unheard
		q.unheard = nil
		q.send(again...)
	})
}

// firstPause is how long after the first release of a name it is released again, if a copy may come late.
const firstPause = 200 * time.Millisecond

// releaseAgain has a name that was released be released once more later, if a copy may come until then. No one
// waits for that, and Close does not either.
func (q *Queue) releaseAgain(n Name) {
	n.pause = max(firstPause, 2*n.pause)
	q.mu.Lock()
	defer q.mu.Unlock()
	if !n.Late || q.late == mostUndos || q.env.Now().After(n.pause).UntilMono(n.Until) <= 0 {
		return
	}
	q.late++
	n.tallies, n.Missed, n.Unobserved = nil, false, false // a waiter may have met the copy by then
	time.AfterFunc(n.pause, func() {
		q.mu.Lock()
		q.late--
		q.mu.Unlock()
		if !q.over(&n) {
			q.Add(n)
		}
	})
}

// Pending returns the names about which something is left to do, in no order.
func (q *Queue) Pending() []Name {
	q.mu.Lock()
	defer q.mu.Unlock()
	names := make([]Name, 0, len(q.pending))
	for _, n := range q.pending {
		names = append(names, *n)
	}
	return names
}
