package scenario

import (
	"time"

	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/chaos/player"
)

// usual is the workload of most scenarios: some of everything.
func usual() worker.Workload {
	return worker.Workload{
		Habits:    player.Habits{TTL: time.Second, Long: 0.03, Fixed: 0.05, Fair: 0.4, Shared: 0.1, Impatient: 0.25, Sides: 0.3, Reads: 0.7, Permits: 0.15, Heavy: 0.25},
		Processes: 3, Workers: 6, Names: 3, Limit: 4,
		Poll: 250 * time.Millisecond, Joint: 0.1, Lasting: [2]float64{0.5, 2}, Impatience: 200 * time.Millisecond,
	}
}

// plain is a workload without fair locks, read-write locks and semaphores.
func plain() worker.Workload {
	return usual().With(func(w *worker.Workload) { w.Fair, w.Sides, w.Permits = 0, 0, 0 })
}

// permitted is a workload of semaphores only.
func permitted() worker.Workload {
	return plain().With(func(w *worker.Workload) { w.Permits, w.Names, w.Shared, w.Joint, w.Long = 1, 0, 0, 0, 0.03 })
}

// untokened is a workload without tokens, of many owners of one process for the same locks: the process hands over locally.
func untokened() worker.Workload {
	return plain().With(func(w *worker.Workload) {
		w.Untokened = true
		w.Processes, w.Workers, w.Names, w.Joint, w.Fixed, w.Long = 2, 8, 2, 0, 0, 0.01
	})
}

// queueing is a workload of many processes with one waiter each for the same lock. Waiters of a Mutex and of a FairMutex are
// in one line.
func queueing() worker.Workload {
	return plain().With(func(w *worker.Workload) {
		w.Processes, w.Workers, w.Names, w.Fair = 8, 1, 1, 0.4
		w.Joint, w.Shared, w.Fixed, w.Impatient, w.Poll = 0, 0, 0, 0.15, 500*time.Millisecond
	})
}

// Leases of another length: short ones if a fault has to outlast them, and long ones if it must not, on a busy machine. Then
// the entry of a fair waiter has to last, too, for two polls.
var (
	shortLeases = usual().With(func(w *worker.Workload) { w.TTL = 600 * time.Millisecond })
	longLeases  = usual().With(func(w *worker.Workload) {
		w.TTL, w.Poll, w.Long, w.Fixed = 1500*time.Millisecond, 750*time.Millisecond, 0.04, 0
	})
)

// patient is a workload whose waiters depend on wake-ups.
var patient = plain().With(func(w *worker.Workload) {
	w.TTL, w.Poll = 2*time.Second, 2*time.Second
	w.Names, w.Long, w.Fixed, w.Joint = 2, 0, 0, 0
})

// nesting is a workload of owners that lock a second name while they hold one.
var nesting = plain().With(func(w *worker.Workload) {
	w.TTL, w.Poll, w.DeadlockCheck = 2*time.Second, 2*time.Second, 300*time.Millisecond
	w.Names, w.Nested, w.Joint, w.Shared, w.Fixed = 4, 0.6, 0, 0, 0
})

// voting is the workload on a quorum, which has no fair locks.
var voting = plain().With(func(w *worker.Workload) { w.Joint, w.Poll = 0.05, 500*time.Millisecond })

// withLongLeases sets leases that a busy machine does not lose.
func withLongLeases(w *worker.Workload) { w.TTL, w.Long, w.Fixed = 1500*time.Millisecond, 0.04, 0 }

// enduring is a workload of two processes for one lock, with holds so long that on a dead network a lease certainly ends.
func enduring(w *worker.Workload) {
	w.Processes, w.Workers, w.Names = 2, 2, 1
	w.Long, w.Fixed, w.Lasting = 1, 0, [2]float64{2, 4}
}

// sided is a workload of read-write locks only.
func sided(w *worker.Workload) {
	w.Sides, w.Reads, w.Shared, w.Workers, w.Kept = 1, 0.7, 0, 8, true
}

// shardedPubSub uses sharded pub/sub for wake-ups.
func shardedPubSub(w *worker.Workload) { w.Sharded = true }
