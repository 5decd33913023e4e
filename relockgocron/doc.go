// Package relockgocron has jobs of gocron v2 run on one of several nodes.
//
//	locker, err := relockgocron.NewLocker(locks) // locks: a *relock.Client
//	if err != nil {
//		return err
//	}
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// # Locker or Elector
//
// With a [Locker] each run of a job is made by the node that comes first, and others skip it. With an
// [Elector] one node leads and makes all runs. gocron uses one of them: where it has an elector, it
// asks no locker.
//
// # Loss
//
// The lock of a run is renewed for as long as the run lasts. If that fails for a whole lease, as in
// an outage of Redis, another node may run the job. gocron cannot be told, and gives the task a
// context that does not know of it. So a task does its work in [Locker.Do] or [Elector.Do]: that
// has a context which ends in time, and a loss becomes an error of the run.
//
// # Which lock
//
// It is the Mutex of the Client by the name of the job, or of the Elector, with the options of the
// Client: WithTTL says how long a node that has died keeps the others from its job, WithPrefix
// keeps the names apart from others. What goes wrong is told to the Client's hooks, also where
// gocron drops it, as it does with the error of Unlock.
package relockgocron
