// Package fence refuses writes to Redis by a holder that has lost its lock.
//
// No lease can stop a process that is paused between a look at its context and its next write. When
// it goes on, another may hold the lock, and may have written. So the store has to refuse its write.
// relock.WithFencing gives each hold a token, a number that is higher with each holder. This package
// is the other half:
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
// Each key has its own fence next to it: the highest token that has come with a write to it. A lower
// token is refused with [ErrStale], and nothing is written. The same token may write many times. So
// all writes to a key have to go through this package, with tokens of one lock: tokens of different
// locks cannot be compared.
//
// The fence knows what was written, not who holds the lock: until a later holder has written, an
// earlier one still may. A holder that reads and then writes should read with a Script, too: after
// that read every write of an earlier holder is refused.
//
// # On Redis
//
// The fence of a key is the key relock_fence:{key}, or relock_fence: and the key if that has a {tag}
// of its own: always in the slot of the data. It expires [Life] after the last write that was not
// refused: a process that is paused for longer than that is not refused any more. Keys with
// braces that do not form a {tag}, and a {tag} with nothing around it, are relock.ErrInvalidName.
//
// Users need +eval +evalsha +get +set on that key and the data, and +hset for HSet, or what your
// script does. Set maxmemory-policy noeviction. Replication is asynchronous: a failover may forget
// a write, and its token with it.
package fence
