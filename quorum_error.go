package relock

import (
	"fmt"
	"strings"

	"github.com/relock-go/relock/internal/quorum"
)

// QuorumError says that too few nodes of a quorum could do what was asked, and what each of
// those said that did not. errors.Is and errors.As look into all of them.
type QuorumError struct {
	Nodes  int // of the quorum
	Needed int // of them, to agree
	Agreed int

	// Errors are those of the nodes, in the order in which NewQuorum was given them. A node
	// that need not be waited for has none.
	Errors []*NodeError
}

// NodeError is what one node of a quorum said.
type NodeError struct {
	Node string // its address; or its number, "number 2 of 3", where that does not tell, as behind Sentinel
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
	return fmt.Sprintf("%d of %d nodes are needed, %d did it; %s", e.Needed, e.Nodes, e.Agreed, strings.Join(said, "; "))
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
