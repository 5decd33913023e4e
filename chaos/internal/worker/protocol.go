package worker

import (
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
)

// Config is what a client process is to do: the first line of its standard input, as JSON.
// The lines after it are Orders; the end of the input tells the process to stop.
type Config struct {
	Process  int    // its number, for its events
	Seed     uint64 // of what its workers draw
	Kind     deployment.Kind
	Addrs    []string          // of the nodes, or of the sentinels
	Relays   map[string]string // the address to dial instead, by address
	Resource string            // what the locks protect, for resource.Open; "": nothing
	Locks    []string          // the names; the first two may be held at once, by a MultiMutex
	Sided    []string          // the names of the read-write locks
	Work     Workload
}

// Order is what a client process is told during the run: a line of its standard input.
type Order struct {
	Hog time.Duration // occupy all connections of the application's pool for so long
}

// Drain is how long a process that was told to stop waits for locks before it gives up:
// longer than anything can take that is served at all.
const Drain = 10 * time.Second

// Workload is how the workers of the processes use the locks.
type Workload struct {
	Processes int           // of the clients
	Workers   int           // goroutines in each
	Names     int           // of locks
	TTL, Poll time.Duration // of the library's client
	Lasting   [2]float64    // how many TTLs a long hold lasts, at least and at most

	// The rest are shares, from 0 to 1.
	Long      float64 // of holds that last for long
	Fixed     float64 // of holds that are not renewed
	Joint     float64 // of holds of two names at once
	Fair      float64 // of holds of one name that are served in order
	Shared    float64 // of holds that two goroutines share
	Brief     float64 // of holds that last for no more than a moment, and keep the lock for longer: their min hold
	Misuse    float64 // of uses that break a rule of the library on purpose
	Impatient float64 // of waits that end after some milliseconds
	Sides     float64 // of holds of read-write locks,
	Reads     float64 // and of those the share that only reads

	Torn     bool // of two names the first process always has the second for long, the next wants both, and the others the first
	Moments  bool // each hold ends at once, and its min hold is a millisecond: hardly anything is left to be kept
	Kept     bool // nothing but the end of its lease takes a hold away
	Counts   bool // compare the levels with what Redis says
	PoolSize int  // of the go-redis client; 0: its default
	Replicas int  // that have to confirm every lease; 0: none
	Sharded  bool // wake-ups by sharded pub/sub

	// Untokened has no hold ask for a fencing token: those of one process follow one another before
	// Redis knows.
	Untokened bool
}

// With returns w changed by f.
func (w Workload) With(f func(*Workload)) Workload {
	f(&w)
	return w
}
