// Package election lets one of several processes do a job. Another process takes over when the
// first is gone.
//
//	err := election.Run(ctx, locks.Mutex("scheduler"), func(ctx context.Context, _ int64) error {
//		return schedule(ctx) // until ctx ends: then another process may lead
//	})
//
// Each process calls [Run] with the same lock. The holder leads. When it resigns, the next one
// leads at once; when it dies, after the TTL of the lock; when it loses the lock it learns of it by
// its context, and campaigns again.
//
// # What is promised
//
// What a relock lock promises, no more: one leader at a time, as long as the Redis that granted the
// lock keeps its data, and lead stops when its context ends. A leader that is paused may write once
// more when it goes on. Where that does harm make the lock WithFencing, and give each write the
// token: for Redis the package fence does that.
//
// # Which lock
//
// Any *relock.Mutex. WithTTL says how long a dead leader keeps the others waiting, and how long an
// outage of Redis may be until a leader steps down. A FairMutex leads in the order in which the
// processes came. WithMaxHold bounds a term. Several jobs with a name each are spread over the
// processes by chance.
package election
