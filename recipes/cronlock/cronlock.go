// Package cronlock runs each job of robfig/cron on one of several nodes.
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

// Job is a cron.Job with a context. [OnOneNode] passes it the context of its lock. It has to return
// soon after that context has ended, because another node may run it by then.
type Job func(ctx context.Context) error

// Run runs the job without a lock and with context.Background(), for a cron without OnOneNode.
func (j Job) Run() { _ = j(context.Background()) }

// OnOneNode returns a cron.JobWrapper for a job that is scheduled on several nodes. For each run, the
// first node to get the lock name runs the job. The others skip the run. Use the same name on all
// nodes. Put OnOneNode last in a chain, because it passes its context to a [Job], not to a wrapper. The
// context also ends when ctx ends: end ctx to stop the program.
//
// log receives a message if the run is made elsewhere (Info), and the errors of Redis and of the job,
// and a loss of the lock (Error).
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
