package player

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
)

// Habits are how the players of all processes use locks.
type Habits struct {
	TTL time.Duration // of the library's client

	// Shares, from 0 to 1.
	Fair      float64 // of holds of one name that are served in order
	Fixed     float64 // of holds that are not renewed, or not for ever
	OwnLease  float64 // of holds whose TTL is not that of the client
	MinHold   float64 // of holds that keep the lock for a while though they end before
	Shared    float64 // of uses that two goroutines share
	Sides     float64 // of uses of read-write locks,
	Reads     float64 // and of those the share that only reads
	Misuse    float64 // of uses that break a rule of the library on purpose
	Impatient float64 // of waits that end soon
	Long      float64 // of holds that last for long

	Moments   bool // each hold ends at once, and its min hold is a millisecond: hardly anything is left to be kept
	Untokened bool // no hold asks for a fencing token: those of one process follow one another before Redis knows
}

// Process is what the players of a process share. All but the counts is set before they begin.
type Process struct {
	World
	Habits
	Number       int
	Locks        *relock.Client
	Names, Sided []string        // of locks, and of read-write locks
	Life         context.Context // of the waits that nothing else ends
	Stopping     <-chan struct{} // closed when no new use is to begin

	Try        float64          // share of locks by TryLock
	Impatience time.Duration    // how long those wait who are impatient, at most
	Step       [2]time.Duration // the time between what is done under a lock, at least and at most
	Apart      time.Duration    // the players begin within so much time

	Quorum    bool // the locks are on several masters
	Protected bool // there is something that the locks protect
	Kept      bool // nothing but the end of its lease takes a hold away
	Counted   bool // the levels are compared with what Redis says,
	AtOnce    bool // and of half of the holds at their beginning
	Outlives  bool // some holds outlive their lease on purpose
	Exact     bool // time is virtual, and the library's clock shows it: what was just seen was true at this very time

	Holding atomic.Int64 // outermost holds that it has
	Waiting atomic.Int64 // of its Locks, that wait in vain so far
	calls   atomic.Int64 // to number them
}

// World is where a process is: on real servers, or in a simulation.
type World interface {
	// Now is the time of events.
	Now() int64
	// Record records what the process did or saw.
	Record(e history.Event)
	// Gate returns when the process runs.
	Gate()

	// Choose chooses the locks of one use.
	Choose(d Drawer) []string
	// Length is how long a hold is to last.
	Length(d Drawer) time.Duration
	// Pause is how long to wait until the next use.
	Pause(d Drawer) time.Duration

	// Write writes to what a lock protects.
	Write(d Drawer, lock string, token int64, by string) (accepted bool, err error)
	// NewLocks returns another client of the library, and closes it.
	NewLocks() (locks *relock.Client, closed func() error, err error)
	// Trust goes by a context, as work does that was started under a lock. last ends that, and returns when the context
	// was valid for the last time; 0: it is not known.
	Trust(ctx context.Context) (last func() int64)
}

// number returns the number of a call.
func (c *Process) number() int { return int(c.calls.Add(1)) }
