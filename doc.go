// Package relock provides reentrant distributed locks on Redis, with go-redis v9.
//
//	locks, err := relock.New(rdb) // rdb: any redis.UniversalClient but a *redis.Ring
//	if err != nil {
//		return err
//	}
//	defer locks.Close()
//
//	m := locks.Mutex("orders:42")
//	if err := m.Lock(ctx); err != nil {
//		return err
//	}
//	defer m.Unlock()
//	return ship(m.Context(ctx)) // this context ends when the lock is lost
//
// This defer drops the error of Unlock, which tells of a loss. The section "Loss" says how the
// caller learns of one all the same.
//
// # Owner and levels
//
// A lock has a name and, while it is held, one owner. The owner is the calling goroutine.
// It may lock again, which adds a level; it takes as many Unlocks to give the lock back.
// All others wait: other goroutines, those that the owner has started included, and
// other processes.
//
// A handle made [WithOwner] has a fixed owner instead. Any goroutine may lock and unlock
// through it, so a lock can be passed on. Goroutines that share an owner do not exclude
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
//   - [Client.FairMutex]: those who wait are served in the order in which they came, over all
//     processes.
//   - [Client.RWMutex]: many owners who read, or one who writes. See [RWMutex].
//
// The first three exclude each other; an RWMutex has names of its own: asking for a
// name while the other sort holds it returns [ErrInvalidName].
//
// [New] makes a Client on one Redis: a server, one behind Sentinel, or a Cluster. [NewQuorum]
// makes one on several independent masters; its locks are held by a majority of them. It has
// Mutex and MultiMutex only.
//
// # Lease and watchdog
//
// A lock on Redis has a TTL, the lease, so that it does not outlive its holder by more
// than that: 30 s, or see [WithTTL]. While the lock is held, a watchdog renews the lease
// every third of it, so that the work may take as long as it takes. [Mutex.Deadline] says until
// when the lease is proven.
// [WithoutRenewal] makes the lease a fixed one; [WithMaxHold] bounds how long it is renewed. If
// nested levels have different options, the hold has the longest TTL and the shortest renew
// interval of them, and is renewed while any level asks for it.
//
// # Loss
//
// A hold can end without its holder's doing: Redis did not answer for the time of the
// lease, or the key was deleted, evicted or forced open. The holder learns of it by the
// context of the hold, which [Mutex.Context] returns and [Mutex.Do] gives to its function.
// It is cancelled with the cause [ErrLost]. Work done under a lock should use it:
//
//	err := m.Do(ctx, func(ctx context.Context) error {
//		return report(ctx)
//	})
//
// Work that does not look at its context goes on, and may return nil. The error of Unlock says
// then that the hold was lost. Do returns it, joined with that of its function; where
// you defer Unlock yourself, join it to the named result of your function:
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
// on Redis, and sleeps until a message says that the lock is its own; a request every 1.7 s at
// most keeps the place. So processes have turns, of up to [WithLocalHandoffs] holds.
// [Mutex.TryLock] does not wait, and passes no line. Each waiter for a FairMutex has a place of its own.
// For an RWMutex, and on a quorum, there is no line: the first waiter of each process asks when a message
// says that the lock is free, when the lease runs out, and after [WithSafetyPoll].
//
// If Redis cannot be reached, a Lock that has only just come fails after three attempts, in
// 5 s at most with the default TTL. One that was waiting rides out an outage of one TTL.
//
// # What is promised
//
//   - Exclusion: while a hold is valid no other owner gets its name, as long as the Redis that
//     granted it keeps its data and clocks run at about the same rate. Readers of an RWMutex
//     share it, and keep writers out.
//   - A lease that cannot be renewed is known to be lost here before it ends on Redis, by
//     the monotonic and by the wall clock.
//   - Lost replies and repeated commands change no count: scripts set what is wanted.
//   - A Lock that fails changes nothing for its owner: what Redis may have granted is undone,
//     in the background if Redis is slow, and ends with its TTL at the latest.
//   - Unlock takes its level away whatever Redis answers, and whether or not the context
//     of Lock has ended. Its error says that the key may live on for up to one TTL.
//   - A missed message costs a waiter one safety poll at most.
//   - Bad names and options are errors. Nothing panics on them, nothing is logged.
//
// # What is not promised
//
// A Redis server with replicas is no consensus system: a failover can forget a lock that was
// just granted, and grant it again. [WithReplicas] makes that rarer; with [NewQuorum]
// failovers do not matter, but a node that loses its data does. A key that is deleted or
// forced open from outside is noticed at the next renewal, or when a fixed lease is over, and
// another owner may have the lock by then. No lease can prevent what a holder does between a
// pause and its next look at its context. Where that must do no harm, use [WithFencing] and
// have the resource refuse a lower token than it has seen; for data on Redis the package fence
// does that. Between processes there is no order
// among the waiters, except those for a [Client.FairMutex].
//
// Redis should run with maxmemory-policy noeviction: an evicted lock is a lost one.
//
// # Shutting down
//
// Stop the work, then close the [Client], then the Redis client. [Client.Close] ends every
// wait with [ErrClosed], cancels the contexts of holds, gives the locks back, and stops
// all goroutines. It takes 5 s at most.
//
// # Layout on Redis
//
// The layout is part of the version contract: before v1.0.0 it changes with a minor version only,
// after that with a major one.
//
//   - The lock is a hash at the name, after [WithPrefix]. Its one field is
//     <client uuid>:<owner>, the value the number of levels; the key's TTL is the lease.
//   - One that is kept [WithMinHold] has the field <client uuid>:<owner>:kept:<number> instead, of a writer
//     with :write after it.
//   - A release publishes the message 0 on the channel redisson_lock__channel:{name}; and, if
//     Java's fair lock has a queue redisson_lock_queue:{name}, on that of its first waiter, which
//     is the same with :<waiter> after it.
//   - With fencing, the last token is at redisson_lock_token:{name}.
//   - Those who wait are in relock_line:{name} and relock_line_entries:{name}; grants are told
//     on relock_line_grants:{name}:<process uuid>.
//   - A read-write lock is a hash with a field for each hold, of which a writer's ends in
//     :write, and the field mode, which is read or write. Each level of a reader has a key
//     {name}:<field>:rwlock_timeout:<level>, with the reader's lease. The channel is
//     redisson_rwlock:{name}; after a writer the message is 1, and then 0. A writer that waits
//     is in relock_rw_claim:{name}.
//   - [WithClientInfo], the client is the hash relock_client:<client uuid>.
//
// A quorum has the same on each of its nodes.
//
// A name with a {tag} of its own gets no further braces, so that on a Cluster all keys of
// a lock are in one slot. Names whose braces would break that are [ErrInvalidName]. But for
// the keys and channels that begin with relock, the layout is that of Redisson's locks for Java.
package relock
