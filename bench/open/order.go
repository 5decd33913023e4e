package main

import "time"

// order is one line on the standard input of a worker, whatever it is written in. A worker performs orders side by side,
// answers each once, and ends with its input. Times are in microseconds, instants since 1970.
type order struct {
	ID int    `json:"id"`
	Op string `json:"op"`

	Contender string   `json:"contender,omitempty"` // open
	Addr      string   `json:"addr,omitempty"`      // open
	Sentinels []string `json:"sentinels,omitempty"` // open: in place of Addr
	Master    string   `json:"master,omitempty"`    // open: its name, with Sentinels
	Lease     int64    `json:"lease,omitempty"`     // open

	Name     string  `json:"name,omitempty"`     // of the lock; the beginning of it where there are several
	Start    int64   `json:"start,omitempty"`    // load, closed
	Arrivals []int64 `json:"arrivals,omitempty"` // load: after the start
	Names    []int   `json:"names,omitempty"`    // load: of each arrival; closed: taken in turn. None: a new name each time
	Hold     int64   `json:"hold,omitempty"`     // load, closed: how long each lock is held
	Workers  int     `json:"workers,omitempty"`  // load, closed: goroutines or threads
	Duration int64   `json:"duration,omitempty"` // closed: how long; load: after which no lock is waited for any more
	Count    int     `json:"count,omitempty"`    // hold: names; crowd: waiters
	Keep     bool    `json:"keep,omitempty"`     // lock: until an unlock; otherwise it is unlocked at once
}

// The orders.
const (
	opOpen   = "open"   // opens the client
	opLoad   = "load"   // locks and unlocks when arrivals are due
	opClosed = "closed" // locks and unlocks in a loop
	opLock   = "lock"   // answered when it is held
	opLost   = "lost"   // answered when the library reports that a lock that is kept was lost; an error if it never would
	opUnlock = "unlock" // of a lock that is kept
	opHold   = "hold"   // acquires many names, and keeps them
	opCrowd  = "crowd"  // starts waiters of one name; answered at once
	opUsage  = "usage"  // after a garbage collection
)

// answer is one line on the standard output of a worker.
type answer struct {
	ID  int    `json:"id"`
	Err string `json:"err,omitempty"`
	At  int64  `json:"at,omitempty"` // lock: when it was held; unlock, lost: when that was

	Got    []int64 `json:"got,omitempty"`  // load: when each arrival had its lock, after the start; or timedOut, or callFailed
	Gave   []int64 `json:"gave,omitempty"` // load: when its unlock began
	Served int     `json:"served,omitempty"`
	Lost   int     `json:"lost,omitempty"` // load, closed: calls that failed, and locks that were lost

	Allocs int64 `json:"allocs,omitempty"` // load: allocations of the process; 0: not known
	GCs    int64 `json:"gcs,omitempty"`    // load: garbage collections
	Heap   int64 `json:"heap,omitempty"`   // usage: bytes in use
}

// In place of a time of an answer: an arrival that had no lock, because its time was over, or because the call failed.
const (
	timedOut   = -1
	callFailed = -2
)

func micros(d time.Duration) int64 { return d.Microseconds() }

// now is the time on which the processes of one machine agree.
func now() int64 { return time.Now().UnixMicro() }
