package protocol

import "time"

// MinTTL is the shortest lease.
const MinTTL = 100 * time.Millisecond

// UsualTTL is the lease of handles without an option for it.
const UsualTTL = 30 * time.Second

var boxedTTL any = UsualTTL.Milliseconds()

// Terms are the options of a handle that its requests contain, or depend on.
type Terms struct {
	TTL         time.Duration // whole milliseconds
	Renewed     bool          // the lease will be asked for again
	Fencing     bool
	CounterLife time.Duration // 0: for ever
	SafetyPoll  time.Duration
	Limit       int // of a semaphore: a permit is granted if the weights in use stay within it
}

// ttl returns the TTL for the scripts, in milliseconds.
func (s *Terms) ttl() any {
	if s.TTL == UsualTTL {
		return boxedTTL // which costs no allocation
	}
	return s.TTL.Milliseconds()
}

// An entry in the line has a lease, which polls extend. It bounds the time for which a waiter that died unnoticed delays
// others. A grant has the same lease, and the new holder extends it to the full lease. A third of the entry's lease passes
// between two polls.
const (
	entryLeaseMax = 5 * time.Second
	entryLeaseMin = MinTTL
	pollsInLease  = 3
)

// EntryLease is how long an entry lives without a poll. It is at most the TTL, so an entry of a process that dies delays
// others no longer than its lock would.
func (s *Terms) EntryLease() time.Duration {
	return max(entryLeaseMin, min(2*min(s.SafetyPoll, entryLeaseMax), entryLeaseMax, s.TTL)).Truncate(time.Millisecond)
}

// EntryPoll is the longest sleep of a waiter that has to keep an entry alive, or that waits because of an entry.
func (s *Terms) EntryPoll() time.Duration {
	return min(s.SafetyPoll, s.EntryLease()/pollsInLease)
}
