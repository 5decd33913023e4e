// Package goroutine has what Go does not give a library about goroutines: their number ([ID]), a panic as an error
// ([Recover]), and a bounded wait for their end ([Group]). Close needs the last, also for the work in its background, which gets
// a [Life]: no goroutine of the library may outlive Close without a reason, and none may keep it for long.
package goroutine

import (
	"context"
	"sync"

	"github.com/relock-go/relock/internal/clock"
)

// Life is the life of a client, as work in its background needs it.
type Life struct {
	Now     clock.Clock
	Go      func(func())    // runs in a goroutine that Close waits for
	Closing <-chan struct{} // closed when Close begins
	Ctx     context.Context // ends when Close does not wait any longer
}

// Group counts goroutines that have to end before Close returns. Two things are different from a sync.WaitGroup: a
// goroutine may join during a wait, and the wait has a bound. The zero Group is empty.
//
// A goroutine is counted from the call that starts it, not from its first instruction. Otherwise a Wait that
// comes between the two would not see it.
type Group struct {
	mu sync.Mutex
	n  int // goroutines that have not ended
	// idle is closed when n falls to 0. Wait makes it, for all that wait then; nil: there is no wait.
	idle chan struct{}
}

// Go runs f in a goroutine of the group. It does not block, and may be called during a Wait, which then waits
// for this one as well.
func (g *Group) Go(f func()) {
	g.join()
	go func() {
		defer g.leave()
		f()
	}()
}

// Run runs f in the calling goroutine, which belongs to the group meanwhile.
func (g *Group) Run(f func()) {
	g.join()
	defer g.leave()
	f()
}

// join counts a goroutine that is about to start.
func (g *Group) join() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
}

// leave records that a goroutine has ended.
func (g *Group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	// With the channel gone, a later Wait makes another one: the group may fill again.
	if g.n--; g.n == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// Len returns how many goroutines of the group a Wait would wait for now.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

// Wait waits until the group is empty, or for ctx. It does not report which: a caller that
// ran out of time can do no more. The group goes on as before, and may be waited for again.
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

// Closed reports whether c, on which nothing is sent, is closed. A nil c is not. It does not block.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
