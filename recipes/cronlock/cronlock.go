// Package cronlock has a job of robfig/cron run on one of several nodes.
package cronlock

import (
	"context"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/relock-go/relock"
)

// keep is for how long a lock is kept from the beginning of its run: nodes whose clocks are behind by
// less do not run the job again. It has to be shorter than the interval of the job.
const keep = 500 * time.Millisecond

// Job is a cron.Job that gets the context of its lock from OnOneNode. It has to return soon after that
// has ended: another node may run it then.
type Job func(ctx context.Context) error

// Run is Job without a lock, for a cron that has no OnOneNode.
func (j Job) Run() { _ = j(context.Background()) }

// OnOneNode returns a cron.JobWrapper that has each run made by one of the nodes whose wrapper has the
// same name: the one that comes first. Put it last in a chain: it hands its context to a Job, not to
// what wraps one. That context ends with ctx, too, which is to end when the program has to stop.
//
// log is told of a run that was made elsewhere (Info), and of an error of Redis, of the job, and of a
// loss of the lock (Error).
func OnOneNode(ctx context.Context, locks *relock.Client, name string, log cron.Logger) cron.JobWrapper {
	return func(job cron.Job) cron.Job {
		return cron.FuncJob(func() {
			began, ctx := time.Now(), relock.NewOwner(ctx) // of this run
			m := locks.Mutex(name, relock.WithOwnerFrom(ctx))
			switch held, err := m.TryLock(ctx); {
			case err != nil:
				log.Error(err, "not run", "job", name)
				return
			case !held:
				log.Info("run elsewhere", "job", name)
				return
			}
			defer func() {
				if err := m.Unlock(); err != nil {
					log.Error(err, "unlock", "job", name)
				}
			}()
			ctx = m.Context(ctx)
			if err := run(ctx, job); err != nil {
				log.Error(err, "run", "job", name)
			}
			select {
			case <-time.After(keep - time.Since(began)):
			case <-ctx.Done():
			}
		})
	}
}

func run(ctx context.Context, job cron.Job) error {
	if j, ok := job.(Job); ok {
		return j(ctx)
	}
	job.Run()
	return nil
}
