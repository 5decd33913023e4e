// Package relockgocron runs each job of gocron v2 on one of several nodes.
//
//	locker, err := relockgocron.NewLocker(locks) // locks: a *relock.Client
//	if err != nil {
//		return err
//	}
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// # Locker or Elector
//
// With a [Locker], the first node to lock a run makes it, and the others skip it. With
// [WithConcurrency], up to n runs of a job go on at a time. With an [Elector], one node leads and makes
// all runs. gocron uses only one of them: a scheduler with an elector ignores its locker.
//
// # Loss
//
// The lock of a run is renewed for as long as the run lasts. If renewal fails for a whole lease, for
// example in an outage of Redis, another node may run the job. gocron does not notice this, and does
// not end the context that it passes to the task. So a task should do its work in [Locker.Do] or
// [Elector.Do]. They pass a context that ends when the lock is lost, and return the loss as an error of
// the run.
//
// # Which lock
//
// The lock is a Mutex of the Client, or with [WithConcurrency] a permit of a Semaphore. It has the name
// of the job or of the Elector, and the options of the Client. relock.WithTTL sets how long a dead node
// blocks its job on the other nodes. relock.WithPrefix separates these names from other locks. The hooks
// of the Client report every error, also errors that gocron drops, such as the error of Unlock.
package relockgocron
