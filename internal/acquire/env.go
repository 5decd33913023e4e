package acquire

import (
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// What an attempt has to do with the rest of the library: the hold that it gets the keys for, the client,
// the places where it stands, and who is told that it waits.

// Hold is what the keys are for. Its owner does not use it before it was granted.
type Hold interface {
	Owner() keys.Owner
	Attempt() *Attempt

	// Named reports whether it was granted, by an answer or by the holder before: it has a name on Redis.
	Named() bool
	// Receive records a grant by the name n for so long, which was asked for then. found is what the answer
	// says of the lease on Redis, if another program has shortened it.
	Receive(n identity.Name, sent clock.Instant, lasts, found time.Duration)
	// RaiseSoon says that the grant was for less than the whole lease.
	RaiseSoon()
	// Prove records a request that made it so long, and was answered.
	Prove(sent clock.Instant, lasts time.Duration)
	// Late reports whether the grant does not count, because it is past its deadline or was found to be
	// none; then it has been rejected.
	Late() bool
	// Reject gives back a grant that does not count, and has the hold be known by no name.
	Reject()

	// Undo has what n, whose identity has been retired, may have of t given up in the background. It
	// ends by itself within lasts. unobserved: no one can have waited for that.
	Undo(p protocol.Protocol, t *keys.Set, n identity.Name, lasts time.Duration, unobserved bool)

	// Remaining is for how long the hold is proven yet; false: it is not held.
	Remaining(now clock.Instant) (time.Duration, bool)
}

// Env is what the attempts of a client share.
type Env struct {
	Now        clock.Clock
	Patience   time.Duration // with one copy of a command
	Identities *identity.Source
	Closing    <-chan struct{} // closed when the client is
	Hub        Hub

	// Uses reports whether messages of a channel reach this process, or did only just now; on one
	// deployment.
	Uses func(channel string) bool
	// Holder returns the hold of this client that has field on key i of t, or nil.
	Holder func(t *keys.Set, i int, field string) Hold

	// Tickets numbers the places in lines.
	Tickets atomic.Uint64
}

// Hub is told what messages should have come.
type Hub interface {
	Suspect(channel string)
	Missed(channel string)
}

func (e *Env) closed() bool { return group.Closed(e.Closing) }

// Paced is opts for a command about a lease: several copies have to fit into it.
func (e *Env) Paced(opts redisexec.CallOptions, lease time.Duration) redisexec.CallOptions {
	opts.Patience, opts.MaxPatience = min(e.Patience, redisexec.PatienceFor(lease)), lease/4
	return opts
}

// Gate is what this process knows of a key, and Ticket a place in one of its queues.
type (
	Gate     = gate.Gate[Hold]
	Registry = gate.Registry[Hold]
	Sighting = gate.Sighting[Hold]
	Line     = line.Line[Hold]
	Queue    = queue.Queue[Hold]
	Ticket   = queue.Ticket[Hold]
)

// Place is where a hold stands for one of its keys.
type Place struct {
	Gate     *Gate
	Queue    *Queue   // where this kind of lock has its waiters stand
	Messages Listener // what wakes them
	Ticket   *Ticket
}

// AtGate is the place in the queue of the gate itself, without a ticket yet.
func AtGate(g *Gate) Place { return Place{Gate: g, Queue: &g.Queue, Messages: g} }

// AtGateInLine is AtGate for those that have a place in the line of the key as well.
func AtGateInLine(g *Gate) Place { return Place{Gate: g, Queue: &g.Queue, Messages: g.InLine()} }

// InLine is the place in the queue of those that each have a place in the line of the key.
func InLine(g *Gate) Place { return Place{Gate: g, Queue: &g.Line().Queue, Messages: g.InLine()} }

// Listener is what messages reach: the gate of a key, or the line of this process.
type Listener interface {
	Listen()
	Unlisten()
	// Listening reports whether messages arrive.
	Listening() bool
}

// NewTurn makes the turn of an attempt.
type NewTurn func(a *Attempt) Turn

// Record is told that the attempt has to wait.
type Record interface {
	Contended()
}
