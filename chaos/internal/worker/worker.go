// Package worker is the client process: a program that uses locks as hard as it can, with many
// goroutines, its workers, and tells on its standard output what it does and sees, one event
// a line.
//
// It knows nothing of faults, of other processes or of what is right: it takes its Redis, its
// locks and its ways from a [Config], goes on until its input ends, and judges nothing. The
// files:
//
//   - protocol.go: what the process is told, line by line
//   - process.go: the process, from its configuration to what is left of it
//   - dialer.go: its connections, all of which have to be closed at the end
//   - worker.go: a goroutine that makes one use of locks after the other
//   - use.go: one use: Lock, levels, Unlock, and the events of each
//   - under_lock.go: what is done while a lock is held
//   - sides.go: uses of read-write locks
//   - misuse.go: uses that break a rule on purpose
package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/internal/random"
)

// worker is a goroutine that uses locks, one after the other.
type worker struct {
	*client
	id int
	r  *rand.Rand
}

// helper is what the number of a worker's helping goroutine is higher by.
const helper = 1_000_000

func newWorker(c *client, id int) *worker {
	return &worker{client: c, id: id, r: random.New(c.Seed, uint64(c.Process), uint64(id))}
}

// run uses locks until the process stops.
func (w *worker) run() {
	for {
		select {
		case <-w.stopping:
			return
		default:
		}
		switch p := w.r.Float64(); {
		case p < w.Work.Misuse:
			w.misuse()
		case p < w.Work.Misuse+w.Work.Shared:
			w.together()
		case p < w.Work.Misuse+w.Work.Shared+w.Work.Sides:
			w.readOrWrite()
		default:
			w.alone()
		}
	}
}

// chance is true with the given probability.
func (w *worker) chance(p float64) bool { return w.r.Float64() < p }

// between returns a random duration.
func (w *worker) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.r.Int64N(int64(most-least)+1))
}

// names chooses the locks of one use.
func (w *worker) names() []string {
	i := w.r.IntN(len(w.Locks))
	joint := len(w.Locks) > 1 && w.chance(w.Work.Joint)
	if w.Work.Torn {
		i, joint = 0, w.Process == 2
		if w.Process == 1 {
			i = 1
		}
	}
	if joint {
		// The first two have a common tag.
		return w.Locks[:2]
	}
	return w.Locks[i : i+1]
}

// length is how long a hold is to last.
func (w *worker) length() time.Duration {
	if w.chance(w.Work.Long) || w.Work.Torn && w.Process == 1 {
		ttl, lasting := float64(w.Work.TTL), w.Work.Lasting
		return w.between(time.Duration(lasting[0]*ttl), time.Duration(lasting[1]*ttl))
	}
	return w.between(0, 20*time.Millisecond)
}

// alone is a use by the worker itself.
func (w *worker) alone() {
	least, opts := time.Duration(0), []relock.MutexOption(nil)
	switch {
	case w.Work.Moments:
		least = time.Millisecond
	case w.Work.Brief > 0 && w.chance(w.Work.Brief):
		least = w.between(50*time.Millisecond, w.Work.TTL/2)
	}
	if least > 0 {
		opts = append(opts, relock.WithMinHold(least))
	}
	u := w.use(w.names(), fmt.Sprintf("p%d.w%d", w.Process, w.id), opts...)
	u.least = least
	if u.lock() != history.OK {
		w.breathe()
		return
	}
	if w.Work.Moments {
		u.unlockAll()
		return
	}
	u.spend(w.length())
	u.unlockAll()
	w.breathe()
}

// together is a use that the worker shares with a goroutine that helps it: they lock at
// the same time as one owner, and each unlocks what the other has locked.
func (w *worker) together() {
	u := w.use(w.names()[:1], fmt.Sprintf("p%d.w%d.shared", w.Process, w.id), relock.WithOwner(fmt.Sprintf("w%d-shared", w.id)))
	u.shared = true
	other := *u
	other.worker = &worker{client: w.client, id: w.id + helper, r: rand.New(rand.NewPCG(w.r.Uint64(), 0))}
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
	w.breathe()
}

// breathe is the pause between two uses.
func (w *worker) breathe() {
	w.rest(w.client.life, w.between(0, 10*time.Millisecond))
}

// rest waits, unless ctx ends or the process stops.
func (w *worker) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-w.stopping:
	}
}
