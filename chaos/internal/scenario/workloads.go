package scenario

import (
	"time"

	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/chaos/player"
)

// usual is the workload of most scenarios: some of everything.
func usual() worker.Workload {
	return worker.Workload{
		Habits:    player.Habits{TTL: time.Second, Long: 0.03, Fixed: 0.05, Fair: 0.4, Shared: 0.1, Impatient: 0.25, Sides: 0.3, Reads: 0.7},
		Processes: 3, Workers: 6, Names: 3,
		Poll: 250 * time.Millisecond, Joint: 0.1, Lasting: [2]float64{0.5, 2},
	}
}

// plain is a workload without fair locks and read-write locks.
func plain() worker.Workload {
	return usual().With(func(w *worker.Workload) { w.Fair, w.Sides = 0, 0 })
}

// untokened is a workload of crowds of one process that want the same locks, and no tokens: each lets the
// next in before Redis knows.
func untokened() worker.Workload {
	return plain().With(func(w *worker.Workload) {
		w.Untokened = true
		w.Processes, w.Workers, w.Names, w.Joint, w.Fixed, w.Long = 2, 8, 2, 0, 0, 0.01
	})
}

// queueing is a workload of many processes with one waiter each, which want the same lock: those of a
// Mutex and of a FairMutex stand in one line.
func queueing() worker.Workload {
	return plain().With(func(w *worker.Workload) {
		w.Processes, w.Workers, w.Names, w.Fair = 8, 1, 1, 0.4
		w.Joint, w.Shared, w.Fixed, w.Impatient, w.Poll = 0, 0, 0, 0.15, 500*time.Millisecond
	})
}

// Leases of another length: short ones where a fault has to outlast them, long ones where
// it must not, on a machine that is busy. There the place of a fair waiter has to last, too:
// for two polls.
var (
	shortLeases = usual().With(func(w *worker.Workload) { w.TTL = 600 * time.Millisecond })
	longLeases  = usual().With(func(w *worker.Workload) {
		w.TTL, w.Poll, w.Long, w.Fixed = 1500*time.Millisecond, 750*time.Millisecond, 0.04, 0
	})
)

// patient is a workload whose waiters depend on being woken.
var patient = plain().With(func(w *worker.Workload) {
	w.TTL, w.Poll = 2*time.Second, 2*time.Second
	w.Names, w.Long, w.Fixed, w.Joint = 2, 0, 0, 0
})

// voting is the workload on a quorum, which has no fair locks.
var voting = plain().With(func(w *worker.Workload) { w.Joint, w.Poll = 0.05, 500*time.Millisecond })

// withLongLeases gives leases that a busy machine keeps.
func withLongLeases(w *worker.Workload) { w.TTL, w.Long, w.Fixed = 1500*time.Millisecond, 0.04, 0 }

// enduring has two processes wait for one lock, and hold it for so long that a lease of theirs is
// sure to run out on a network that is dead.
func enduring(w *worker.Workload) {
	w.Processes, w.Workers, w.Names = 2, 2, 1
	w.Long, w.Fixed, w.Lasting = 1, 0, [2]float64{2, 4}
}

// sided has all workers use read-write locks, and nothing else.
func sided(w *worker.Workload) {
	w.Sides, w.Reads, w.Shared, w.Workers, w.Kept = 1, 0.7, 0, 8, true
}

// shardedPubSub has wake-ups come by sharded pub/sub.
func shardedPubSub(w *worker.Workload) { w.Sharded = true }
