// Workers take jobs from one queue on Redis. Jobs of one customer run one at a time, those of different customers at the same
// time. Without the lock, bill would lose some of the jobs of a customer.
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
)

const (
	queue = "example-jobs"  // a list of customers
	bills = "example-bills" // how many bills each customer has
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
	defer rdb.Del(ctx, queue, bills)
	for range 20 {
		if err := rdb.RPush(ctx, queue, "ada", "bob", "eve").Err(); err != nil {
			return err
		}
	}
	ended := make(chan error)
	for range 8 {
		go func() { ended <- work(ctx, rdb) }() // in production a process of its own
	}
	var errs []error
	for range 8 {
		errs = append(errs, <-ended)
	}
	for _, customer := range []string{"ada", "bob", "eve"} {
		n, err := rdb.HGet(ctx, bills, customer).Int()
		errs = append(errs, err)
		fmt.Printf("%s: 20 jobs, %d bills\n", customer, n)
	}
	return errors.Join(errs...)
}

// work does jobs until the queue is empty.
func work(ctx context.Context, rdb *redis.Client) error {
	locks, err := relock.New(rdb)
	if err != nil {
		return err
	}
	defer locks.Close()
	for {
		customer, err := rdb.LPop(ctx, queue).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		if err != nil {
			return err
		}
		err = locks.Mutex("example-customer:"+customer).Do(ctx, func(ctx context.Context) error {
			return bill(ctx, rdb, customer)
		})
		if err != nil { // the job goes back: it may run twice, if the lock was lost at its end
			return errors.Join(err, rdb.RPush(context.WithoutCancel(ctx), queue, customer).Err())
		}
	}
}

// bill reads, then writes.
func bill(ctx context.Context, rdb *redis.Client, customer string) error {
	n, err := rdb.HGet(ctx, bills, customer).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	return rdb.HSet(ctx, bills, customer, n+1).Err()
}
