// Example is one node of a service that makes a report every two seconds. Start several of them: each
// report is made by one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relockgocron"
)

func main() {
	addr := flag.String("redis", "localhost:6379", "address of Redis")
	flag.Parse()
	log.SetFlags(log.Ltime)
	log.SetPrefix(fmt.Sprintf("node %d: ", os.Getpid()))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *addr); err != nil {
		log.Fatal(err)
	}
}

// serve runs the jobs of this node until ctx ends.
func serve(ctx context.Context, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locks, err := relock.New(rdb, relock.WithPrefix("jobs:"), relock.WithTTL(5*time.Second))
	if err != nil {
		return err
	}
	defer locks.Close()
	locker, err := relockgocron.NewLocker(locks)
	if err != nil {
		return err
	}
	scheduler, err := gocron.NewScheduler(
		gocron.WithDistributedLocker(locker),
		gocron.WithGlobalJobOptions(gocron.WithEventListeners(gocron.AfterLockError(notRun))))
	if err != nil {
		return err
	}
	_, err = scheduler.NewJob(
		gocron.CronJob("*/2 * * * * *", true), // due at the same time on all nodes
		gocron.NewTask(func(ctx context.Context) error {
			return locker.Do(ctx, report)
		}),
		gocron.WithName("report"), // the name of the lock
	)
	if err != nil {
		return err
	}
	scheduler.Start()
	<-ctx.Done()
	return scheduler.Shutdown() // before locks are closed
}

// notRun is called for each run that this node does not make.
func notRun(_ uuid.UUID, job string, err error) {
	if !errors.Is(err, relockgocron.ErrHeldElsewhere) { // the normal case: another node makes it
		log.Printf("%s: %v", job, err)
	}
}

// report is the work. When ctx ends, another node may run the job.
func report(ctx context.Context) error {
	log.Print("report begins")
	select {
	case <-time.After(time.Second):
		log.Print("report is done")
		return nil
	case <-ctx.Done():
		log.Print("report stops: ", context.Cause(ctx))
		return context.Cause(ctx)
	}
}
