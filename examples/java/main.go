// Java shows what a Java program with Redisson and a Go program see of each other's locks. The Java side is played: these are
// the keys and the message of its RLock. docs/java.md has the code of a real one, and interop/ tests with it.
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

const (
	name   = "example-account:42"                      // redisson.getLock("example-account:42")
	thread = "2f1d4c9a-5b7e-4f30-9c83-6a1e8d0b7c55:71" // the id of the Redisson client, and of its thread
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
	javaLocks := func() error {
		return errors.Join(rdb.HSet(ctx, name, thread, 1).Err(), rdb.PExpire(ctx, name, 30*time.Second).Err())
	}
	javaUnlocks := func() error {
		return errors.Join(rdb.Del(ctx, name).Err(), rdb.Publish(ctx, "redisson_lock__channel:{"+name+"}", 0).Err())
	}
	waiting := make(chan struct{})
	locks, err := relock.New(rdb, relock.WithHooks(relock.Hooks{Contended: func(relock.Event) { close(waiting) }}))
	if err != nil {
		return err
	}
	defer locks.Close()
	m := locks.Mutex(name)

	if err := javaLocks(); err != nil {
		return err
	}
	state, err := m.State(ctx)
	if err != nil {
		return err
	}
	fmt.Println("Java holds the lock. Go sees the owner", state.Owner)
	ended := make(chan error)
	go func() {
		ended <- m.Do(ctx, func(ctx context.Context) error {
			counts, err := rdb.HVals(ctx, name).Result() // as Java reads it
			fmt.Println("Go holds the lock. Java sees a hash of one owner, with hold count", counts)
			return err
		})
	}()
	select {
	case <-waiting:
	case err := <-ended:
		return err
	}
	fmt.Println("Go waits. Java unlocks, and its message wakes Go")
	return errors.Join(javaUnlocks(), <-ended)
}
