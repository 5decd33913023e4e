package play

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/locker"
)

// worker is a goroutine of a process that uses locks, one after the other.
type worker struct {
	*process
	id int
	drawer
}

// helper is what the number of a worker's helping goroutine is higher by.
const helper = 1000

func newWorker(c *process, id int) *worker {
	return &worker{process: c, id: id, drawer: drawer{rand.New(rand.NewPCG(c.plan.Seed, uint64(c.number)<<16|uint64(id)+1))}}
}

func (w *worker) run() {
	w.rest(w.life, w.between(0, 200*time.Millisecond))
	for !w.over() {
		switch p := w.Float64(); {
		case p < w.plan.Misuse:
			w.misuse()
		case p < w.plan.Misuse+w.plan.Shared:
			w.together()
		case p < w.plan.Misuse+w.plan.Shared+w.plan.Sides:
			w.readOrWrite()
		default:
			w.alone()
		}
		w.breathe()
	}
}

// over reports whether no new use is to begin.
func (w *worker) over() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
}

// rest waits, unless ctx ends or the play does, and until the process runs.
func (w *worker) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-w.stopping:
	}
	w.gate()
}

// breathe is the pause between two uses: with one that is brief another may follow at once.
func (w *worker) breathe() {
	if w.plan.Busy && w.chance(0.4) || w.plan.Crowd && w.rush() {
		w.rest(w.life, w.between(0, 10*time.Millisecond))
		return
	}
	w.rest(w.life, w.between(0, w.plan.Think))
}

// rush reports whether it is a time at which all of a crowd want the lock again at once: a second of each
// six, the same one for all processes or not.
func (w *worker) rush() bool {
	return (time.Since(w.journal.began)+time.Duration(w.place)*w.plan.Apart)%(6*time.Second) < time.Second
}

// length is how long a hold is to last.
func (w *worker) length() time.Duration {
	switch {
	case w.chance(w.plan.Long):
		return w.between(w.plan.TTL/2, 3*w.plan.TTL)
	case w.plan.Crowd && w.chance(0.15):
		return w.between(20*time.Millisecond, w.plan.TTL/3)
	case w.plan.Busy:
		return w.between(0, 20*time.Millisecond)
	default:
		return w.between(0, 300*time.Millisecond)
	}
}

func (w *worker) names() []string {
	if w.chance(w.plan.Multi) {
		return w.plan.Names[:2]
	}
	i := w.IntN(len(w.plan.Names))
	if w.plan.Hot && w.chance(0.9) {
		i = w.plan.hot()
	}
	return w.plan.Names[i : i+1]
}

// alone is a use by the worker itself.
func (w *worker) alone() {
	least, opts := time.Duration(0), []relock.MutexOption(nil)
	if w.chance(w.plan.MinHold) {
		least = w.between(50*time.Millisecond, w.plan.TTL/2)
		opts = append(opts, relock.WithMinHold(least))
	}
	u := w.use(w.names(), w.self(), opts...)
	if u.least = least; u.lock() == history.OK {
		u.spend(w.length())
		u.unlockAll()
	}
}

// self is the owner that a goroutine is by itself.
func (w *worker) self() string { return fmt.Sprintf("p%d.w%d", w.number, w.id) }

// together is a use that the worker shares with a goroutine that helps it: they lock at
// the same time as one owner, and each unlocks what the other has locked.
func (w *worker) together() {
	i := w.IntN(len(w.plan.Names))
	u := w.use(w.plan.Names[i:i+1], fmt.Sprintf("p%d.w%d.shared", w.number, w.id), relock.WithOwner(fmt.Sprintf("w%d-shared", w.id)))
	u.shared = true
	other := *u
	other.worker = &worker{process: w.process, id: w.id + helper, drawer: drawer{rand.New(rand.NewPCG(w.Uint64(), 0))}}
	var both sync.WaitGroup
	both.Go(func() {
		if other.lock() == history.OK {
			other.spend(other.length())
		}
	})
	if u.lock() == history.OK {
		u.spend(w.length())
	}
	both.Wait()
	both.Go(u.unlockAll)
	other.unlockAll()
	both.Wait()
}

// readOrWrite is a use of a read-write lock: to read, or to write, or to write and then to
// go on reading.
func (w *worker) readOrWrite() {
	name, owner := pick(w.drawer, w.plan.Sided...), fmt.Sprintf("p%d.w%d.sides", w.number, w.id)
	write, read := w.prepare([]string{name}, owner), w.prepare([]string{name}, owner)
	write.m = locker.WriteSide{RWMutex: w.locks.RWMutex(name, write.options(relock.WithOwner(owner))...)}
	read.m = locker.ReadSide{RWMutex: w.locks.RWMutex(name, read.options(relock.WithOwner(owner))...), Owner: owner}
	read.read = true
	if w.chance(w.plan.Reads) {
		if read.lock() == history.OK {
			read.spend(w.length())
			if w.chance(0.1) {
				read.upgrade(write)
			}
			read.unlockAll()
		}
		return
	}
	if write.lock() != history.OK {
		return
	}
	write.spend(w.length())
	if w.chance(0.4) && read.inside(write) {
		write.unlockAll()
		read.spend(w.length())
		read.unlockAll()
		return
	}
	write.unlockAll()
}

// inside locks the read side inside a write hold, which never has to wait.
func (u *use) inside(write *use) bool {
	u.eager = u.chance(0.7)
	outcome := u.lock()
	u.eager = false
	if outcome == history.Taken && !u.lossy && write.ask() {
		u.tell(history.Event{Kind: history.Misused, Outcome: history.Failed, Err: "false", Note: "TryRLock inside a write hold"})
	}
	return outcome == history.OK
}

// upgrade locks the write side inside a read hold, which has to be refused.
func (u *use) upgrade(write *use) {
	if !u.ask() {
		return
	}
	ctx, cancel := context.WithTimeout(u.life, u.plan.TTL)
	defer cancel()
	err := write.m.Lock(ctx)
	u.gate()
	if u.ask() && ctx.Err() == nil {
		u.expect(err, relock.ErrUpgrade, "Lock inside a read hold")
	}
}
