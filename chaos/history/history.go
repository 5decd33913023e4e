// Package history has the events of client processes about their use of locks, as they happen: one event a line, so that a
// process that is killed has reported everything up to then.
package history

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Event is a call or an observation of one worker, or a fault of the director.
//
// A call and its return are two events with the same Op, so that a call that never returned, because its process was killed,
// is in the history. The event of the call is written before the call.
type Event struct {
	At      int64  `json:"at"`      // ns on the machine's monotonic clock, the same in all processes
	Process int    `json:"process"` // 0 is the director
	Worker  int    `json:"worker"`
	Op      int    `json:"op"` // number of the call in its process; for Held, Lost and Write: that of the Lock of the outermost level
	Kind    Kind   `json:"kind"`
	Lock    string `json:"lock,omitempty"` // names of a MultiMutex are joined by commas

	Owner      string  `json:"owner,omitempty"`   // who acts: unique over all processes, the same for those who share a fixed owner
	Outcome    Outcome `json:"outcome,omitempty"` // of a return
	Err        string  `json:"err,omitempty"`
	Depth      int     `json:"depth,omitempty"`       // levels of the owner on the lock, this one included
	Count      int     `json:"count,omitempty"`       // what HoldCount, or State, says that Depth is
	Token      int64   `json:"token,omitempty"`       // fencing
	Wait       int64   `json:"wait,omitempty"`        // of a LockCall: ns until its context ends; 0: never
	MinHold    int64   `json:"min_hold,omitempty"`    // of a LockCall: ns for which no other owner gets the lock, though it is unlocked before
	Try        bool    `json:"try,omitempty"`         // of a LockCall: it does not wait
	Fixed      bool    `json:"fixed,omitempty"`       // of a LockCall: the lease is not to be renewed
	Fair       bool    `json:"fair,omitempty"`        // of a LockCall: it is served in order
	Read       bool    `json:"read,omitempty"`        // it is about the read side of a read-write lock
	Weight     int     `json:"weight,omitempty"`      // of a LockCall: of the permit that is requested; 0: the lock is no semaphore
	Limit      int     `json:"limit,omitempty"`       // of a LockCall for a permit: of the request
	Until      int64   `json:"until,omitempty"`       // of a LockReturn, a Renewed: no later than this the hold is lost unless renewed
	NoMessages int64   `json:"no_messages,omitempty"` // of a Disturbed: ns for which messages may not reach Process
	Note       string  `json:"note,omitempty"`        // of the director: what the fault is
}

// Kind is the kind of an event.
type Kind string

const (
	LockCall     Kind = "lock"     // Lock or TryLock is about to be called
	LockReturn   Kind = "locked"   // it has returned
	Queued       Kind = "queued"   // Redis has answered that the LockCall of the same Op waits; for a fair lock, that it has an entry in the line
	UnlockCall   Kind = "unlock"   // Unlock is about to be called
	UnlockReturn Kind = "unlocked" // it has returned
	Held         Kind = "held"     // the library reported the hold as valid; At is before the call, Count is HoldCount's
	Counted      Kind = "counted"  // Count is the hold count on Redis of a hold that was valid before and after the request
	Renewed      Kind = "renewed"  // a renewal was confirmed
	Watched      Kind = "watched"  // the worker watches from now on whether other owners want the lock that it holds
	Wanted       Kind = "wanted"   // the library reported that another owner wants it
	Lost         Kind = "lost"     // the hold's context ended with ErrLost; At is when that was noticed
	WriteCall    Kind = "write"    // the resource is about to be written to, with Token
	WriteReturn  Kind = "written"  // it accepted (OK) or refused (Refused) the token
	Left         Kind = "left"     // after everything was closed, something was left: goroutines or keys, as in Note
	Misused      Kind = "misused"  // the worker misused the library on purpose, as in Note; OK: it got the right error
	Alive        Kind = "alive"    // the process runs: reported every Beat, or later if the process does not get to run
	Bye          Kind = "bye"      // the last event of a process that ended by itself

	// Of the director.
	Began Kind = "began" // the first event of a run: times are relative to it

	// Between FaultBegin and FaultEnd nothing is promised about waiting.
	FaultBegin Kind = "fault"     // Op is the number of the fault, Note describes it
	FaultEnd   Kind = "healed"    // of the fault with the same Op
	Disturbed  Kind = "disturbed" // a fault, too, but one that delays no one for long: nothing is exempt
	Paused     Kind = "paused"    // Process was stopped, Worker is 0; At is before
	Resumed    Kind = "resumed"
	Killed     Kind = "killed"   // Process was killed; At is after
	DataLoss   Kind = "dataloss" // the deployment may have lost or forked data from here on (Lock "" = all locks)
)

// Beat is the time between two Alives of a process.
const Beat = 20 * time.Millisecond

// Outcome is how a call ended.
type Outcome string

const (
	OK      Outcome = "ok"
	Taken   Outcome = "taken"   // TryLock: another owner has it
	Ended   Outcome = "ended"   // the caller's context ended, or the wait timed out
	IsLost  Outcome = "lost"    // ErrLost
	Refused Outcome = "refused" // the resource has seen a higher token
	NotHeld Outcome = "notheld" // ErrNotHeld
	Closed  Outcome = "closed"  // ErrClosed
	Failed  Outcome = "failed"  // any other error

	Deadlocked Outcome = "deadlock" // ErrDeadlock
)

// Recorder writes events, one a line, each at once.
type Recorder struct {
	process int

	mu  sync.Mutex
	out *json.Encoder
}

// NewRecorder returns a recorder of a process.
func NewRecorder(w io.Writer, process int) *Recorder {
	return &Recorder{process: process, out: json.NewEncoder(w)}
}

// Record completes e with the process and, unless it has one, the time.
func (r *Recorder) Record(e Event) {
	if e.At == 0 {
		e.At = Now()
	}
	if e.Process == 0 {
		e.Process = r.process
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.out.Encode(e) // if the pipe is closed, the event is not needed any more
}

// Read calls fn with every event in r. An incomplete last line is ignored: its process was killed.
func Read(r io.Reader, fn func(Event)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e Event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			fn(e)
		}
	}
	return lines.Err()
}
