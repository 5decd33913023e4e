// Package identity has the names that a client is known by on Redis.
//
// One name, one life: what was acquired by a name is never acquired by it again once anything about it was
// in doubt. So a command that comes late meets a name that nothing uses.
package identity

import (
	"strings"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/relock-go/relock/internal/keys"
)

// Identity is a uuid that names are acquired under. It is told apart by its address: two are the
// same only if they are one, so one that was retired is never met again.
type Identity string

// Source has the current identity of a client. One that is in doubt is replaced, for all that
// acquire next, before the call that doubts it returns; holds keep the one they have.
type Source struct {
	current atomic.Pointer[Identity]
}

// NewSource returns a source with an identity that was never used.
func NewSource() *Source {
	s := new(Source)
	s.current.Store(fresh())
	return s
}

func fresh() *Identity {
	id := Identity(uuid.NewString())
	return &id
}

// Current returns the identity that is acquired under now.
func (s *Source) Current() *Identity { return s.current.Load() }

// Retire makes sure that nothing is acquired under id any more.
func (s *Source) Retire(id *Identity) {
	// mutant: uuid-never-retired
	if s.current.Load() == id {
		s.current.CompareAndSwap(id, fresh())
	}
}

// RetireField is Retire of the identity that field begins with, if that is the current one.
func (s *Source) RetireField(field string) {
	if id := s.Current(); id.Begins(field) {
		s.Retire(id)
	}
}

// Name is what a hold is known by on Redis, while anything about it is in doubt: it is the
// name of one acquisition, and of nothing else.
type Name struct {
	Identity *Identity   // the client's, when it was asked for
	Field    string      // identity:owner; empty: there is no name
	Token    int64       // for fencing
	Absent   *keys.Nodes // on a quorum: the nodes that do not have it

	// Late says that a copy of the command that made it was not answered, and may be executed yet: after the
	// end of its hold, or of its undo. The identity has been retired.
	Late bool
}

// Of returns the name by which o, under id, is to have the keys of t.
func (id *Identity) Of(t *keys.Set, o keys.Owner) Name {
	return Name{Identity: id, Field: t.Field(string(*id), o)}
}

// Begins reports whether field is of a name under id.
func (id *Identity) Begins(field string) bool { return strings.HasPrefix(field, string(*id)+":") }
