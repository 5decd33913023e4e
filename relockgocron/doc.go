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
// With a [Locker] the node that comes first makes the run, and the others skip it. With an [Elector]
// one node leads and makes all runs. gocron uses only one of them: if it has an elector, it does not
// ask a locker.
//
// # Loss
//
// The lock of a run is renewed for as long as the run lasts. If that fails for a whole lease, as in
// an outage of Redis, another node may run the job. gocron does not learn of it, and the context that
// it gives the task does not end. So a task should do its work in [Locker.Do] or [Elector.Do]: they
// give it a context that ends in time, and a loss becomes an error of the run.
//
// # Which lock
//
// It is a Mutex of the Client, with the name of the job or of the Elector, and the options of the
// Client. WithTTL says how long a dead node keeps the others from its job. WithPrefix separates the
// names from other locks. The Client's hooks report every error, also those that gocron drops, as
// that of Unlock.
package relockgocron
