package worker

import (
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/player"
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

// Workload is how the client processes use the locks.
type Workload struct {
	player.Habits
	Processes int           // of the clients
	Workers   int           // goroutines in each
	Names     int           // of locks
	Poll      time.Duration // the safety poll of the library's client
	Joint     float64       // share of holds of two names at once, from 0 to 1
	Lasting   [2]float64    // how many TTLs a long hold lasts, at least and at most

	Torn     bool // of two names the first process always has the second for long, the next wants both, and the others the first
	Kept     bool // nothing but the end of its lease takes a hold away
	Counts   bool // compare the levels with what Redis says
	PoolSize int  // of the go-redis client; 0: its default
	Replicas int  // that have to confirm every lease; 0: none
	Sharded  bool // wake-ups by sharded pub/sub
}

// With returns w changed by f.
func (w Workload) With(f func(*Workload)) Workload {
	f(&w)
	return w
}
