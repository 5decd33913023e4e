// Package history is what client processes tell about their use of locks, as it happens:
// one event a line, so that a process that is killed has told everything up to then.
package history

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Event is something that one worker did or saw, or that the director did to the stage.
//
// What a worker calls and what comes back are two events with the same Op, so that a call
// that never returned, because its process was killed, is known. The call's event is
// written before the call is made.
type Event struct {
	At      int64  `json:"at"`      // ns on the machine's monotonic clock, the same in all processes
	Process int    `json:"process"` // 0 is the director
	Worker  int    `json:"worker"`
	Op      int    `json:"op"` // number of the call in its process; for Held, Lost and Write: that of the Lock of the outermost level
	Kind    Kind   `json:"kind"`
	Lock    string `json:"lock,omitempty"` // names of a MultiMutex are joined by commas

	Owner   string  `json:"owner,omitempty"`   // who acts: unique over all processes, the same for those who share a fixed owner
	Outcome Outcome `json:"outcome,omitempty"` // of a return
	Err     string  `json:"err,omitempty"`
	Depth   int     `json:"depth,omitempty"`    // levels of the owner on the lock, this one included
	Count   int     `json:"count,omitempty"`    // what HoldCount, or State, says that Depth is
	Token   int64   `json:"token,omitempty"`    // fencing
	Wait    int64   `json:"wait,omitempty"`     // of a LockCall: ns until its context ends; 0: never
	MinHold int64   `json:"min_hold,omitempty"` // of a LockCall: ns for which no other owner gets the lock, though it is unlocked before
	Fixed   bool    `json:"fixed,omitempty"`    // of a LockCall: the lease is not to be renewed
	Fair    bool    `json:"fair,omitempty"`     // of a LockCall: it is served in order
	Read    bool    `json:"read,omitempty"`     // it is about the read side of a read-write lock
	Until   int64   `json:"until,omitempty"`    // of a LockReturn, a Renewed: no later than this the hold is lost unless renewed
	Note    string  `json:"note,omitempty"`     // of the director: what the fault is
}

// Kind says what an event tells.
type Kind string

const (
	LockCall     Kind = "lock"     // Lock or TryLock is about to be called
	LockReturn   Kind = "locked"   // it has returned
	Queued       Kind = "queued"   // Redis has told that the LockCall of the same Op waits; of a fair one, that it has a place in the line
	UnlockCall   Kind = "unlock"   // Unlock is about to be called
	UnlockReturn Kind = "unlocked" // it has returned
	Held         Kind = "held"     // asked at At (the time before asking), the library said that the hold is valid; Count is HoldCount's
	Counted      Kind = "counted"  // Count is what Redis says of a hold that was valid before and after it was asked
	Renewed      Kind = "renewed"  // a renewal was confirmed
	Lost         Kind = "lost"     // the hold's context ended with ErrLost; At is when that was noticed
	WriteCall    Kind = "write"    // the resource is about to be written to, with Token
	WriteReturn  Kind = "written"  // it accepted (OK) or refused (Refused) the token
	Left         Kind = "left"     // after everything was closed, Note is what was left over: goroutines, keys
	Misused      Kind = "misused"  // the worker did on purpose what nobody should, as Note says; OK: it got the right error
	Alive        Kind = "alive"    // the process runs: told every Beat, and by a process that does not get to run, later
	Bye          Kind = "bye"      // the last event of a process that ended by itself

	// Of the director.
	Began Kind = "began" // the first event of a run: times are told from here

	// Between FaultBegin and FaultEnd nothing is promised about waiting.
	FaultBegin Kind = "fault"     // Op numbers the fault, Note says what it is
	FaultEnd   Kind = "healed"    // of the fault with the same Op
	Disturbed  Kind = "disturbed" // a fault, too, but of those that keep nobody waiting for long: nothing is exempt
	Paused     Kind = "paused"    // Worker 0, Process is the one that was stopped; At is before
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
	_ = r.out.Encode(e) // a pipe that is closed means that nobody is interested any more
}

// Read calls fn with every event that r has, until its end. A last line that is cut short
// belongs to a process that was killed.
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
