// Package look reads the locks of a Redis, of every kind, as an operator wants to see them. It
// changes nothing.
//
//   - lock.go has the state of one name, and quorum.go the combined state from the nodes of a quorum.
//   - read.go reads one name, by look.lua; scan.go finds names; client.go identifies clients; waits.go
//     has who waits for whom.
package look

import (
	"regexp"
	"time"

	"github.com/relock-go/relock/internal/deadlock"
)

// Lock is what one Redis, or a quorum, has about one name.
type Lock struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	Held bool   `json:"held"` // on a quorum: by a majority

	// TTLms is what is left of the lease in milliseconds; 0 if it is free, -1 if the key has no expiry.
	TTLms int64 `json:"ttl_ms"`

	Token     int64    `json:"token,omitempty"`  // the last fencing token
	InUse     int      `json:"in_use,omitempty"` // the weight of all permits of a semaphore
	Holders   []Holder `json:"holders"`
	Waiters   []Waiter `json:"waiters"`              // in line, the first first
	Waiting   int      `json:"waiting"`              // how many there are, if they are too many to be listed
	Listeners int      `json:"listeners"`            // connections that listen for a release; -1: not known
	Node      string   `json:"node,omitempty"`       // of a quorum
	Error     string   `json:"error,omitempty"`      // why nothing is known of it there
	Nodes     []Lock   `json:"nodes,omitempty"`      // the state on each node of a quorum
	Disagree  []string `json:"disagree,omitempty"`   // what they do not agree on
	Foreign   bool     `json:"not_a_lock,omitempty"` // the key is there, but is no lock
	Type      string   `json:"type,omitempty"`       // of a key that is no lock, if this user may read it
}

// Kind is a kind of lock.
type Kind string

// The kinds. A fair lock and one of several names look like a plain one on Redis.
const (
	Plain     Kind = "mutex"
	ReadWrite Kind = "rw"
	Semaphore Kind = "semaphore"
	Free      Kind = "free" // no owner: the next owner chooses its kind
	NoLock    Kind = "none"
)

// Holder has a lock, or is a permit of a semaphore.
type Holder struct {
	Owner   string  `json:"owner"` // uuid:owner, as on Redis, without the side; the ID of a permit
	Side    string  `json:"side,omitempty"`
	Count   int     `json:"count"`
	Weight  int     `json:"weight,omitempty"` // of a permit
	TTLms   int64   `json:"ttl_ms"`
	Client  *Client `json:"client,omitempty"`
	MinHold bool    `json:"min_hold,omitempty"` // it has ended: this is its min-hold placeholder (--min-hold)
	On      int     `json:"on_nodes,omitempty"` // how many nodes of a quorum say so

	Waits *deadlock.Wait `json:"waits,omitempty"` // what it has waited for, for long: see NoteWaits
}

// Waiter wants a lock.
type Waiter struct {
	Owner  string    `json:"owner"`
	Queue  Queue     `json:"queue"`
	State  WaitState `json:"state"`
	Client *Client   `json:"client,omitempty"`
}

// Queue is where a waiter stands.
type Queue string

// The queues.
const (
	Line   Queue = "line"     // of this library: one place for each process, or each waiter of a fair lock
	Java   Queue = "redisson" // of Redisson's fair lock
	Claims Queue = "claim"    // a writer that waits for readers
)

// WaitState is how a waiter stands.
type WaitState string

// The states of waiters.
const (
	Waits   WaitState = "waits"
	Passed  WaitState = "skipped" // its process was not subscribed when the lock was to be granted
	Expired WaitState = "gone"    // it has not asked for as long as its place lives
)

const uuid = `[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`

var (
	// owners are the fields of owners on Redis.
	owners = regexp.MustCompile(`^` + uuid + `:.`)
	// permits are the members of a semaphore: whether it is a min-hold placeholder, the weight, and the number of a further
	// member of the same permit.
	permits = regexp.MustCompile(`^` + uuid + `:\d+(\.kept)?:([1-9]\d*)(:\d+)?$`)
)

// TTL is what is left of the lease; negative if it has no end.
func (h Holder) TTL() time.Duration { return time.Duration(h.TTLms) * time.Millisecond }

// Live returns the number of waiters whose entries have not expired.
func (l *Lock) Live() int {
	gone := 0
	for _, w := range l.Waiters {
		if w.State == Expired {
			gone++
		}
	}
	return l.Waiting - gone
}

// Worth reports whether there is anything to be seen: an owner, or a waiter.
func (l *Lock) Worth() bool { return len(l.Holders) > 0 || l.Live() > 0 }
