package relocktest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relocktest"
)

// The code under test copies orders, and stops when its lock is lost.
func copyOrders(ctx context.Context, locks *relock.Client, begun chan<- struct{}) error {
	return locks.Mutex("copy").Do(ctx, func(ctx context.Context) error {
		close(begun)
		<-ctx.Done() // the work
		return context.Cause(ctx)
	})
}

func Example() {
	t := startTest() // in a test: the *testing.T
	defer t.end()

	locks := relocktest.New(t)
	begun, done := make(chan struct{}), make(chan error)
	go func() { done <- copyOrders(t.Context(), locks, begun) }()
	<-begun
	relocktest.Lose(t, locks, "copy")
	fmt.Println("it stops:", errors.Is(<-done, relock.ErrLost))
	// Output: it stops: true
}

func ExampleHoldElsewhere() {
	t := startTest() // in a test: the *testing.T
	defer t.end()

	locks := relocktest.New(t)
	release := relocktest.HoldElsewhere(t, locks, "nightly")
	fmt.Println(locks.Mutex("nightly").TryLock(t.Context()))
	release()
	fmt.Println(locks.Mutex("nightly").TryLock(t.Context()))
	// Output:
	// false <nil>
	// true <nil>
}

// All 20 calls that a provider allows at a time are made by another process.
func ExampleHoldPermitsElsewhere() {
	t := startTest() // in a test: the *testing.T
	defer t.end()

	locks := relocktest.New(t)
	release := relocktest.HoldPermitsElsewhere(t, locks, "llm", 20)
	_, ok, err := locks.Semaphore("llm", 20).TryAcquire(t.Context())
	fmt.Println(ok, err)
	release()
	_, ok, err = locks.Semaphore("llm", 20).TryAcquire(t.Context())
	fmt.Println(ok, err)
	// Output:
	// false <nil>
	// true <nil>
}

// In a bubble of testing/synctest the minute of this outage passes at once.
func ExampleOutage() {
	t := startTest() // in a test: the *testing.T
	defer t.end()

	locks := relocktest.New(t, relock.WithTTL(200*time.Millisecond))
	m := locks.Mutex("orders:42")
	m.Lock(t.Context())
	work := m.Context(t.Context())
	relocktest.Outage(t, locks, time.Minute)
	<-work.Done()
	fmt.Println("lost:", errors.Is(context.Cause(work), relock.ErrLost))
	// Output: lost: true
}

func ExampleRedis() {
	t := startTest() // in a test: the *testing.T
	defer t.end()

	here := relocktest.New(t)
	there, err := relock.New(relocktest.Redis(t, here)) // another process
	if err != nil {
		fmt.Println(err)
		return
	}
	defer there.Close()

	fmt.Println(here.Mutex("nightly").TryLock(t.Context()))
	fmt.Println(there.Mutex("nightly").TryLock(t.Context()))
	// Output:
	// true <nil>
	// false <nil>
}
