package keys

import "sync/atomic"

// Nodes is a set of nodes of a quorum, by their positions. It only grows, and is safe for concurrent use. nil
// is the empty set.
type Nodes struct{ has []atomic.Bool }

// NewNodes returns the empty set of so many nodes, to which they can be added.
func NewNodes(n int) *Nodes { return &Nodes{make([]atomic.Bool, n)} }

// Add adds a node. The set must not be nil.
func (s *Nodes) Add(i int) { s.has[i].Store(true) }

// Contains reports whether node i is in s.
func (s *Nodes) Contains(i int) bool { return s != nil && s.has[i].Load() }

// Lacking returns t for commands about a name that no node of absent has. The set is shared, not copied: nodes
// that are added later count, too.
func (t *Set) Lacking(absent *Nodes) *Set {
	if absent == nil {
		return t
	}
	lacking := *t
	lacking.Absent = absent
	return &lacking
}
