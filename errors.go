package relock

import (
	"fmt"
	"strings"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/quorum"
)

// The sentinel errors. Methods return them wrapped, with the name of the lock and the circumstances:
// match with [errors.Is]. An error matches context.Canceled or context.DeadlineExceeded only if the
// caller's own context has ended.
var (
	// ErrNotHeld is returned by Unlock and RUnlock if the owner does not hold the lock, or acquired it
	// through a handle for other names, and by Release if the permit was released before. It is also the
	// cause of a context that was derived for an owner without a hold.
	ErrNotHeld = lockerr.ErrNotHeld

	// ErrLost reports that a lock was lost before it was unlocked: its lease ended because Redis did
	// not answer or the process was paused; its key was deleted, evicted, or forgotten by a failover;
	// or it was forced open. It is the cause of the hold's context. Every Unlock of the hold returns
	// it, and so does another Lock by the owner. Unlock as often as you locked, then lock again.
	ErrLost = lockerr.ErrLost

	// ErrReleased is the cause of a hold's context after the last Unlock.
	ErrReleased = lockerr.ErrReleased

	// ErrTimeout is returned by Lock, RLock and Acquire, and by Do and RDo, if the lock was not available
	// within the time of WithWaitTimeout.
	ErrTimeout = lockerr.ErrTimeout

	// ErrClosed is returned by every call that needs Redis after the client was closed, and by every Unlock of
	// a hold that Close has ended. It is also the cause of the contexts of such holds.
	ErrClosed = lockerr.ErrClosed

	// ErrReentrant is returned by Lock and TryLock, and by RLock and TryRLock, for a handle made
	// WithoutReentrancy if the owner already holds the lock, or that side of it.
	ErrReentrant = lockerr.ErrReentrant

	// ErrUpgrade is returned by Lock and TryLock of an RWMutex if the owner holds the read side,
	// because the owner would wait for itself. Call RUnlock first, and read the data again afterwards.
	ErrUpgrade = lockerr.ErrUpgrade

	// ErrDeadlock is returned by Lock or RLock if owners, the caller among them, wait for each other in a ring,
	// in this process or in several. Its text names the owners, and what each of them waits for. The caller
	// keeps its other holds: unlock them, so that the others go on, and start over. See [WithDeadlockCheck].
	ErrDeadlock = lockerr.ErrDeadlock

	// ErrNotReplicated is returned by Lock and TryLock, and by RLock and TryRLock, WithReplicas if too
	// few replicas confirmed the lock in time. The lock was released. In Hooks.RenewFailed it reports
	// that too few replicas confirmed a renewal.
	ErrNotReplicated = lockerr.ErrNotReplicated

	// ErrInvalidName is returned for a name that this kind of lock cannot have. The name
	//
	//   - is empty, or begins like a helper key of the library (relock_line:);
	//   - has braces that would put its helper keys into other slots of a Cluster;
	//   - is in use for something else on Redis, possibly for a lock of another kind;
	//   - belongs to a MultiMutex on a Cluster whose names have no common {tag}; or
	//   - is only a {tag}, for an RWMutex: its helper keys would be the same as those of the name without the
	//     braces.
	ErrInvalidName = lockerr.ErrInvalidName

	// ErrInvalidOption is returned for an option or argument that is out of range, for options that
	// contradict each other, and for a nil argument. It is also returned by Lock and
	// TryLock if two nodes of a quorum are the same server.
	ErrInvalidOption = lockerr.ErrInvalidOption

	// ErrUnsupported is returned for an option or kind of lock that this Redis client, or a quorum,
	// does not support, and by Close in a hook of the same client.
	ErrUnsupported = lockerr.ErrUnsupported
)

// QuorumError reports that too few nodes of a quorum succeeded. It contains the errors of the other
// nodes, which errors.Is and errors.As find.
type QuorumError struct {
	Nodes  int // nodes of the quorum
	Needed int // how many have to succeed
	Agreed int // how many succeeded

	// Errors are the errors of the other nodes, in the order of NewQuorum's argument. For a node that
	// the call did not wait for, the text is "no answer from Redis yet".
	Errors []*NodeError
}

// NodeError is the error of one node of a quorum.
type NodeError struct {
	Node string // its address, or "node 2 of 3" if the address is not known, as behind Sentinel
	Err  error
}

// quorumError returns a failure of a quorum as people get to see it.
func quorumError(f quorum.Failure) error {
	e := &QuorumError{Nodes: f.Nodes, Needed: f.Needed, Agreed: f.Agreed}
	for _, s := range f.Errors {
		e.Errors = append(e.Errors, &NodeError{Node: s.Node, Err: s.Err})
	}
	return e
}

// Error returns how many nodes succeeded, how many were required, and the errors of the others.
func (e *QuorumError) Error() string {
	text := make([]string, len(e.Errors))
	for i, node := range e.Errors {
		text[i] = node.Error()
	}
	return fmt.Sprintf("quorum not reached: %d of %d nodes succeeded, %d required: %s", e.Agreed, e.Nodes, e.Needed, strings.Join(text, "; "))
}

// Unwrap returns the errors of the nodes.
func (e *QuorumError) Unwrap() []error {
	errs := make([]error, len(e.Errors))
	for i, node := range e.Errors {
		errs[i] = node
	}
	return errs
}

// Error returns the address of the node, and its error.
func (e *NodeError) Error() string {
	text := strings.TrimPrefix(e.Err.Error(), "relock: ")
	return e.Node + ": " + strings.TrimPrefix(text, e.Node+": ") // the error may begin with the node already
}

// Unwrap returns the error of the node, without its address.
func (e *NodeError) Unwrap() error { return e.Err }
