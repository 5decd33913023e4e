// Package election lets one of several processes do a job. If that process stops or dies, another one
// takes over.
//
//	err := election.Run(ctx, locks.Mutex("scheduler"), func(ctx context.Context, _ int64) error {
//		return schedule(ctx) // until ctx ends: then another process may lead
//	})
//
// Each process calls [Run] with the same lock. The process that holds the lock leads. If the leader
// resigns, the next process leads at once. If the leader dies, the next process leads after the TTL of
// the lock. If the leader loses the lock, the context of its function ends, and it campaigns again.
//
// # What is promised
//
// The promises are those of a relock lock: there is one leader at a time, provided that the Redis that
// granted the lock keeps its data, and that the function stops when its context ends. A leader that is
// paused may write once more when it resumes. Where that would do damage, make the lock
// relock.WithFencing, and send the token with each write. For data on Redis, package fence does this.
//
// # Which lock
//
// Use any *relock.Mutex. relock.WithTTL sets how long a dead leader blocks the others, and how long an
// outage of Redis may last until a leader steps down. With a FairMutex, processes lead in the order in
// which they asked. relock.WithMaxHold limits a term. If you have several jobs, give each its own name;
// which process leads which job is then a matter of chance.
package election
