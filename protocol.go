package relock

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// kind is a kind of lock: what it does on Redis, and how its waiters get to ask for it. It
// is a property of what a handle locks. Re-entry, waiting, renewal, loss and hooks are the
// same for every kind and know no more of it than this.
type kind struct {
	protocol
	side keys.Side

	// newTurn is how an attempt gets to ask.
	newTurn func(a *attempt) turn
	// stand is the place where the waiters for the key of g stand, without a ticket yet.
	stand func(g *gate) place
}

// atGate is the place in the queue of the gate itself.
func atGate(g *gate) place { return place{gate: g, queue: &g.queue, messages: g} }

// protocol is what a kind of lock does on Redis.
//
// Each call is one script, executed at least once if it is answered; sending it again
// changes nothing, because it carries what is wanted and not what to add.
type protocol interface {
	// acquire takes every key of t for field, which holds none of them.
	acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *terms) (grant, redisexec.Outcome)
	// reenter sets the counts of keys that field holds. It mints a token if asked to.
	reenter(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *terms, mint bool, counts []int) (grant, redisexec.Outcome)
	// renew lengthens the lease; false: field does not hold every key.
	renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome)
	// release sets counts on their way down; a key whose count is 0 is given back.
	release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (released, redisexec.Outcome)
	// handoff passes every key from one field to another, on the terms s of the new one.
	handoff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, s *terms) (grant, redisexec.Outcome)
	// force deletes key i of t if its fields are still those given.
	force(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int, fields []string) (bool, redisexec.Outcome)
	// state reads key i of t.
	state(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int) (keyState, redisexec.Outcome)
}

var _ protocol = (*plain)(nil)

// grant is the answer to a wish for a lock.
type grant struct {
	held    bool
	claimed bool // if not held: who is in the way waits to write, and keeps readers out
	split   bool // if not held: nobody of a quorum has it yet, those who want it are in each other's way

	token int64 // if held: the fencing token, 0 if none was wished

	absent *keys.Nodes // held or not: of the name that was to get it

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
	// extra is how many wake-ups each of them gets besides the first.
	extra int
}

// keyState is what Redis tells of one key.
type keyState struct {
	ttl    time.Duration // as PTTL says it: -1 ms without expiry, -2 ms if there is no key
	token  int64         // the last one minted
	fields []string      // of the hash: its owners; one, for a plain lock
	counts []int         // of their levels
}
