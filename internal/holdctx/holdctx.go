// Package holdctx has the contexts that end with a hold.
//
// A context may be derived from that of another hold: a goroutine that holds one lock takes a second one with
// the context of the first. So contexts of holds form a chain (above). The end of one ends those below, as
// with all contexts. But only the hold of each knows whether its lease is over.
package holdctx

import (
	"context"
	"sync"

	"github.com/relock-go/relock/internal/keys"
)

// Hold is what a context ends with.
type Hold interface {
	// Check loses the hold if its deadline has passed. It may call the hook Lost, and end contexts.
	Check()
}

// Context is the context of a hold: it ends with its parent, or with the hold. Its fields do not change after
// New, except at.
type Context struct {
	context.Context
	above  *Context // of another hold, from which this one is derived; or nil
	hold   Hold
	target *keys.Set // what it is a context of; some of its keys may be in another hold
	cancel context.CancelCauseFunc
	at     int // its position in the Set, while it is there; guarded by the mutex of the Set
}

// New returns a context of h, for the keys of t. It ends with ctx, or by End. It is not in the Set of h yet.
func New(ctx context.Context, h Hold, t *keys.Set) *Context {
	x := &Context{above: Nearest(ctx), hold: h, target: t}
	x.Context, x.cancel = context.WithCancelCause(ctx)
	return x
}

// Nearest returns the nearest context of a hold that ctx is, or is derived from; nil: there is none.
func Nearest(ctx context.Context) *Context {
	x, _ := ctx.Value(nearest{}).(*Context)
	return x
}

// Above is the nearest one that x is derived from; nil: there is none.
func (x *Context) Above() *Context { return x.above }

// Target is what x is a context of.
func (x *Context) Target() *keys.Set { return x.target }

// Set is the contexts of a hold that have not ended. It has a mutex of its own: many contexts that end together
// must not keep the watchdog from renewing the hold. That mutex is taken under the hold's mu, never the other
// way round. The zero Set is empty.
type Set struct {
	mu  sync.Mutex
	all []*Context // in no order: each knows its position, so it can leave at once
}

// Add adds a context. It is forgotten when it ends, which may be long before the hold does: else a hold that
// lasts for days would keep each context that it ever had. If x has ended already, it is forgotten soon.
func (s *Set) Add(x *Context) {
	s.mu.Lock()
	x.at = len(s.all)
	s.all = append(s.all, x)
	s.mu.Unlock()
	context.AfterFunc(x.Context, func() { s.Forget(x) })
}

// Len is how many there are.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// Forget drops a context that has ended, if it is still there. It may come late, in a goroutine of its own,
// after the hold has taken it out by itself.
func (s *Set) Forget(x *Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.at >= len(s.all) || s.all[x.at] != x {
		return
	}
	// The last one takes its place.
	last := len(s.all) - 1
	s.all[x.at] = s.all[last]
	s.all[x.at].at = x.at
	s.all[last] = nil
	s.all = s.all[:last]
}

// TakeAll forgets all of them, and returns them for the caller to end.
func (s *Set) TakeAll() []*Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.all
	s.all = nil
	return taken
}

// Take is TakeAll for the contexts that which selects. It calls which with the mutex held.
func (s *Set) Take(which func(*Context) bool) []*Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	var taken []*Context
	kept := s.all[:0]
	for _, x := range s.all {
		if which(x) {
			taken = append(taken, x)
			continue
		}
		x.at = len(kept)
		kept = append(kept, x)
	}
	clear(s.all[len(kept):])
	s.all = kept
	return taken
}

// Err loses the hold first if its deadline has passed. The watchdog may not have run yet, as after the
// machine was suspended. Without that a program that asks Err before it writes would go on as a holder. The
// same goes for the holds above: a loss of theirs ends x, too.
func (x *Context) Err() error {
	if x.above != nil {
		_ = x.above.Err()
	}
	x.hold.Check()
	return x.Context.Err()
}

// nearest is the key by which a context tells of the nearest hold that it is derived from.
type nearest struct{}

// Value returns x itself for the key nearest. So Nearest finds x from any context that is derived from it.
func (x *Context) Value(key any) any {
	if key == (nearest{}) {
		return x
	}
	return x.Context.Value(key)
}

// End ends x, and all contexts that are derived from it. The first cause counts.
func (x *Context) End(cause error) { x.cancel(cause) }

// EndUpTo ends x, and the contexts of other holds that x is derived from, up to above. It does not end above.
// x may be nil: then there is nothing to end.
func (x *Context) EndUpTo(above *Context, cause error) {
	for ; x != nil && x != above; x = x.above {
		x.cancel(cause)
	}
}
