package relock

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// undos are the names that may hold keys on a Redis without anybody here holding them: of
// tries whose answer did not come, of waiters that gave up, of holds that were lost or could
// not be released. Every such name has been retired, so it may be released at any time, and
// any number of times, without touching anybody else. A few goroutines of the client do it,
// while there are any.
//
// An undo is only tidiness. One that is dropped can let nobody in: at worst its name stands on this
// one Redis, and keeps its keys there until its lease is over. So they are bounded: due and unheard
// have mostUndos between them at most, and what is dropped for a new one is what has least of its
// lease left.
type undos struct {
	client *Client
	// settle releases one name, and reports whether nothing is left to do about it.
	settle func(undo) bool

	mu      sync.Mutex
	pending map[undoID]*undo // all of them: in due, in unheard, or being sent
	due     []*undo          // those to be sent, and what newer ones of the same names have replaced
	unheard []*undo          // those that were sent to no effect, and are to be sent again after a pause
	misses  int              // pauses in a row
	workers int              // goroutines that send
}

const (
	// mostWorkers bounds what is sent at a time: many may give up at once, and a Redis that does
	// not answer keeps each that is sent for as long as a command is waited for.
	mostWorkers = 16
	// mostUndos bounds what waits to be sent: a Redis that is down for long is owed the end of
	// every hold, 5 MB of them at this number.
	mostUndos = 8192
)

type undoID struct {
	field string
	keys  keys.ID
}

type undo struct {
	kind   *kind
	target *keys.Set
	field  string
	until  clock.Instant // by then the lease has run out by itself
	unseen bool          // nobody can have waited for it to be released: nobody is to be woken
	missed bool          // it was sent to no effect

	tallies []*tally // of who waits until nothing is left to do about it
}

func (u *undo) id() undoID { return undoID{field: u.field, keys: u.target.ID} }

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

func newUndos(c *Client, settle func(undo) bool) *undos {
	return &undos{client: c, settle: settle, pending: make(map[undoID]*undo)}
}

// settleByKind releases what u says as locks of its kind are released. A refusal does not
// settle it: what is missing, a permission or a password, may come back in time. Once the client
// is being closed, it does not wait for a Redis to come back that nothing can be sent to.
func (c *Client) settleByKind(u undo) bool {
	if u.missed && c.isClosed() && c.execs[0].Unreachable(c.background, u.target.Keys[0]) {
		return true
	}
	e := redisexec.CallOptions{Attempts: 1, Undoes: true}
	_, out := u.kind.protocol.Release(c.background, e, u.target, u.field, make([]int, len(u.target.Keys)))
	return out.Err == nil || forGood(out.Err)
}

// forGood reports whether err says that Redis will hear nothing more: the application has closed
// its client.
func forGood(err error) bool { return errors.Is(err, redis.ErrClosed) }

// undo has the keys of t released for field in the background, wherever it holds them.
// unseen: nobody can have waited for that. The channel is closed when most nodes have done it.
func (c *Client) undo(k *kind, t *keys.Set, field string, until clock.Instant, unseen bool) (settled <-chan struct{}) {
	n := newTally(len(c.undos))
	for _, u := range c.undos {
		u.add(undo{kind: k, target: t, field: field, until: until, unseen: unseen, tallies: []*tally{n}})
	}
	return n.settled
}

// add has next sent, instead of what is pending by its name: that may have been sent too soon.
func (u *undos) add(next undo) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if before := u.pending[next.id()]; before != nil {
		next.unseen = next.unseen && before.unseen
		next.until = clock.Latest(next.until, before.until)
		next.tallies = slices.Concat(before.tallies, next.tallies)
	}
	u.pending[next.id()] = &next
	u.send(&next)
	for len(u.due)+len(u.unheard) > mostUndos {
		u.drop()
	}
}

// drop forgets what is first in line: of both lines, the one whose lease is over first. mu is held.
func (u *undos) drop() {
	line := &u.due
	if len(u.due) == 0 || len(u.unheard) > 0 && u.unheard[0].until.Mono < u.due[0].until.Mono {
		line = &u.unheard
	}
	u.forget(first(line))
}

// first takes the first of a line away.
func first(line *[]*undo) *undo {
	u := (*line)[0]
	(*line)[0] = nil // what the line is made of lives on
	*line = (*line)[1:]
	return u
}

// send has all sent, in the order of their coming. mu is held.
func (u *undos) send(all ...*undo) {
	u.due = append(u.due, all...)
	for range all {
		if u.workers < mostWorkers {
			u.workers++
			u.client.goroutines.Go(u.work)
		}
	}
}

// work sends what is due until nothing is.
func (u *undos) work() {
	for next := u.take(); next != nil; next = u.take() {
		if u.over(next) || u.settle(*next) {
			u.remove(next)
		} else {
			u.repeat(next)
		}
	}
}

// take returns what is to be sent next; if that is nothing, the worker has to end.
func (u *undos) take() *undo {
	u.mu.Lock()
	defer u.mu.Unlock()
	for len(u.due) > 0 {
		if next := first(&u.due); u.pending[next.id()] == next {
			return next
		}
	}
	u.due = nil
	u.workers--
	return nil
}

// over reports whether it is too late for an undo.
func (u *undos) over(undo *undo) bool {
	return u.client.background.Err() != nil || u.client.now().Until(undo.until) <= 0
}

// remove forgets an undo.
func (u *undos) remove(done *undo) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forget(done)
}

// forget forgets an undo, unless a newer one of the same name has come. mu is held.
func (u *undos) forget(done *undo) {
	if u.pending[done.id()] != done {
		return
	}
	delete(u.pending, done.id())
	if len(u.pending) == 0 {
		u.misses = 0
	}
	for _, t := range done.tallies {
		t.count()
	}
}

// repeat has an undo sent again after a pause, which is one for all that have to wait then.
func (u *undos) repeat(undo *undo) {
	u.mu.Lock()
	defer u.mu.Unlock()
	undo.missed = true
	if u.unheard = append(u.unheard, undo); len(u.unheard) > 1 {
		return
	}
	u.misses++
	d := clock.Backoff(u.misses)
	u.client.goroutines.Go(func() {
		clock.Pause(u.client.background, d)
		u.mu.Lock()
		defer u.mu.Unlock()
		again := u.unheard
		u.unheard = nil
		u.send(again...)
	})
}
