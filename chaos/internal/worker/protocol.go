package worker

import (
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/player"
)

// Config is the configuration of a client process: the first line of its standard input, as JSON. The lines after it are
// Orders. At the end of the input the process stops.
type Config struct {
	Process    int    // its number, for its events
	Seed       uint64 // of the random choices of its workers
	Kind       deployment.Kind
	Addrs      []string          // of the nodes, or of the sentinels
	Relays     map[string]string // the address to dial instead, by address
	Resource   string            // that the locks protect, for resource.Open; "": none
	Locks      []string          // the names; the first two may be held at once, by a MultiMutex
	Sided      []string          // the names of the read-write locks
	Semaphores []string          // the names of the semaphores
	Work       Workload
}

// Order is a request to a client process during the run: a line of its standard input.
type Order struct {
	Hog time.Duration // occupy all connections of the application's pool for so long
}

// Drain is how long a process that stops still waits for locks: longer than any served waiter can wait.
const Drain = 10 * time.Second

// Workload is how the client processes use the locks.
type Workload struct {
	player.Habits
	Processes int           // of the clients
	Workers   int           // goroutines in each
	Names     int           // of locks
	Paired    bool          // each two processes have two of the names to themselves
	Limit     int           // of semaphores
	Poll      time.Duration // the safety poll of the library's client
	Joint     float64       // share of holds of two names at once, from 0 to 1
	Lasting   [2]float64    // how many TTLs a long hold lasts, at least and at most

	Impatience    time.Duration // the longest wait of an impatient Lock
	DeadlockCheck time.Duration // 0: the default of the library
	Unpipelined   bool          // WithoutPipelining

	Torn     bool // of two names the first process holds the second for long, the next process wants both, and the others the first
	Kept     bool // a hold ends early only with its lease
	Counts   bool // compare hold counts with Redis
	PoolSize int  // of the go-redis client; 0: its default
	Replicas int  // that have to confirm every lease; 0: none
	Sharded  bool // wake-ups by sharded pub/sub
}

// With returns w changed by f.
func (w Workload) With(f func(*Workload)) Workload {
	f(&w)
	return w
}
