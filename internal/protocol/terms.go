package protocol

import "time"

// MinTTL is the shortest lease.
const MinTTL = 100 * time.Millisecond

// Terms are the options of a handle that its requests carry to Redis, or that decide how.
type Terms struct {
	TTL         time.Duration // whole milliseconds
	Renewed     bool          // the lease will be asked for again
	Fencing     bool
	CounterLife time.Duration // 0: for ever
	SafetyPoll  time.Duration
}

// A waiter's entry is a lease, kept by polls. For so long at most a waiter that has died unnoticed
// keeps others from the lock. A lock is granted to a waiter for as long, and the new holder renews it
// to the full lease. A third of the entry's lease passes between two polls.
const (
	entryLeaseMax = 5 * time.Second
	entryLeaseMin = MinTTL
	pollsInLease  = 3
)

// EntryLease is how long the entry of a waiter lives without a poll. It is never longer than the TTL: so long the
// owner lets others wait if its process dies, and a place must not cost them more.
func (s *Terms) EntryLease() time.Duration {
	return max(entryLeaseMin, min(2*min(s.SafetyPoll, entryLeaseMax), entryLeaseMax, s.TTL)).Truncate(time.Millisecond)
}

// EntryPoll is the longest sleep of a waiter that has to keep an entry, or that one keeps out.
func (s *Terms) EntryPoll() time.Duration {
	return min(s.SafetyPoll, s.EntryLease()/pollsInLease)
}
