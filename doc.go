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
// A lock has a name and, while it is held, one owner. The owner is the calling goroutine.
// It may lock again, which adds a level; it takes as many Unlocks to give the lock back.
// All others wait: other goroutines, those that the owner has started included, and
// other processes.
//
// A handle made [WithOwner] has a fixed owner instead. Any goroutine may lock and unlock
// through it. Goroutines that share an owner do not exclude
// each other: use a new id for each job. [NewOwner] puts such an owner into a context, and
// [WithOwnerFrom] makes a handle of it.
//
// # Kinds of lock
//
// All are cheap handles, and any number of handles of one name in one [Client] are the same
// lock. What is said of a [Mutex] holds for each of them; their own docs say where they differ.
//
//   - [Client.Mutex]: one name, one owner.
//   - [Client.MultiMutex]: several names in one step.
//   - [Client.FairMutex]: waiters are served in the order in which they came, over all processes.
//   - [Client.RWMutex]: many owners that read, or one that writes. See [RWMutex].
//
// The first three exclude each other. An RWMutex has names of its own; one that the other
// sort holds is [ErrInvalidName].
//
// [New] makes a Client on one Redis: a server, one behind Sentinel, or a Cluster. [NewQuorum]
// makes one on several independent masters; its locks are held by a majority of them. It has
// Mutex and MultiMutex only.
//
// # Lease and watchdog
//
// A lock on Redis has a TTL, the lease, so that it does not outlive its holder by more
// than that: 30 s, or see [WithTTL]. While the lock is held, a watchdog renews the lease
// every third of it. [Mutex.Deadline] says until
// when the lease is proven. [WithoutRenewal] makes the lease a fixed one; [WithMaxHold] bounds how
// long it is renewed.
//
// # Loss
//
// A hold can end without its holder's doing: Redis did not answer for the time of the
// lease, or the key was deleted, evicted or forced open. The holder learns of it by the
// context of the hold, which [Mutex.Context] returns and [Mutex.Do] gives to its function.
// It is cancelled with the cause [ErrLost].
//
// Work that does not look at its context goes on, and may return nil. The error of Unlock then
// says so. Do returns it, joined with that of its function. A plain defer m.Unlock() drops it; join
// it to the named result of your function:
//
//	defer func() { err = errors.Join(err, m.Unlock()) }()
//
// A lost hold stays lost. Each Unlock of its levels returns ErrLost, and so does a Lock
// inside of it; after the last Unlock the owner can lock anew.
//
// # Waiting
//
// [Mutex.Lock] waits until its context ends, or for [WithWaitTimeout]. Waiters of one
// process stand in a queue. The first of them has a place, for all of the process, in a line
// on Redis, and sleeps until a message says that the lock is its own. So processes have turns, of up
// to [WithLocalHandoffs] holds. [Mutex.TryLock] does not wait, and passes no line. Each waiter for a
// FairMutex has a place of its own. An RWMutex and a quorum have no line: there the first waiter of
// each process asks again when a message says that the lock is free, and after [WithSafetyPoll].
//
// If Redis cannot be reached, a Lock that has only just come fails after three attempts, in
// 5 s at most with the default TTL. One that was waiting rides out an outage of one TTL.
//
// # Promises
//
//   - While a hold is valid no other owner gets its name, as long as the Redis that
//     granted it keeps its data and clocks run at about the same rate.
//   - A lease that cannot be renewed is known to be lost here before it ends on Redis.
//   - Lost replies and repeated commands change no count.
//   - A Lock that fails changes nothing for its owner. What Redis may have granted is undone.
//   - Unlock takes its level away whatever Redis answers, even when the context of Lock has
//     ended. Its error says that the key may live on for up to one TTL.
//   - A missed message costs a waiter one safety poll at most.
//   - Bad names and options are errors. Nothing is logged.
//
// Not promised: that a failover forgets no lock (see [WithReplicas], [NewQuorum]); that a deletion is noticed before the next renewal; that a process which
// was paused does no harm before it looks at its context. Where that matters, use [WithFencing] and
// have the resource refuse a lower token than it has seen; for data on Redis the package fence
// does that. Run Redis with maxmemory-policy noeviction: an evicted lock is a lost one.
//
// # Shutting down
//
// Stop the work, then close the [Client], then the Redis client. [Client.Close] ends every
// wait with [ErrClosed], cancels the contexts of holds, gives the locks back, and stops
// all goroutines. It takes 5 s at most.
//
// The pages in docs/ have recipes, errors and permissions.
package relock
