package relock

import (
	"context"
	_ "embed"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

var (
	//go:embed lua/fair_prelude.lua
	fairPrelude string
	//go:embed lua/fair_acquire.lua
	fairAcquireSource string
	//go:embed lua/fair_poll.lua
	fairPollSource string
	//go:embed lua/fair_release.lua
	fairReleaseSource string

	fairAcquireScript = withPrelude(fairAcquireSource, fairPrelude)
	fairPollScript    = withPrelude(fairPollSource, fairPrelude)
	fairReleaseScript = withPrelude(fairReleaseSource, fairPrelude)
)

// fair is the protocol of FairMutex: that of a plain lock on the same hash, with a queue
// beside it. Taking the lock and giving it back mind the queue; all else is the same.
type fair struct {
	*plain
	// process is what the channels end in on which this client is told of grants.
	process string
}

// grantsFor is the channel on which this process is told of grants of key.
func (f *fair) grantsFor(key string) string {
	return keys.GrantsPrefix(key) + f.process
}

// keepFor tells the scripts what token s wishes for: the life of its counter in
// milliseconds, -1 for none.
func keepFor(s *terms) int64 {
	if !s.fencing {
		return -1
	}
	return s.counterLife.Milliseconds()
}

// acquire takes the lock if it is free and nobody waits for it.
func (f *fair) acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *terms) (grant, redisexec.Outcome) {
	return f.take(ctx, e, t, field, s)
}

// enqueue is acquire for an owner who waits if need be, and is told of the grant by ticket.
func (f *fair) enqueue(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *terms, ticket uint64) (grant, redisexec.Outcome) {
	return f.take(ctx, e, t, field, s, s.entryLease().Milliseconds(), ticket, t.Fair.Grants+f.process)
}

func (f *fair) take(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *terms, entry ...any) (grant, redisexec.Outcome) {
	args := []any{field, s.ttl.Milliseconds(), keepFor(s), f.publishCommand()}
	r, out := f.run(ctx, e, fairAcquireScript, t.Fair.Words, append(args, entry...)...)
	return understood(r.grant(t, true), out, &r)
}

// waiter is somebody who waits in the queue of a fair lock, as a poll speaks of him.
type waiter struct {
	field string
	*terms
}

// poll keeps the places of waiters, and asks how they stand and who has the lock.
func (f *fair) poll(ctx context.Context, e redisexec.CallOptions, t *keys.Set, waiters []waiter) ([]standing, grant, redisexec.Outcome) {
	args := make([]any, 0, 1+3*len(waiters))
	args = append(args, f.publishCommand())
	for _, w := range waiters {
		args = append(args, w.field, w.entryLease().Milliseconds(), keepFor(w.terms))
	}
	r, out := f.run(ctx, e, fairPollScript, t.Fair.Words, args...)
	if status := r.integer(0); status != 0 {
		r.refuse(status, t)
		_, out = understood(grant{}, out, &r)
		return nil, grant{}, out
	}
	g := grant{ttl: r.life(1), holder: r.text(2)}
	all := make([]standing, len(waiters))
	for i := range all {
		all[i] = r.standing(3+2*i, t)
	}
	g, out = understood(g, out, &r)
	if out.Err != nil {
		all = nil
	}
	return all, g, out
}

// standing returns what elements i and i+1 say of a waiter for the lock t.
func (r *reply) standing(i int, t *keys.Set) standing {
	token := r.integer(i + 1)
	switch status := r.integer(i); status {
	case 0:
		return standing{state: entryWaiting}
	case 1:
		return standing{state: entryGranted, token: token}
	case -1:
		return standing{state: entryGone}
	case -3:
		return standing{state: entryFailed, err: whyRefused(-3, t, 0)}
	default:
		r.surprise("status %d at %d", status, i)
		return standing{}
	}
}

// release gives the lock and the place in the queue up. A count that is not 0 is a plain
// lock's matter.
func (f *fair) release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (released, redisexec.Outcome) {
	if counts[0] > 0 {
		return f.plain.release(ctx, e, t, field, counts)
	}
	e.PublishFirst = true // a grant wakes who waits for it some 30 us sooner, of 560
	if !e.Undoes {        // a place in the queue may be all that there is to give up
		e.RequiredKeys = 1
	}
	r, out := f.run(ctx, e, fairReleaseScript, t.Fair.Freeing, field, f.publishCommand(), t.Channels[0])
	return understood(r.released(), out, &r)
}

// A waiter's entry is a lease, kept by polls: for so long at most a waiter that has died
// keeps others from the lock, and for so long a lock is granted to one, who then renews it
// to the full lease. A third of it passes between two polls.
const (
	entryLeaseMax = 10 * time.Second
	entryLeaseMin = minTTL
	pollsInLease  = 3
)

func (s *terms) entryLease() time.Duration {
	return max(entryLeaseMin, min(2*min(s.safetyPoll, entryLeaseMax), entryLeaseMax, s.ttl)).Truncate(time.Millisecond)
}

// entryPoll is the longest sleep of somebody who has to keep an entry, or whom one keeps out.
func (s *terms) entryPoll() time.Duration {
	return min(s.safetyPoll, s.entryLease()/pollsInLease)
}
