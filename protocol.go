package relock

import (
	"context"
	"time"
)

// protocol is what a kind of lock does on Redis. Waiting, re-entry, renewal, loss and
// hooks are the same for every kind and know no more of it than this.
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
	held  bool
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
	count  int           // of the first field
}
