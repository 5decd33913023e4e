// Package group counts goroutines, and waits for them for a bounded time. Close is what needs that: no
// goroutine of the library may outlive it without a reason, and no goroutine may keep it for long.
package group

import (
	"context"
	"sync"

	"github.com/relock-go/relock/internal/goid"
)

// Group counts goroutines that have to end before Close returns. Three things are different from a
// sync.WaitGroup: a goroutine may join during a wait, the wait has a bound, and a goroutine of the group may be
// the one that waits. The zero Group is empty.
//
// A goroutine is counted from the call that starts it, not from its first instruction. Otherwise a Wait that
// comes between the two would not see it. It is counted until it ends, or is excused, whichever is first.
type Group struct {
	mu sync.Mutex
	n  int // goroutines that have not ended, without the excused
	// running are those of n that have started, by number. One that has just been added is not there yet, and
	// cannot be excused: it has not called anything.
	running map[int64]struct{}
	// idle is closed when n falls to 0. Wait makes it, for all that wait then; nil: there is no wait.
	idle chan struct{}
}

// Go runs f in a goroutine of the group. It does not block, and may be called during a Wait, which then waits
// for this one as well.
func (g *Group) Go(f func()) {
	g.add()
	go g.work(f)
}

// Run runs f in the calling goroutine, which belongs to the group meanwhile. It must not belong to the group
// already: it would be counted twice, and leave once.
func (g *Group) Run(f func()) {
	g.add()
	g.work(f)
}

// add counts a goroutine that is about to start. Its number is not known yet: work adds that.
func (g *Group) add() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
}

// work runs f on a goroutine that has been added. It leaves the group also if f panics, or ends the goroutine.
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

// Excuse has the goroutine with that number, if it is one of the group, not waited for any more: it has
// ended, or it waits for the group itself. Without that a hook that calls Close would wait for its own end. A
// second Excuse of the same goroutine does nothing.
func (g *Group) Excuse(id int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, running := g.running[id]; !running {
		return
	}
	delete(g.running, id)
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

// Wait waits until the group is empty, or for ctx. Which of the two it was, it does not say: a caller that
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
