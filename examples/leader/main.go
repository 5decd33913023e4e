// Leader is a service in two nodes. One of them leads. When the leader is told to stop, it finishes its step, and the other
// node leads at once: the message that wakes it is sent by the release.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/election"
)

func main() {
	addr := flag.String("redis", "", "`host:port` of a Redis; without it an embedded one")
	flag.Parse()
	if *addr == "" {
		embedded := miniredis.NewMiniRedis()
		if err := embedded.Start(); err != nil {
			log.Fatal(err)
		}
		*addr = embedded.Addr()
	}
	if err := run(context.Background(), *addr); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	leads, ended := make(chan string), make(chan error)
	start := func(name string, hooks relock.Hooks) (stop func()) {
		ctx, stop := context.WithCancel(ctx) // in a service: signal.NotifyContext(ctx, syscall.SIGTERM)
		go func() { ended <- node(ctx, rdb, name, hooks, leads) }()
		return stop
	}

	stopFirst := start("node 1", relock.Hooks{})
	defer stopFirst()
	if err := await(leads, ended); err != nil {
		return err
	}
	stopSecond := start("node 2", relock.Hooks{Contended: func(relock.Event) {
		fmt.Println("node 2 waits, a deployment stops node 1")
		stopFirst()
	}})
	defer stopSecond()
	if err := errors.Join(<-ended, await(leads, ended)); err != nil { // node 1 has ended, node 2 leads
		return err
	}
	stopSecond()
	return <-ended
}

// node leads, or waits to lead, until ctx ends.
func node(ctx context.Context, rdb *redis.Client, name string, hooks relock.Hooks, leads chan<- string) error {
	locks, err := relock.New(rdb, relock.WithHooks(hooks))
	if err != nil {
		return err
	}
	defer locks.Close()
	return election.Run(ctx, locks.Mutex("example-leader"), func(ctx context.Context, _ int64) error {
		leads <- name
		<-ctx.Done() // the work goes here
		fmt.Println(name, "finishes its step, and resigns")
		return nil
	})
}

// await prints who leads.
func await(leads <-chan string, ended <-chan error) error {
	select {
	case name := <-leads:
		fmt.Println(name, "leads")
		return nil
	case err := <-ended:
		return fmt.Errorf("a node has ended before it led: %w", err)
	}
}
