package keys

import (
	"strings"
	"sync/atomic"

	"github.com/google/uuid"
)

// One name, one life: if the outcome of any command of an acquisition is unknown, its name is never used for another
// acquisition. So a delayed copy meets a name that nothing uses.

// Identity is a uuid for the names of acquisitions. Identities are compared by address, so one that was retired
// never comes back.
type Identity string

// Identities has the current identity of a client. If the outcome of a call is unknown, the identity is replaced for all
// later acquisitions before that call returns. Existing holds keep theirs.
type Identities struct {
	current atomic.Pointer[Identity]
}

// NewIdentities returns one whose current identity was never used.
func NewIdentities() *Identities {
	s := new(Identities)
	s.current.Store(fresh())
	return s
}

func fresh() *Identity {
	id := Identity(uuid.NewString())
	return &id
}

// Current returns the identity for new acquisitions.
func (s *Identities) Current() *Identity { return s.current.Load() }

// Retire ensures that no later acquisition uses id.
func (s *Identities) Retire(id *Identity) {
	// mutant: uuid-never-retired
	if s.current.Load() == id {
		s.current.CompareAndSwap(id, fresh())
	}
}

// RetireField retires the identity of field, if it is the current one.
func (s *Identities) RetireField(field string) {
	if id := s.Current(); id.Begins(field) {
		s.Retire(id)
	}
}

// Name is the name of a hold on Redis. While the outcome of any of its commands is unknown, it is the
// name of one acquisition only.
type Name struct {
	Identity *Identity // the client's, at the time of the request
	Field    string    // identity:owner; empty: there is no name
	Token    int64     // for fencing
	Absent   *Nodes    // on a quorum: the nodes without it

	// Late: a copy of the command that created the name was not answered, and may still be executed after the
	// end of its hold, or of its undo. The identity has been retired.
	Late bool
}

// Of returns the name of o under id, for the keys of t.
func (id *Identity) Of(t *Set, o Owner) Name {
	return Name{Identity: id, Field: t.Field(string(*id), o)}
}

// Begins reports whether field is a name under id.
func (id *Identity) Begins(field string) bool { return strings.HasPrefix(field, string(*id)+":") }
