package relock

import (
	"context"
	"sync"
)

// group counts goroutines that have to have ended before Close returns. Unlike a
// sync.WaitGroup it can be joined while somebody waits, and the wait has a bound.
type group struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n falls to 0; made when somebody waits for that
}

// Go runs f in a goroutine of the group.
func (g *group) Go(f func()) {
	g.add()
	go func() {
		defer g.done()
		f()
	}()
}

// run runs f, in a goroutine that does nothing else.
func (g *group) run(f func()) {
	g.add()
	defer g.done()
	f()
}

func (g *group) add() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
}

func (g *group) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// wait waits until the group is empty, or for ctx.
func (g *group) wait(ctx context.Context) {
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
