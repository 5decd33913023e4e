// Package protocol is the wire: what each kind of lock does on one Redis. It has the scripts, what
// they take, and the meaning of their replies. It knows nothing of holds, waiters or goroutines.
//
//   - protocol.go has the calls that every kind answers, and their answers.
//   - lined.go has them for Mutex and FairMutex, plain.go for MultiMutex and the nodes of a quorum,
//     and rw.go for the two sides of RWMutex. node.go has what only a node of a quorum is asked.
//   - lua/ has the scripts. Their headers say what they take and reply.
//   - reply.go reads a reply, which may be anything.
//   - terms.go has the options that a request carries.
//   - standing.go has how a place in the line stands.
//   - renewals.go sends renewals that are due together as one command.
package protocol
