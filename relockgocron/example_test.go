package relockgocron_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relockgocron"
)

// onRedis gives f the locks of a process.
func onRedis(f func(locks *relock.Client) error) error {
	server, err := miniredis.Run() // in a program: a Redis
	if err != nil {
		return err
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	locks, err := relock.New(rdb)
	if err != nil {
		return err
	}
	defer locks.Close()
	return f(locks)
}

func ExampleNewLocker() {
	err := onRedis(func(locks *relock.Client) error {
		locker, err := relockgocron.NewLocker(locks)
		if err != nil {
			return err
		}
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
		if err != nil {
			return err
		}
		done := make(chan error, 1)
		_, err = scheduler.NewJob(
			gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
			gocron.NewTask(func(ctx context.Context) {
				done <- locker.Do(ctx, func(ctx context.Context) error {
					fmt.Println("report")
					return ctx.Err() // it ends when the lock is lost
				})
			}),
			gocron.WithName("report"))
		if err != nil {
			return err
		}
		scheduler.Start()
		return errors.Join(<-done, scheduler.Shutdown())
	})
	fmt.Println(err)
	// Output:
	// report
	// <nil>
}

// drain makes a job that empties a queue, on three of the nodes at a time.
func drain(scheduler gocron.Scheduler, locks *relock.Client, queue func(context.Context) error) error {
	locker, err := relockgocron.NewLocker(locks, relockgocron.WithConcurrency(3))
	if err != nil {
		return err
	}
	_, err = scheduler.NewJob(
		gocron.DurationJob(time.Minute),
		gocron.NewTask(func(ctx context.Context) error {
			return locker.Do(ctx, queue)
		}),
		gocron.WithName("drain"), // the name of the semaphore
		gocron.WithDistributedJobLocker(locker))
	return err
}

func ExampleWithConcurrency() {
	err := onRedis(func(locks *relock.Client) error {
		scheduler, err := gocron.NewScheduler()
		if err != nil {
			return err
		}
		inUse := make(chan int, 1)
		err = drain(scheduler, locks, func(ctx context.Context) error {
			state, err := locks.Semaphore("drain", 3).State(ctx)
			inUse <- state.InUse
			return err
		})
		if err != nil {
			return err
		}
		scheduler.Start()
		for _, job := range scheduler.Jobs() {
			if err := job.RunNow(); err != nil {
				return err
			}
		}
		fmt.Println("permits in use:", <-inUse)
		return scheduler.Shutdown()
	})
	fmt.Println(err)
	// Output:
	// permits in use: 1
	// <nil>
}

// schedule makes reports on one node of several, until ctx ends.
func schedule(ctx context.Context, locks *relock.Client, report func(context.Context) error) error {
	elector, err := relockgocron.NewElector(locks, "scheduler",
		relockgocron.OnSetback(func(err error) { log.Print("election: ", err) }))
	if err != nil {
		return err
	}
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		return err
	}
	_, err = scheduler.NewJob(
		gocron.CronJob("* * * * * *", true),
		gocron.NewTask(func(ctx context.Context) error {
			return elector.Do(ctx, report)
		}))
	if err != nil {
		return err
	}
	scheduler.Start()
	elector.Start()
	<-ctx.Done()
	return errors.Join(scheduler.Shutdown(), elector.Stop())
}

func ExampleNewElector() {
	err := onRedis(func(locks *relock.Client) error {
		ctx, stop := context.WithCancel(context.Background())
		report := sync.OnceFunc(func() {
			fmt.Println("report")
			stop()
		})
		return schedule(ctx, locks, func(ctx context.Context) error {
			report()
			return ctx.Err()
		})
	})
	fmt.Println(err)
	// Output:
	// report
	// <nil>
}
