// Package group counts goroutines, and waits for them for a bounded time.
package group

import (
	"context"
	"sync"

	"github.com/relock-go/relock/internal/goid"
)

// Group counts goroutines that have to have ended before Close returns. Unlike a
// sync.WaitGroup it can be joined during a wait, the wait has a bound, and a goroutine of the
// group may be the one that waits.
type Group struct {
	mu      sync.Mutex
	n       int                // goroutines that have not ended, less the excused
	running map[int64]struct{} // those of n that have started, by number
	idle    chan struct{}      // closed when n falls to 0; made when that is waited for
}

// Go runs f in a goroutine of the group.
func (g *Group) Go(f func()) {
	g.add()
	go g.work(f)
}

// Run runs f, in a goroutine that does nothing else.
func (g *Group) Run(f func()) {
	g.add()
	g.work(f)
}

func (g *Group) add() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
}

// work runs f on a goroutine that has been added.
func (g *Group) work(f func()) {
	id := goid.Get()
	g.mu.Lock()
	if g.running == nil {
		g.running = make(map[int64]struct{})
	}
	g.running[id] = struct{}{}
	g.mu.Unlock()
	defer g.Excuse(id)
	f()
}

// Excuse has the goroutine with that number, if it is one of the group, not waited for any more: it
// has ended, or waits for the group itself.
func (g *Group) Excuse(id int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, running := g.running[id]; !running {
		return
	}
	delete(g.running, id)
	if g.n--; g.n == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// Len returns how many goroutines of the group are waited for.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

// Wait waits until the group is empty, or for ctx.
func (g *Group) Wait(ctx context.Context) {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// Closed reports whether c is closed. A nil c is not.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
