package relock

import (
	"fmt"
	"strings"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/quorum"
)

// The sentinel errors. What a method returns is wrapped with the name of the lock
// and the circumstances: match with [errors.Is]. It matches context.Canceled or
// context.DeadlineExceeded only if the caller's own context has ended.
var (
	// ErrNotHeld is returned by Unlock and RUnlock when the owner does not hold the lock, or holds it
	// only by handles with other names. It is also the cause of the context of an owner that holds
	// nothing.
	ErrNotHeld = lockerr.ErrNotHeld

	// ErrLost says that a hold ended, but not by Unlock or Close: its lease ran out because Redis did
	// not answer or the process was paused; its key was deleted, evicted or forgotten by a failover; or
	// it was forced open. It is the cause of the hold's context. Each Unlock of the hold's levels
	// returns it, and so does a Lock inside the lost hold: unlock all levels first, then lock again.
	ErrLost = lockerr.ErrLost

	// ErrReleased is the cause of a hold's context after its last Unlock.
	ErrReleased = lockerr.ErrReleased

	// ErrTimeout is returned by Lock and RLock, and by Do and RDo, when the time of WithWaitTimeout was
	// over before the lock was free.
	ErrTimeout = lockerr.ErrTimeout

	// ErrClosed is returned after Close by every call that needs an open client, and is the
	// cause of the contexts of the holds that Close ended.
	ErrClosed = lockerr.ErrClosed

	// ErrReentrant is returned by Lock and TryLock, and by RLock and TryRLock, of a handle
	// made WithoutReentrancy when the owner holds the lock, or that side of it, already.
	ErrReentrant = lockerr.ErrReentrant

	// ErrUpgrade is returned by Lock and TryLock of an RWMutex when the owner holds the read side: it
	// would wait for itself. RUnlock first, and then read again what was read.
	ErrUpgrade = lockerr.ErrUpgrade

	// ErrNotReplicated is returned by Lock and TryLock, and by RLock and TryRLock, WithReplicas
	// when too few replicas confirmed the lock in time: it was given back. It is also the error
	// of a renewal that too few confirmed, in Hooks.RenewFailed.
	ErrNotReplicated = lockerr.ErrNotReplicated

	// ErrInvalidName is returned for a name that cannot be this lock: it is empty; it begins as helper keys
	// do (relock_line:); its braces would put its helper keys into other Cluster slots; it is in use for
	// something else, which may be a lock of another kind; it is one of a MultiMutex on a Cluster, without
	// a {tag} in common; or it is a {tag} and nothing else, for a FairMutex or RWMutex, whose helper keys
	// would be those of the name without the braces.
	ErrInvalidName = lockerr.ErrInvalidName

	// ErrInvalidOption is returned for an option or argument out of its range, for options that
	// contradict each other, and for a nil argument.
	ErrInvalidOption = lockerr.ErrInvalidOption

	// ErrUnsupported is returned for what cannot be done with this Redis client, or on a quorum.
	ErrUnsupported = lockerr.ErrUnsupported
)

// QuorumError says that too few nodes of a quorum did what was asked, and what each of the others said.
// errors.Is and errors.As look into all of them.
type QuorumError struct {
	Nodes  int // nodes of the quorum
	Needed int // how many have to agree
	Agreed int // how many agreed

	// Errors are those of the nodes that did not agree, in the order of NewQuorum's argument. A
	// node that was not waited for has none.
	Errors []*NodeError
}

// NodeError is what one node of a quorum said.
type NodeError struct {
	Node string // its address, or "number 2 of 3" if the address is not known, as behind Sentinel
	Err  error
}

// quorumError returns a failure of a quorum as people get to see it.
func quorumError(f quorum.Failure) error {
	e := &QuorumError{Nodes: f.Nodes, Needed: f.Needed, Agreed: f.Agreed}
	for _, s := range f.Said {
		e.Errors = append(e.Errors, &NodeError{Node: s.Node, Err: s.Err})
	}
	return e
}

func (e *QuorumError) Error() string {
	said := make([]string, len(e.Errors))
	for i, node := range e.Errors {
		said[i] = node.Error()
	}
	return fmt.Sprintf("%d of %d nodes have to do it, but %d did: %s", e.Needed, e.Nodes, e.Agreed, strings.Join(said, "; "))
}

// Unwrap returns what the nodes said.
func (e *QuorumError) Unwrap() []error {
	errs := make([]error, len(e.Errors))
	for i, node := range e.Errors {
		errs[i] = node
	}
	return errs
}

func (e *NodeError) Error() string {
	said := strings.TrimPrefix(e.Err.Error(), "relock: ")
	return e.Node + ": " + strings.TrimPrefix(said, e.Node+": ") // it may say so itself
}

// Unwrap returns what the node said, without its address.
func (e *NodeError) Unwrap() error { return e.Err }
