package relock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

func ExampleClient_FairMutex() {
	locks, there, stop := twoProcesses()
	defer stop()

	m := locks.FairMutex("tickets")
	if err := m.Lock(ctx); err != nil { // waits behind all that asked before
		fmt.Println(err)
		return
	}
	defer m.Unlock()

	fmt.Println(there.FairMutex("tickets").TryLock(ctx))
	fmt.Println(there.Mutex("tickets").TryLock(ctx)) // the same lock
	// Output:
	// false <nil>
	// false <nil>
}

func ExampleClient_Semaphore() {
	locks, there, stop := twoProcesses()
	defer stop()

	calls := locks.Semaphore("llm", 2) // at most two at a time, over all processes
	err := calls.Do(ctx, func(ctx context.Context) error {
		permit, err := there.Semaphore("llm", 2).Acquire(ctx)
		if err != nil {
			return err
		}
		defer permit.Release()
		_, ok, err := calls.TryAcquire(ctx)
		fmt.Println("a third one:", ok, err)
		return nil
	})
	fmt.Println(err)
	// Output:
	// a third one: false <nil>
	// <nil>
}

func ExampleSemaphore_AcquireN() {
	locks, stop := oneProcess()
	defer stop()

	calls := locks.Semaphore("llm", 20)
	permit, err := calls.AcquireN(ctx, 3) // all or nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer permit.Release()
	state, err := calls.State(ctx)
	fmt.Println(state.InUse, state.Waiting, err)
	// Output: 3 0 <nil>
}

func ExampleClient_RWMutex() {
	locks, there, stop := twoProcesses()
	defer stop()

	m := locks.RWMutex("prices")
	if err := m.RLock(ctx); err != nil { // with other readers, and without writers
		fmt.Println(err)
		return
	}
	defer m.RUnlock()

	theirs := there.RWMutex("prices")
	fmt.Println(theirs.TryRLock(ctx))
	fmt.Println(theirs.RUnlock())
	fmt.Println(theirs.TryLock(ctx))
	// Output:
	// true <nil>
	// <nil>
	// false <nil>
}

func ExampleRWMutex_RLock_downgrade() {
	locks, stop := oneProcess()
	defer stop()

	m := locks.RWMutex("prices")
	err := m.Do(ctx, func(ctx context.Context) error {
		fmt.Println("change")
		return m.RLock(ctx) // no other owner can write in between
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.RUnlock()
	fmt.Println("read what was changed, with others")
	fmt.Println(errors.Is(m.Lock(ctx), relock.ErrUpgrade))
	// Output:
	// change
	// read what was changed, with others
	// true
}

func ExampleClient_MultiMutex() {
	locks, there, stop := twoProcesses()
	defer stop()

	m := locks.MultiMutex([]string{"account:1", "account:2"})
	if err := m.Lock(ctx); err != nil { // both or none
		fmt.Println(err)
		return
	}
	defer m.Unlock()

	fmt.Println(there.Mutex("account:2").TryLock(ctx))
	// Output: false <nil>
}

func ExampleNewQuorum() {
	var nodes []redis.UniversalClient
	for range 3 { // in a program: redis.NewClient(…) for each master
		rdb, stop := startRedis()
		defer stop()
		nodes = append(nodes, rdb)
	}

	locks, err := relock.NewQuorum(nodes) // 3 or 5 redis.UniversalClients, of independent masters
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()

	m := locks.Mutex("orders:42", relock.WithFencing())
	if err := m.Lock(ctx); err != nil {
		fmt.Println(err)
		return
	}
	nodes[0].FlushAll(ctx) // the two others still have the lock
	fmt.Println("tokens rise:", m.FencingToken() > 0)
	fmt.Println(m.Unlock())
	// Output:
	// tokens rise: true
	// <nil>
}
