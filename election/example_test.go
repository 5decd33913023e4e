package election_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/election"
)

func ExampleRun() {
	server, err := miniredis.Run() // in a program: a Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	process := func(ctx context.Context, name string, ready chan<- struct{}) error {
		locks, err := relock.New(rdb)
		if err != nil {
			return err
		}
		defer locks.Close()
		return election.Run(ctx, locks.Mutex("scheduler"), func(ctx context.Context, _ int64) error {
			fmt.Println(name, "leads")
			close(ready)
			<-ctx.Done() // the work, until the lock is lost or the process shuts down
			return nil
		})
	}

	first, stop := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error)
	go func() { done <- process(first, "the first process", ready) }()
	<-ready
	second, stopSecond := context.WithCancel(context.Background())
	ready = make(chan struct{})
	go func() { done <- process(second, "the second process", ready) }()
	stop() // the first one shuts down
	<-ready
	stopSecond()
	fmt.Println(<-done)
	fmt.Println(<-done)
	// Output:
	// the first process leads
	// the second process leads
	// <nil>
	// <nil>
}
