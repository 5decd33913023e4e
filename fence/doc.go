// Package fence refuses writes to Redis by a holder that has lost its lock.
//
// No lease can stop a process that is paused between a look at its context and its next write. When
// it goes on, another may hold the lock, and have written. What it writes then has to be refused where
// the data is. relock.WithFencing gives each hold a token, a number that rises from holder to holder;
// here is the other half:
//
//	m := locks.Mutex("doc:7", relock.WithFencing())
//	err := m.Do(ctx, func(ctx context.Context) error {
//		return fence.Set(ctx, rdb, m.FencingToken(), "doc:7:body", body, 0)
//	})
//	if errors.Is(err, fence.ErrStale) {
//		// a later holder has written: this one has lost the lock
//	}
//
// One script checks the token and writes: [Set] and [HSet] do what the commands do, and a [Script] is
// your own. The data may be on the Redis of the locks or on another one, a Cluster too.
//
// # What is refused
//
// Each key has its own fence, beside it: the highest token that has come with a write to it. A
// lower one is refused with [ErrStale], and nothing is written. The same token may write as often
// as it likes. So all writes to a key have to go through this package, with tokens of one lock:
// those of another lock say nothing about these.
//
// The fence is what has been written, not who holds the lock: until a later holder has come here, the
// earlier one may still write. A holder that reads and then writes should read with a Script, too:
// from that read on, nothing that an earlier holder sends gets between.
//
// # On Redis
//
// The fence of a key is the key relock_fence:{key}, or relock_fence: and the key where that has a
// {tag} of its own: always in the slot of the data. It expires [Life] after the last write that was
// not refused, which is the time that a paused process has to come back and be refused. Keys with
// braces that do not form a {tag}, and a {tag} with nothing around it, are relock.ErrInvalidName.
//
// Users need +eval +evalsha +get +set on that key and the data, and +hset for HSet, or what your
// script does. Set maxmemory-policy noeviction. Replication is asynchronous: a failover may forget
// a write, and its token with it.
package fence
