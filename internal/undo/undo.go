// Package undo releases names on one Redis, in the background.
//
// Such names may hold keys there that no hold here has: names of tries whose answer did
// not come, of waiters that gave up, of holds that were lost or could not be released. Each has been
// retired, so it may be released at any time, and any number of times, without touching another
// owner's.
//
// An undo may overtake what it undoes: on another connection, or when a network that was silent delivers all at
// once. Then the name stands there again, with no hold, until its lease is over. So a name of which a copy may
// come late is released again after pauses that double. A copy that comes some time after the first release keeps the
// keys for about as long, and not for a whole lease.
//
// An undo is only tidiness. One that is dropped can let no one in: at worst its name stands on this
// one Redis, and keeps its keys there until its lease is over. So they are bounded: mostUndos wait
// at most, and what is dropped for a new one is what has least of its lease left.
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

// Queue is the names that are to be released on one Redis. A few goroutines of the client do it,
// while there are any.
type Queue struct {
	env Env
	// settle releases one name, and reports whether nothing is left to do about it.
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
	// mostUndos bounds what waits to be sent: a Redis that is down for long is owed the end of
	// every hold, 5 MB of them at this number.
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

	// Release gives the keys back as locks of their kind are, where the queue has no way of its own.
	Release func(context.Context, redisexec.CallOptions, Name) redisexec.Outcome
	// Missed says that it was sent to no effect.
	Missed bool

	tallies []*tally      // of who waits until nothing is left to do about it
	pause   time.Duration // before it was released again, if it was
}

// id tells names apart.
type id struct {
	field string
	keys  keys.ID
}

func (n *Name) id() id { return id{field: n.Field, keys: n.Keys.ID} }

// tally tells when most of the nodes of a quorum have settled an undo: a single Redis is its
// only node.
type tally struct {
	missing atomic.Int64
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

// Add has n released on every one of the queues, wherever it holds its keys. The channel is closed
// when most of them have done it.
func Add(n Name, queues ...*Queue) (settled <-chan struct{}) {
	t := newTally(len(queues))
	n.tallies = []*tally{t}
	for _, q := range queues {
		q.Add(n)
	}
	return t.settled
}

// Add has next sent, instead of what is pending by its name: that may have been sent too soon.
func (q *Queue) Add(next Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if before := q.pending[next.id()]; before != nil {
		next.Unobserved = next.Unobserved && before.Unobserved
		next.Late = next.Late || before.Late
		next.Until = clock.Latest(next.Until, before.Until)
		next.tallies = slices.Concat(before.tallies, next.tallies)
	}
	q.pending[next.id()] = &next
	q.send(&next)
	for len(q.due)+len(q.unheard) > mostUndos {
		q.drop()
	}
}

// drop forgets what is first in line: of both lines, the one whose lease is over first. mu is held.
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
	(*line)[0] = nil // what the line is made of lives on
	*line = (*line)[1:]
	return u
}

// send has all sent, in the order of their coming. mu is held.
func (q *Queue) send(all ...*Name) {
	q.due = append(q.due, all...)
	for range all {
		if q.workers < mostWorkers {
			q.workers++
			q.env.Go(q.work)
		}
	}
}

// work sends what is due until nothing is.
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

// take returns what is to be sent next; if that is nothing, the worker has to end.
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

// over reports whether it is too late for an undo.
func (q *Queue) over(n *Name) bool {
	return q.env.Ctx.Err() != nil || q.env.Now().Until(n.Until) <= 0
}

// remove forgets an undo.
func (q *Queue) remove(done *Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget(done)
}

// forget forgets an undo, unless a newer one of the same name has come. mu is held.
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

// repeat has an undo sent again after a pause, which is one for all that have to wait then.
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

// Pending returns the names about which something is left to do.
func (q *Queue) Pending() []Name {
	q.mu.Lock()
	defer q.mu.Unlock()
	names := make([]Name, 0, len(q.pending))
	for _, n := range q.pending {
		names = append(names, *n)
	}
	return names
}
