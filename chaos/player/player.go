// Package player is a goroutine that uses locks, one after the other, and records its calls and observations. The client
// processes of chaos have such goroutines on real servers, and those of sim in virtual time.
//
// It is independent of faults and of other processes, and judges nothing. The files:
//
//   - player.go: a player, which makes one use of locks after the other
//   - process.go: the state that players share, and the choices of their process
//   - use.go: one use: Lock, levels, Unlock, and the events of each
//   - under_lock.go: actions while a lock is held
//   - sides.go: uses of read-write locks
//   - permits.go: uses of semaphores
//   - misuse.go: uses that break a rule on purpose
//   - locker.go: the common interface of all locks, and the outcomes of calls
//   - draw.go: random choices
package player

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
)

// player is a goroutine of a process that uses locks, one after the other.
type player struct {
	*Process
	Habits
	id int
	Drawer
}

// Helper is the difference between the number of a player's helper and its own.
const Helper = 1000

// Play uses locks until the process stops, as the goroutine id of the process, with random choices from r.
func (c *Process) Play(id int, habits Habits, r *rand.Rand) {
	p := &player{Process: c, Habits: habits, id: id, Drawer: Drawer{r}}
	p.rest(p.Life, p.Between(0, c.Apart))
	for !p.over() {
		switch x := p.Float64(); {
		case x < p.Misuse:
			p.misuse()
		case x < p.Misuse+p.Shared:
			p.together()
		case x < p.Misuse+p.Shared+p.Sides:
			p.readOrWrite()
		case x < p.Misuse+p.Shared+p.Sides+p.Permits:
			p.usePermit()
		default:
			p.alone()
		}
		p.rest(p.Life, p.Pause(p.Drawer))
	}
}

// over reports whether no new use may begin.
func (p *player) over() bool {
	select {
	case <-p.Stopping:
		return true
	default:
		return false
	}
}

// rest waits until the end of ctx or of new uses, and until the process runs.
func (p *player) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-p.Stopping:
	}
	p.Gate()
}

// self is the owner of a goroutine without a fixed owner.
func (p *player) self() string { return fmt.Sprintf("p%d.w%d", p.Number, p.id) }

// alone is a use by the player itself.
func (p *player) alone() {
	least, opts := time.Duration(0), []relock.MutexOption(nil)
	if p.Moments {
		least = time.Millisecond
	} else if p.Chance(p.MinHold) {
		least = p.Between(50*time.Millisecond, p.TTL/2)
	}
	if least > 0 {
		opts = append(opts, relock.WithMinHold(least))
	}
	if p.Chance(p.Async) {
		opts = append(opts, relock.WithAsyncUnlock())
	}
	if p.Chance(p.Linger) {
		opts = append(opts, relock.WithLinger(p.Between(time.Millisecond, p.TTL/18))) // the TTL of a use is at least a sixth of this one
	}
	u := p.use(p.Choose(p.Drawer), p.self(), opts...)
	u.least = least
	if u.lock() != history.OK {
		return
	}
	if !p.Moments {
		u.spend(p.Length(p.Drawer))
	}
	if p.Nested > 0 && p.Chance(p.Nested) && !p.nested(u.locks) {
		u.spend(p.Length(p.Drawer)) // it works on without the other lock
	}
	u.unlockAll()
}

// nested is a use of one more lock by an owner that holds others. It reports whether the owner got that lock, or wanted none.
func (p *player) nested(held []string) bool {
	var names []string
	for _, name := range p.Names {
		if p.Opposed && !slices.Contains(held, name) || name > slices.Max(held) {
			names = append(names, name)
		}
	}
	if names == nil {
		return true
	}
	u := p.use([]string{Pick(p.Drawer, names...)}, p.self())
	if u.lock() != history.OK {
		return false
	}
	u.spend(p.Between(0, p.TTL/20))
	u.unlockAll()
	return true
}

// together is a use that the player shares with a goroutine that helps it: they lock at
// the same time as one owner, and each unlocks what the other has locked.
func (p *player) together() {
	i := p.IntN(len(p.Names))
	u := p.use(p.Names[i:i+1], p.self()+".shared", relock.WithOwner(fmt.Sprintf("w%d-shared", p.id)))
	u.shared = true
	other := *u
	other.player = &player{Process: p.Process, Habits: p.Habits, id: p.id + Helper, Drawer: Drawer{rand.New(rand.NewPCG(p.Uint64(), 0))}}
	var both sync.WaitGroup
	both.Go(func() {
		if other.lock() == history.OK {
			other.spend(other.Length(other.Drawer))
		}
	})
	if u.lock() == history.OK {
		u.spend(p.Length(p.Drawer))
	}
	both.Wait()
	both.Go(u.unlockAll)
	other.unlockAll()
	both.Wait()
}
