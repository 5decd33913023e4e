package fence_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/fence"
)

// twoProcesses returns the locks of two processes on a Redis, and a client of it.
func twoProcesses() (here, there *relock.Client, rdb *redis.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	if here, err = relock.New(rdb); err != nil {
		panic(err)
	}
	if there, err = relock.New(rdb); err != nil {
		panic(err)
	}
	return here, there, rdb, func() {
		here.Close()
		there.Close()
		rdb.Close()
		server.Close()
	}
}

func Example() {
	here, there, rdb, stop := twoProcesses()
	defer stop()
	ctx := context.Background()

	slow := here.Mutex("doc:7", relock.WithFencing())
	slow.Lock(ctx)

	// The holder is paused for so long that it loses the lock to another one…
	there.Mutex("doc:7").ForceUnlock(ctx)
	next := there.Mutex("doc:7", relock.WithFencing())
	next.Lock(ctx)
	fmt.Println(fence.Set(ctx, rdb, next.FencingToken(), "doc:7:body", "by the next holder", 0))

	// …and wakes up in the middle of a write.
	err := fence.Set(ctx, rdb, slow.FencingToken(), "doc:7:body", "by the paused one", 0)
	fmt.Println("refused:", errors.Is(err, fence.ErrStale))
	fmt.Println(rdb.Get(ctx, "doc:7:body").Val())
	// Output:
	// <nil>
	// refused: true
	// by the next holder
}

func ExampleHSet() {
	locks, _, rdb, stop := twoProcesses()
	defer stop()
	ctx := context.Background()

	m := locks.Mutex("order:42", relock.WithFencing())
	err := m.Do(ctx, func(ctx context.Context) error {
		return fence.HSet(ctx, rdb, m.FencingToken(), "order:42:state", "status", "shipped", "parcels", 2)
	})
	fmt.Println(err)
	fmt.Println(rdb.HGetAll(ctx, "order:42:state").Val())
	// Output:
	// <nil>
	// map[parcels:2 status:shipped]
}

func ExampleScript() {
	locks, _, rdb, stop := twoProcesses()
	defer stop()
	ctx := context.Background()

	pay := fence.NewScript(`
		redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
		return redis.call('hlen', KEYS[1])
	`)
	m := locks.Mutex("account:1", relock.WithFencing())
	err := m.Do(ctx, func(ctx context.Context) error {
		n, err := pay.Run(ctx, rdb, m.FencingToken(), []string{"account:1:payments"}, "payment-17", 100).Int()
		fmt.Println("payments:", n)
		return err
	})
	fmt.Println(err)
	// Output:
	// payments: 1
	// <nil>
}
