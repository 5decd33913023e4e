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
// # Owners and hold counts
//
// A lock has a name. While it is held, it has one owner: the goroutine that locked it. The owner may
// lock again, which increases its hold count. Each Unlock decreases the count, and the last one
// releases the lock. All others wait: other processes, and other goroutines, even goroutines that the
// owner has started.
//
// A handle made [WithOwner] has a fixed owner instead. Any goroutine may lock and unlock through it.
// Goroutines that share an owner do not exclude each other, so use a new id for each job. [NewOwner]
// puts a new owner into a context, and [WithOwnerFrom] makes a handle for that owner.
//
// # Kinds of lock
//
// Locks are cheap handles: all handles of one name in one [Client] are the same lock. The documentation
// of [Mutex] applies to every kind. The other kinds document only what differs.
//
//   - [Client.Mutex]: one name, one owner.
//   - [Client.MultiMutex]: several names in one step, all or none.
//   - [Client.FairMutex]: first come, first served, over all processes.
//   - [Client.RWMutex]: many readers, or one writer.
//   - [Client.Semaphore]: permits, up to a limit. It has methods of its own.
//
// The first three exclude each other on one name. An RWMutex and a Semaphore need names of their own:
// while they hold a name, Lock of the other kinds returns [ErrInvalidName], and the other way round.
//
// [New] returns a Client for one Redis: a server, Sentinel, or a Cluster. [NewQuorum] returns a Client
// for several independent masters; a majority of them holds each lock. A quorum supports only Mutex and
// MultiMutex.
//
// # Lease and watchdog
//
// On Redis a lock has a TTL, its lease: 30 s by default ([WithTTL]). If the holder dies, the lock is
// free after that time. While the lock is held, a watchdog renews the lease every third of the TTL.
// [Mutex.Deadline] returns the time until which the lease is proven. [WithoutRenewal] disables renewal,
// and [WithMaxHold] ends it after a time. [WithMinHold] keeps the lock unavailable for a while after an
// early Unlock.
//
// # Loss
//
// A hold is lost when Redis did not answer, or the process was paused, for the time of the lease, or when
// the key was deleted, evicted or forced open. Its context is then cancelled with the cause [ErrLost].
// [Mutex.Do] passes this context to its function, and [Mutex.Context] returns it.
//
// Work that ignores its context goes on. Unlock then returns ErrLost, and Do returns ErrLost joined
// with the error of its function. A plain defer m.Unlock() drops the error. Join it to the named result
// of your function instead:
//
//	defer func() { err = errors.Join(err, m.Unlock()) }()
//
// After a loss every Unlock of that hold returns ErrLost, and so does another Lock by its owner. After
// the last Unlock the owner can lock again.
//
// # Waiting
//
// [Mutex.Lock] waits until it has the lock, until its context ends, or for the time of
// [WithWaitTimeout]. The waiters of one process form a local queue. The first of them has one entry in
// a line on Redis, for the whole process, and sleeps until a message grants it the lock. So processes
// take turns of up to [WithLocalHandoffs] holds. [Mutex.TryLock] does not wait, and does not overtake
// the line.
//
// Each waiter for a FairMutex or a Semaphore has an entry of its own in the line. An RWMutex and a quorum
// have no line. There the first waiter of each process asks again when a message reports that the lock is
// free, or when the limit of [WithSafetyPoll] has passed.
//
// If Redis cannot be reached, a new Lock fails after three tries, in at most 9 s with the default
// TTL. A Lock that is already waiting survives an outage of one TTL.
//
// # Promises
//
//   - While a hold is valid, no other owner gets its name, provided that Redis keeps its data, and
//     that clocks run at about the same rate.
//   - If a lease cannot be renewed, the holder is notified before the lease ends on Redis.
//   - Lost replies and repeated commands do not change the hold count.
//   - If Lock fails, existing holds are unchanged. Anything that Redis granted is released.
//   - Unlock decreases the hold count even if Redis does not answer, and even if the context of
//     Lock has ended. If Unlock returns an error from Redis, the key may remain for up to one TTL.
//   - If a message is lost, the waiter is delayed by at most one safety poll.
//   - A call with an invalid name or option returns an error. The library does not log, except by
//     [LogHooks] and for a panic in a hook.
//
// Not promised:
//
//   - A failover may forget a lock. See [WithReplicas] and [NewQuorum].
//   - If a key is deleted, the holder does not notice it before the next renewal.
//   - A process that is paused may still write after its lease has ended.
//
// Where this would do damage, use [WithFencing], and let the resource reject a token that is lower than
// one it has seen. Package fence does this for data on Redis. Run Redis with maxmemory-policy
// noeviction: an evicted lock is a lost lock.
//
// # Shutting down
//
// Stop the work, then close the [Client], then the Redis client. [Client.Close] ends every wait with
// [ErrClosed], cancels the contexts of holds, releases the locks, and stops all goroutines. It takes at
// most 5 s.
//
// The pages in docs/ have recipes, errors and permissions.
package relock
