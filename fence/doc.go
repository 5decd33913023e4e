// Package fence rejects writes to Redis by a holder that has lost its lock.
//
// No lease can stop a process that is paused between a check of its context and its next write. When
// the process resumes, another one may hold the lock, and may have written. So the store itself has to
// reject the late write. With relock.WithFencing each hold has a token, a number that is higher with
// each holder. This package checks the token on Redis:
//
//	m := locks.Mutex("doc:7", relock.WithFencing())
//	err := m.Do(ctx, func(ctx context.Context) error {
//		return fence.Set(ctx, rdb, m.FencingToken(), "doc:7:body", body, 0)
//	})
//	if errors.Is(err, fence.ErrStale) {
//		// a later holder has written: this one has lost the lock
//	}
//
// One script checks the token and writes. [Set] and [HSet] work like the commands of that name, and a
// [Script] is your own. The data may be on the Redis of the locks or on another one, also on a Cluster.
//
// # What is rejected
//
// Each key has its own fence next to it: the highest token that came with a write to this key. A write
// with a lower token fails with [ErrStale] and changes nothing. The same token may write many times.
// All writes to a key have to use this package, with tokens of one lock, because tokens of different
// locks cannot be compared.
//
// The fence depends on writes, not on who holds the lock: an earlier holder may write until a later one
// has written. If a holder reads before it writes, it should read with a Script, too: after that read,
// every write of an earlier holder is rejected.
//
// # On Redis
//
// The fence of a key is the key relock_fence:{key}. If the key has a {tag} of its own, the fence is
// relock_fence: followed by the key. So the fence is always in the slot of the data. It expires [Life]
// after the last write that was not rejected. So the write of a process that was paused for longer is
// not rejected. Keys with braces that do not form a {tag}, and a {tag} with nothing around it, are
// relock.ErrInvalidName.
//
// Users need +eval +evalsha +get +set on that key and the data, and +hset for HSet, or the commands of
// your script. Set maxmemory-policy noeviction. Replication is asynchronous: a failover may forget a
// write together with its token.
package fence
