// Cron is a fleet of five nodes that have the same crontab. One of them makes each report, though their clocks differ and a
// report takes no time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

const minHold = 2 * time.Second // more than the clocks differ, less than from one run to the next: here 2 s, else a minute

func main() {
	addr := flag.String("redis", "", "`host:port` of a Redis; without it an embedded one")
	flag.Parse()
	if *addr == "" {
		embedded := miniredis.NewMiniRedis()
		if err := embedded.Start(); err != nil {
			log.Fatal(err)
		}
		embedded.ClockTTL(true) // keys expire
		*addr = embedded.Addr()
	}
	if err := run(context.Background(), *addr); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	var nodes []*relock.Client
	for range 5 {
		locks, err := relock.New(rdb)
		if err != nil {
			return err
		}
		defer locks.Close()
		nodes = append(nodes, locks)
	}
	for hour, due := range []string{"03:00", "04:00"} {
		if hour > 0 {
			time.Sleep(minHold) // an hour
		}
		made := make(chan string, len(nodes)) // reports
		ended := make(chan error)
		for i, locks := range nodes {
			go func() {
				time.Sleep(time.Duration(i) * 50 * time.Millisecond) // the clock of this node is late
				ended <- onOneNode(ctx, locks, "report", func(context.Context) error { made <- due; return nil })
			}()
		}
		var errs []error
		for range nodes {
			errs = append(errs, <-ended)
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		fmt.Printf("%s: %d nodes, %d report\n", due, len(nodes), len(made))
	}
	return nil
}

// onOneNode runs job unless another node runs it, or ran it just now.
func onOneNode(ctx context.Context, locks *relock.Client, name string, job func(context.Context) error) (err error) {
	m := locks.Mutex("example-cron:"+name, relock.WithMinHold(minHold))
	held, err := m.TryLock(ctx)
	if err != nil || !held {
		return err
	}
	defer func() { err = errors.Join(err, m.Unlock()) }()
	return job(m.Context(ctx))
}
