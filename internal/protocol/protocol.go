package protocol

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// Protocol is what a kind of lock does on Redis.
//
// Each call is one script. If it is answered, it was executed at least once. A repeated copy changes nothing, because it
// contains absolute values, no increments.
//
// A call blocks until Redis answers, the copies of e are used up, or ctx ends. A copy without an answer may be executed
// later. Then the outcome is Ambiguous, and the caller retires the name. After an error the other results are undefined.
// No call changes t.
type Protocol interface {
	// Acquire acquires every key of t for field, which holds none of them.
	Acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms) (Grant, redisexec.Outcome)
	// Reenter sets the counts of keys that field holds. With mint, it creates a token.
	Reenter(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, mint bool, counts []int) (Grant, redisexec.Outcome)
	// Renew lengthens the lease; false: field does not hold every key.
	Renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome)
	// Release sets lower counts. A key whose count is 0 is released.
	Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (Released, redisexec.Outcome)
	// LeavePlaceholder replaces field in every key by a placeholder (see [keys.Placeholder]), a field that no hold has.
	// After rest the key is free.
	LeavePlaceholder(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, until clock.Instant, rest time.Duration) (Released, redisexec.Outcome)
	// Handoff passes every key from one field to another, with the options s of the new owner.
	Handoff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, s *Terms) (Grant, redisexec.Outcome)
	// Force deletes key i of t if its fields are still those given.
	Force(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int, fields []string) (bool, redisexec.Outcome)
	// State reads key i of t.
	State(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int) (KeyState, redisexec.Outcome)
}

var (
	_ Protocol = (*Plain)(nil)
	_ Protocol = (*Lined)(nil)
	_ Protocol = (*ReadSide)(nil)
	_ Protocol = (*WriteSide)(nil)

	_ Queued = (*Lined)(nil)
	_ Queued = (*Permits)(nil)
)

// Queued is the protocol of a kind of lock whose waiters have entries in a line on Redis.
type Queued interface {
	Protocol
	// Enqueue is Acquire for an owner that waits if necessary, and is notified of the grant by ticket. The message of the
	// grant may arrive before Enqueue returns.
	Enqueue(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, ticket uint64) (Grant, redisexec.Outcome)
	// Poll keeps the entries of waiters alive, and returns their states, in the order of waiters, and the holder. If there
	// is something to grant, the first in line get it, which may be some of these. After an error there are no states.
	Poll(ctx context.Context, e redisexec.CallOptions, t *keys.Set, waiters []Waiter) ([]EntryStatus, Grant, redisexec.Outcome)
}

// Grant is the answer to a request for a lock.
type Grant struct {
	Held    bool
	Claimed bool // if not held: a writer waits, and keeps readers out
	Waits   bool // if not held: the field has an entry in the line
	Split   bool // if not held: on a quorum no owner has it yet, because several owners block each other

	Token int64 // if held: the fencing token, 0 if none was wanted; if it waits in the line: the last that was created

	Absent *keys.Nodes // held or not: the nodes without the new name

	Key    int           // if not held: the position of a key that is taken
	Holder string        // of that key
	TTL    time.Duration // of the holder's lease; negative: without expiry
}

// Released is the answer to a release.
type Released struct {
	Ours        bool // every key was held by the field
	Granted     bool // the first in line has the key
	Placeholder bool // a min-hold placeholder reserves the key

	// Receivers is the least number of processes that received the wake-up of a released key; -1: the server refused to
	// count them. On a Cluster only those on one node are counted.
	Receivers int
	// Extra is how many wake-ups each of them receives in addition to the first. A process that gave way to others counts
	// wake-ups until its next turn.
	Extra int
}

// KeyState is the state of one key on Redis.
type KeyState struct {
	TTL    time.Duration // as PTTL returns it: -1 ms without expiry, -2 ms if there is no key
	Token  int64         // the last one created
	Fields []string      // of the hash: its owners; one, for a plain lock
	Counts []int         // their hold counts

	// Of a semaphore, whose Fields are the permits in use:
	Leases  []time.Duration // the rests of their leases
	Waiting int             // entries in the line
}
