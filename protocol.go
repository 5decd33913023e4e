package relock

import (
	"context"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/queue"
)

// kind is a kind of lock: what it does on Redis, and how its waiters get to ask for it. It
// is a property of what a handle locks. Re-entry, waiting, renewal, loss and hooks are the
// same for every kind and know no more of it than this.
type kind struct {
	protocol
	turns
	side  side
	twice bool // a release sends two messages
}

// side tells apart the holds that one owner can have of one key at the same time.
type side int

const (
	alone   side = iota // of a lock with one side
	writing             // of a read-write lock
	reading
)

// sideOf is the side of a read-write lock that a field is on.
func sideOf(field string) side {
	if strings.HasSuffix(field, writeSuffix) {
		return writing
	}
	return reading
}

// field is the name on Redis under which o, of the client with that identity, holds t.
func (t *target) field(identity *identity, o owner) string {
	if t.kind.side == writing {
		return string(*identity) + ":" + o.String() + writeSuffix
	}
	return string(*identity) + ":" + o.String()
}

// turns is how those of one process who wait for a lock get to ask Redis for it. All of it
// but queue, listen, unlisten and listening runs on the goroutine that waits.
type turns interface {
	// queue is where the waiters for the key of g stand.
	queue(g *gate) *queue.Queue[*hold]
	// line waits until w may ask Redis and has a reason to, or was given the lock: then it
	// is named. false, nil: w does not wait, and somebody is there before it.
	line(w *wait) (bool, error)
	// ask makes one request by wait.try, or finds out otherwise how things stand.
	ask(w *wait) (grant, outcome)
	// request is what wait.try asks of Redis: the keys of w for field, a name under identity.
	request(w *wait, identity *identity, field string) (grant, outcome)
	// rest follows an answer that was no grant: unless there is news, w need not ask for d.
	rest(w *wait, d time.Duration) error
	// longest is how long a waiter whom no message reaches may sleep.
	longest(s *settings) time.Duration
	// end is the end of the wait, by a grant or without one; then nothing is left of it.
	end(w *wait, granted bool)

	// listen has the waiters at g woken by messages, until unlisten.
	listen(c *Client, g *gate)
	unlisten(g *gate)
	// listening reports whether messages arrive.
	listening(g *gate) bool

	// rivals is how many others of this process have to have had a chance, besides those in
	// the queue, before the next of the queue asks.
	rivals(h *hold) int
}

// protocol is what a kind of lock does on Redis.
//
// Each call is one script, executed at least once if it is answered; sending it again
// changes nothing, because it carries what is wanted and not what to add.
type protocol interface {
	// acquire takes every key of t for field, which holds none of them.
	acquire(ctx context.Context, e effort, t *target, field string, s *settings) (grant, outcome)
	// reenter sets the counts of keys that field holds. It mints a token if asked to.
	reenter(ctx context.Context, e effort, t *target, field string, s *settings, mint bool, counts []int) (grant, outcome)
	// renew lengthens the lease; false: field does not hold every key.
	renew(ctx context.Context, e effort, t *target, field string, lease time.Duration) (bool, outcome)
	// release sets counts on their way down; a key whose count is 0 is given back.
	release(ctx context.Context, e effort, t *target, field string, counts []int) (released, outcome)
	// handoff passes every key from one field to another, on the terms s of the new one.
	handoff(ctx context.Context, e effort, t *target, from, to string, s *settings) (grant, outcome)
	// force deletes key i of t if its fields are still those given.
	force(ctx context.Context, e effort, t *target, i int, fields []string) (bool, outcome)
	// state reads key i of t.
	state(ctx context.Context, e effort, t *target, i int) (keyState, outcome)
}

var _ protocol = (*plain)(nil)

// grant is the answer to a wish for a lock.
type grant struct {
	held    bool
	claimed bool // if not held: who is in the way waits to write, and keeps readers out
	split   bool // if not held: nobody of a quorum has it yet, those who want it are in each other's way

	token int64 // if held: the fencing token, 0 if none was wished

	key    int           // if not held: the position of a key that is taken
	holder string        // who is in the way
	ttl    time.Duration // of its hold; negative: without expiry
}

// released is the answer to a release.
type released struct {
	ours bool // every key was held by the field

	// heard is how many processes listen for the wake-up of a key that was given back, at
	// least; -1 if the server refused it. On a Cluster only those on one node are counted.
	heard int
}

// keyState is what Redis tells of one key.
type keyState struct {
	ttl    time.Duration // as PTTL says it: -1 ms without expiry, -2 ms if there is no key
	token  int64         // the last one minted
	fields []string      // of the hash: its owners; one, for a plain lock
	counts []int         // of their levels
}
