// Package relock provides reentrant distributed locks on Redis, with go-redis v9.
//
//	locks, err := relock.New(rdb) // rdb: any redis.UniversalClient but a *redis.Ring
//	if err != nil {
//		return err
//	}
//	defer locks.Close()
//
//	err = locks.Mutex("orders:42").Do(ctx, ship) // ship's context ends when the lock is lost
//	if errors.Is(err, relock.ErrLost) {
//		log.Print("another process may have shipped order 42, too")
//	}
//
// # Owner and levels
//
// A lock has a name. While it is held, it has one owner: the goroutine that locked it. The owner
// may lock again, which adds a level. It needs one Unlock for each level to give the lock back.
// All others wait: other processes, and other goroutines, even those that the owner has started.
//
// A handle made [WithOwner] has a fixed owner instead. Any goroutine may lock and unlock through
// it. Goroutines that share an owner do not exclude each other, so use a new id for each job.
// [NewOwner] puts a new owner into a context, and [WithOwnerFrom] makes a handle of that owner.
//
// # Kinds of lock
//
// Locks are cheap handles: all handles of one name in one [Client] are the same lock. The docs of
// [Mutex] hold for every kind; the docs of the other kinds say where they differ.
//
//   - [Client.Mutex]: one name, one owner.
//   - [Client.MultiMutex]: several names in one step, all or none.
//   - [Client.FairMutex]: first come, first served, over all processes.
//   - [Client.RWMutex]: many readers, or one writer.
//
// The first three exclude each other on one name. An RWMutex needs a name of its own: while the
// other sort of lock holds the name, Lock returns [ErrInvalidName].
//
// [New] makes a Client on one Redis: a server, Sentinel, or a Cluster. [NewQuorum] makes a Client on
// several independent masters; a majority holds each lock. It has only Mutex and MultiMutex.
//
// # Lease and watchdog
//
// On Redis a lock has a TTL, the lease, so that a lock outlives a dead holder only by that time:
// 30 s by default ([WithTTL]). While the lock is held, a watchdog renews the lease every third of
// the TTL. [Mutex.Deadline] returns the time until which the lease is proven. [WithoutRenewal]
// turns renewal off; [WithMaxHold] ends it after a time. [WithMinHold] keeps a lock taken after an
// early Unlock.
//
// # Loss
//
// A hold is lost when Redis did not answer for the time of the lease, or when the key was deleted,
// evicted or forced open. Then the context of the hold is cancelled with the cause [ErrLost].
// [Mutex.Do] gives this context to its function, and [Mutex.Context] returns it.
//
// Work that does not look at its context goes on. But the error of Unlock is then ErrLost, and Do
// returns it, joined with the error of its function. A plain defer m.Unlock() drops it. Join it to
// the named result of your function instead:
//
//	defer func() { err = errors.Join(err, m.Unlock()) }()
//
// Each Unlock of a lost hold returns ErrLost, and so does a Lock inside it. After the last Unlock
// the owner can lock again.
//
// # Waiting
//
// [Mutex.Lock] waits until its context ends, or for the time of [WithWaitTimeout]. The waiters of
// one process stand in a queue. The first has one place for the whole process in a line on
// Redis. It sleeps until a message says that it has the lock. So processes take turns, of up to
// [WithLocalHandoffs] holds. [Mutex.TryLock] does not wait, and does not pass the line.
//
// With a FairMutex each waiter has its own place in the line. An RWMutex and a quorum have no
// line: there the first waiter of each process asks again when a message says that the lock is
// free, and after [WithSafetyPoll].
//
// If Redis cannot be reached, a new Lock fails after three attempts, after 5 s at most with the
// default TTL. A Lock that was already waiting survives an outage of one TTL.
//
// # Promises
//
//   - While a hold is valid, no other owner gets its name. This needs a Redis that keeps its data,
//     and clocks that run at about the same rate.
//   - If a lease cannot be renewed, its holder knows that it is lost before it ends on Redis.
//   - Lost replies and repeated commands change no count.
//   - A Lock that fails changes nothing for its owner. If Redis granted it, it is undone.
//   - Unlock takes its level away, whatever Redis answers, and even if the context of Lock has
//     ended. If it returns an error of Redis, the key may live on for one TTL.
//   - A lost message delays a waiter by one safety poll at most.
//   - Bad names and options return errors. The library logs nothing.
//
// Not promised: that a failover forgets no lock (see [WithReplicas] and [NewQuorum]); that the
// holder notices a deleted key before the next renewal; that a paused process does no harm before
// it looks at its context. Where that matters, use [WithFencing], and let the resource refuse a
// token that is lower than one it has seen. Package fence does that for data on Redis. Run Redis
// with maxmemory-policy noeviction: an evicted lock is a lost lock.
//
// # Shutting down
//
// Stop the work, then close the [Client], then the Redis client. [Client.Close] ends every wait
// with [ErrClosed], cancels the contexts of holds, gives the locks back, and stops all goroutines.
// It takes 5 s at most.
//
// The pages in docs/ have recipes, errors and permissions.
package relock
