// Package protocol is the wire: what each kind of lock does on one Redis. It has the scripts, what
// they take, and the meaning of their replies. It knows nothing of holds, waiters or goroutines.
//
//   - protocol.go has the calls that every kind answers, and their answers.
//   - plain.go, fair.go and rw.go have them for Mutex and MultiMutex, FairMutex, and the two sides
//     of RWMutex. node.go has what only a node of a quorum is asked.
//   - lua/ has the scripts. Their headers say what they take and reply.
//   - reply.go reads a reply, which may be anything.
//   - terms.go has the options that a request carries.
//   - standing.go has how a place in the queue of a fair lock stands.
//   - renewals.go sends renewals that are due together as one command.
package protocol
