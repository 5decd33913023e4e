package protocol

import "github.com/relock-go/relock/internal/clock"

// EntryStatus is the state of an entry.
type EntryStatus struct {
	State EntryState
	Proof clock.Instant // when the last request was sent whose answer was that the entry waits, or is granted
	Token int64         // of a grant; while it waits, the last token that was created, 0 if there is none or none is wanted
	Late  bool          // the grant came before the poll that returned it: a message should have announced it
	Err   error         // of a failure
}

// EntryState is the state of an entry.
type EntryState int

// The states of an entry. States above EntryWaiting are final: the waiter need not wait any more.
const (
	entryAsking  EntryState = iota // its request is not answered
	EntryWaiting                   // in the line
	EntryGranted                   // it holds the lock
	EntryGone                      // neither: its lease has ended, or Redis has lost it
	EntryFailed                    // it holds the lock, but without the token that was wanted
)
