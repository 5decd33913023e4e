package player

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
)

// Habits are how a player uses locks.
type Habits struct {
	TTL time.Duration // of the library's client

	// Shares, from 0 to 1.
	Fair      float64 // of holds of one name that are served in order
	Fixed     float64 // of holds that are not renewed, or not for ever
	OwnLease  float64 // of holds whose TTL is not that of the client, but a sixth of it or more
	MinHold   float64 // of holds with a min hold
	Async     float64 // of uses whose Unlocks return before Redis has answered
	Linger    float64 // of uses after which the lock stays with the process for a while
	Shared    float64 // of uses that two goroutines share
	Sides     float64 // of uses of read-write locks,
	Reads     float64 // and of those the share that only reads
	Permits   float64 // of uses of semaphores,
	Heavy     float64 // and of those the share with a weight above 1
	Misuse    float64 // of uses that break a rule of the library on purpose
	Impatient float64 // of waits that end soon
	Long      float64 // of holds that last for long

	Nested  float64 // of holds within which another name is locked: a later one,
	Opposed bool    // or any, so that owners wait for each other

	Moments   bool // each hold ends at once, and its min hold is a millisecond, so a placeholder lasts hardly any time
	Watches   bool // holders watch whether other owners want the lock
	Untokened bool // no hold requests a fencing token, so processes hand over locally
}

// Process is the state that the players of a process share. All except the counts is set before they begin.
type Process struct {
	World
	Number       int
	Locks        *relock.Client
	Names, Sided []string        // of locks, and of read-write locks
	Semaphores   []string        // their names,
	Limit        int             // and the limit of each
	Life         context.Context // of waits without another end
	Stopping     <-chan struct{} // closed when no new use may begin

	Try        float64          // share of locks by TryLock
	Impatience time.Duration    // the longest wait of an impatient Lock
	Step       [2]time.Duration // the least and the longest time between actions under a lock
	Apart      time.Duration    // the players begin within this time

	Quorum    bool // the locks are on several masters
	Protected bool // the locks protect a resource
	Kept      bool // a hold ends early only with its lease
	Counted   bool // hold counts are compared with Redis,
	AtOnce    bool // and for half of the holds at their beginning
	Outlives  bool // some holds outlive their lease on purpose
	Exact     bool // time is virtual, and the clock of the library never stops: a context ends at exactly its time

	Holding atomic.Int64 // the number of outermost holds
	Waiting atomic.Int64 // the number of Locks that wait
	calls   atomic.Int64 // the number of calls so far
}

// World is the environment of a process: real servers, or a simulation.
type World interface {
	// Now is the time of events.
	Now() int64
	// Record records a call or an observation of the process.
	Record(e history.Event)
	// Gate returns when the process runs.
	Gate()

	// Shown returns the time of events at which the clock that the library uses will show t, unless it is set. false: unknown.
	Shown(t time.Time) (at int64, known bool)

	// Choose chooses the locks of one use.
	Choose(d Drawer) []string
	// Length returns how long a hold lasts.
	Length(d Drawer) time.Duration
	// Pause returns how long to wait until the next use.
	Pause(d Drawer) time.Duration

	// Write writes to the resource of a lock.
	Write(d Drawer, lock string, token int64, by string) (accepted bool, err error)
	// NewLocks returns another client of the library, and closes it.
	NewLocks() (locks *relock.Client, closed func() error, err error)
	// Trust watches a context, as work under a lock does. last ends this, and returns the last time at which the context was
	// valid; 0: it is unknown.
	Trust(ctx context.Context) (last func() int64)
}

// number returns the number of a call.
func (c *Process) number() int { return int(c.calls.Add(1)) }
