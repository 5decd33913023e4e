package relock

import (
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/wake"
)

// FairMutex returns a handle of the lock name that is served in order: whoever asked first, in
// any goroutine of any process, gets it first. Asked means that Redis has executed the
// request. It is the lock of [Client.Mutex]: both exclude and wake each other, and a goroutine
// that holds it by one handle re-enters it by the other. Only those who use a Mutex or
// MultiMutex may overtake. A bad name or option is returned by the first call that would use
// it; on a client of NewQuorum that is ErrUnsupported.
//
// Lock waits in a queue on Redis. A release gives the lock to the first who waits and lives,
// and tells that process alone, which needs no further request to know that it holds it. A
// place in the queue is a lease of 10 s, or twice WithSafetyPoll or the TTL if one of those
// is less; one request in a third of it keeps the places of all who wait in this process.
// A waiter that has died keeps the others waiting for that lease at most, and a client that
// was cut off for longer loses its places: it waits again, behind the others. One that gives
// up leaves at once. TryLock does not overtake: it returns false while anybody waits.
//
// The lease of a lock that was waited for is that of the place at first; the watchdog soon
// raises it to the TTL, once even WithoutRenewal. WithLocalHandoffs has no effect: the next
// of the same process is served like any other. State after a failure, errors and concurrent
// use are those of [Mutex.Lock]. FairMutex itself makes no round trip. A Lock takes one, which
// gets the lock or a place in the queue; who has a place needs no other to hold the lock.
// WithReplicas takes one more, for whoever has got the lock: to have it confirmed.
//
// Beside the keys of a Mutex it uses relock_fair_queue:{name}, relock_fair_entries:{name} and
// channels that begin with relock_fair_grants:{name}; with an ACL the token counter must be
// allowed, too.
func (c *Client) FairMutex(name string, opts ...MutexOption) *Mutex {
	m := c.mutex(c.fair, []string{name}, opts)
	if m.err == nil {
		m.err = keys.CheckHelperKeys(m.target.Keys[0])
	}
	if m.err == nil {
		m.target.Fair = keys.NewFair(m.target.Keys[0])
	}
	return m
}

// messageHub is a hub for those who read the messages.
type messageHub interface {
	hub
	SubscribeTo(channel string, wake func(), message func(payload string)) *wake.Subscription
	Rejoin(channel string, wake func(), message func(payload string)) *wake.Subscription
}
