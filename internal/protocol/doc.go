// Package protocol is the wire: what each kind of lock does on one Redis. It has the scripts, their arguments, and the
// meaning of their replies. It is independent of holds, waiters and goroutines.
//
//   - protocol.go has the calls that every kind of lock supports, and their answers.
//   - lined.go has them for Mutex and FairMutex, plain.go for MultiMutex and the nodes of a quorum, and rw.go for the two
//     sides of RWMutex. permits.go has the calls of a Semaphore, and node.go those for nodes of a quorum only.
//     placeholder.go has min holds.
//   - lua/ has the scripts. Their headers define arguments and replies.
//   - reply.go reads a reply, which may be anything.
//   - terms.go has the options that a request contains.
//   - entry.go has the state of an entry in the line.
//   - client.go has the registration of a client, which no lock depends on.
//   - renewals.go sends renewals that are due together as one command.
package protocol
