// Package holdctx has the contexts that end with a hold.
package holdctx

import (
	"context"
	"sync"

	"github.com/relock-go/relock/internal/keys"
)

// Hold is what a context ends with.
type Hold interface {
	// Check loses the hold if its deadline has passed.
	Check()
}

// Context is the context of a hold: it ends with its parent, or with the hold.
type Context struct {
	context.Context
	above  *Context // of another hold, from which this one is derived; or nil
	hold   Hold
	target *keys.Set // what it is a context of; some of its keys may be in another hold
	cancel context.CancelCauseFunc
	at     int // its position in the hold's contexts, as long as it is there; guarded by them
}

// New returns a context of h, for the keys of t, that ends with ctx, or when it is ended.
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

// Set is the contexts of a hold that have not ended. They have a lock of their own: many
// that end together must not keep the watchdog from renewing the hold. It is taken under the hold's
// mu, never the other way round.
type Set struct {
	mu  sync.Mutex
	all []*Context
}

// Add adds a context. It is forgotten when it ends, which may be long before the hold does.
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

// Forget drops a context that has ended, if it is still there.
func (s *Set) Forget(x *Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.at >= len(s.all) || s.all[x.at] != x {
		return
	}
	last := len(s.all) - 1
	s.all[x.at] = s.all[last]
	s.all[x.at].at = x.at
	s.all[last] = nil
	s.all = s.all[:last]
}

// TakeAll forgets all of them, and returns them.
func (s *Set) TakeAll() []*Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.all
	s.all = nil
	return taken
}

// Take is TakeAll for those that which agrees to.
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

// Err loses the hold first if its deadline has passed: the watchdog may not have run yet,
// as after the machine was suspended.
func (x *Context) Err() error {
	if x.above != nil {
		_ = x.above.Err()
	}
	x.hold.Check()
	return x.Context.Err()
}

// nearest is the key by which a context tells of the nearest hold that it is derived from.
type nearest struct{}

func (x *Context) Value(key any) any {
	if key == (nearest{}) {
		return x
	}
	return x.Context.Value(key)
}

// End ends x.
func (x *Context) End(cause error) { x.cancel(cause) }

// EndUpTo ends x, and those of other holds that x is derived from, up to above.
func (x *Context) EndUpTo(above *Context, cause error) {
	for ; x != nil && x != above; x = x.above {
		x.cancel(cause)
	}
}
