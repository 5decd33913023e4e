package protocol

import "github.com/relock-go/relock/internal/clock"

// Standing is how an entry stands.
type Standing struct {
	State EntryState
	Proof clock.Instant // when the request was sent whose answer said last that it waits, or is granted
	Token int64         // of a grant; while it waits, the last that was minted, 0 if there is none or none is wished
	Late  bool          // the grant was given before the poll that tells of it: a message should have told
	Err   error         // of a failure
}

// EntryState is where an entry is.
type EntryState int

// The states of an entry. What is above EntryWaiting is final: its waiter need not wait any more.
const (
	entryAsking  EntryState = iota // its request is not answered
	EntryWaiting                   // in the queue
	EntryGranted                   // it holds the lock
	EntryGone                      // neither: its lease is over, or Redis has lost it
	EntryFailed                    // it holds the lock, but cannot have what it wished for with it
)
