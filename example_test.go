package relock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

var ctx = context.Background()

// startRedis starts an in-memory Redis and returns a client of it.
func startRedis() (rdb *redis.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.ClockTTL(true) // keys expire as time passes
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		rdb.Close()
		server.Close()
	}
}

// oneProcess returns the locks of a process on a Redis of its own.
func oneProcess(opts ...relock.ClientOption) (locks *relock.Client, stop func()) {
	rdb, stopRedis := startRedis()
	locks, err := relock.New(rdb, opts...)
	if err != nil {
		panic(err)
	}
	return locks, func() {
		locks.Close()
		stopRedis()
	}
}

// twoProcesses returns the locks of two processes on the same Redis.
func twoProcesses() (here, there *relock.Client, stop func()) {
	rdb, stopRedis := startRedis()
	here, err := relock.New(rdb)
	if err != nil {
		panic(err)
	}
	there, err = relock.New(rdb)
	if err != nil {
		panic(err)
	}
	return here, there, func() {
		here.Close()
		there.Close()
		stopRedis()
	}
}

func Example() {
	rdb, stop := startRedis() // in a program: redis.NewClient(…)
	defer stop()

	ship := func(context.Context) error {
		fmt.Println("no other process works on order 42 now")
		return nil
	}
	serve := func() error {
		locks, err := relock.New(rdb)
		if err != nil {
			return err
		}
		defer locks.Close()

		m := locks.Mutex("orders:42")
		if err := m.Lock(ctx); err != nil {
			return err
		}
		defer m.Unlock()
		return ship(m.Context(ctx)) // this context ends when the lock is lost
	}
	fmt.Println(serve())
	// Output:
	// no other process works on order 42 now
	// <nil>
}

func ExampleNew() {
	rdb, stop := startRedis() // a *redis.Client, one behind Sentinel, or a *redis.ClusterClient
	defer stop()

	locks, err := relock.New(rdb,
		relock.WithPrefix("billing:"),       // before every name
		relock.WithTTL(10*time.Second),      // how long a lock outlives a crashed holder
		relock.WithWaitTimeout(time.Minute), // of each Lock
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()

	fmt.Println(locks.Mutex("invoice:7").Lock(ctx))
	fmt.Println(rdb.Exists(ctx, "billing:invoice:7").Val())
	// Output:
	// <nil>
	// 1
}

func ExampleClient_Close() {
	here, there, stop := twoProcesses()
	defer stop()

	m := here.Mutex("report")
	fmt.Println(m.Lock(ctx))
	work := m.Context(ctx)

	// The process shuts down: what it still holds is released.
	fmt.Println(here.Close())
	fmt.Println(errors.Is(context.Cause(work), relock.ErrClosed))
	fmt.Println(there.Mutex("report").TryLock(ctx))
	// Output:
	// <nil>
	// <nil>
	// true
	// true <nil>
}

func ExampleMutex_TryLock() {
	here, there, stop := twoProcesses()
	defer stop()

	nightly := func() error {
		m := here.Mutex("nightly")
		held, err := m.TryLock(ctx)
		if err != nil {
			return err
		}
		if !held {
			fmt.Println("another process is at it")
			return nil
		}
		defer m.Unlock()

		fmt.Println("running the nightly job")
		return nil
	}
	fmt.Println(nightly())
	there.Mutex("nightly").Lock(ctx)
	fmt.Println(nightly())
	// Output:
	// running the nightly job
	// <nil>
	// another process is at it
	// <nil>
}

func ExampleMutex_Do() {
	locks, stop := oneProcess()
	defer stop()

	err := locks.Mutex("orders:42").Do(ctx, func(ctx context.Context) error {
		// ctx ends when the lock is lost: pass it on to whatever is done here.
		fmt.Println("held, and ctx is alive:", ctx.Err() == nil)
		return nil
	})
	fmt.Println(err)
	// Output:
	// held, and ctx is alive: true
	// <nil>
}

// How the caller of a function learns that the lock was lost while the function worked.
func ExampleMutex_Unlock() {
	here, there, stop := twoProcesses()
	defer stop()

	m := here.Mutex("orders:42")
	ship := func(context.Context) error { // does not look at its context
		_, err := there.Mutex("orders:42").ForceUnlock(ctx) // another process takes the lock away
		return err
	}

	dropped := func() error {
		if err := m.Lock(ctx); err != nil {
			return err
		}
		defer m.Unlock() // its error is dropped
		return ship(m.Context(ctx))
	}
	joined := func() (err error) {
		if err := m.Lock(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Unlock()) }()
		return ship(m.Context(ctx))
	}
	done := func() error {
		return m.Do(ctx, ship) // ErrLost if the lock was lost, joined with the error of ship
	}
	fmt.Println("defer m.Unlock():", dropped())
	fmt.Println("joined, lost:", errors.Is(joined(), relock.ErrLost))
	fmt.Println("Do, lost:", errors.Is(done(), relock.ErrLost))
	// Output:
	// defer m.Unlock(): <nil>
	// joined, lost: true
	// Do, lost: true
}

func ExampleMutex_Lock_reentry() {
	locks, stop := oneProcess()
	defer stop()
	m := locks.Mutex("account:1")

	debit := func() error {
		if err := m.Lock(ctx); err != nil {
			return err
		}
		defer m.Unlock()
		fmt.Println("levels in debit:", m.HoldCount())
		return nil
	}
	transfer := func() error {
		if err := m.Lock(ctx); err != nil {
			return err
		}
		defer m.Unlock()
		fmt.Println("levels in transfer:", m.HoldCount())
		return debit() // takes the same lock again
	}
	fmt.Println(transfer())
	fmt.Println("levels at the end:", m.HoldCount())
	// Output:
	// levels in transfer: 1
	// levels in debit: 2
	// <nil>
	// levels at the end: 0
}

func ExampleMutex_Lock_deadline() {
	here, there, stop := twoProcesses()
	defer stop()
	there.Mutex("report").Lock(ctx)

	limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	err := here.Mutex("report").Lock(limited)
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}

func ExampleWithWaitTimeout() {
	here, there, stop := twoProcesses()
	defer stop()
	there.Mutex("report").Lock(ctx)

	// The context goes on to the work; the wait has a bound of its own.
	m := here.Mutex("report", relock.WithWaitTimeout(50*time.Millisecond))
	err := m.Do(ctx, func(context.Context) error { return nil })
	fmt.Println(errors.Is(err, relock.ErrTimeout))
	// Output: true
}

func ExampleWithoutRenewal() {
	locks, stop := oneProcess()
	defer stop()

	// A fixed lease: it is not renewed.
	m := locks.Mutex("cache:warm-up", relock.WithTTL(100*time.Millisecond), relock.WithoutRenewal())
	if err := m.Lock(ctx); err != nil {
		fmt.Println(err)
		return
	}
	<-m.Context(ctx).Done()
	fmt.Println("lost:", errors.Is(m.Unlock(), relock.ErrLost))
	// Output: lost: true
}

func ExampleWithMinHold() {
	here, there, stop := twoProcesses()
	defer stop()

	// A short job: a process whose clock is late finds the lock taken when it comes to run the job again.
	m := here.Mutex("cron:report", relock.WithMinHold(time.Minute))
	if err := m.Do(ctx, func(context.Context) error { return nil }); err != nil {
		fmt.Println(err)
		return
	}
	again, err := there.Mutex("cron:report").TryLock(ctx)
	fmt.Println("runs again:", again, err)
	// Output: runs again: false <nil>
}

func ExampleMutex_Wanted() {
	here, there, stop := twoProcesses()
	defer stop()

	m := here.Mutex("index")
	if err := m.Lock(ctx); err != nil {
		fmt.Println(err)
		return
	}
	wanted := m.Wanted(ctx)
	next := make(chan error)
	go func() { next <- there.Mutex("index").Do(ctx, func(context.Context) error { return nil }) }()
	<-wanted // another process waits: a long job ends here, or pauses
	fmt.Println(m.Unlock(), <-next)
	// Output: <nil> <nil>
}

func ExampleWithLinger() {
	here, there, stop := twoProcesses()
	defer stop()

	// The consumer works for the same account again and again.
	account := here.Mutex("account:7", relock.WithLinger(5*time.Second))
	for range 100 { // the first Lock sends a command, the others need none
		if err := account.Do(ctx, func(context.Context) error { return nil }); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Another process that waits for the lock gets it at once.
	fmt.Println(there.Mutex("account:7").Do(ctx, func(context.Context) error { return nil }))
	// Output: <nil>
}

func ExampleMutex_Context() {
	here, there, stop := twoProcesses()
	defer stop()

	m := here.Mutex("import", relock.WithTTL(300*time.Millisecond))
	if err := m.Lock(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer m.Unlock()

	work := m.Context(ctx)
	there.Mutex("import").ForceUnlock(ctx) // another process takes the lock away
	<-work.Done()
	fmt.Println("lost:", errors.Is(context.Cause(work), relock.ErrLost))
	// Output: lost: true
}

func ExampleWithFencing() {
	here, there, stop := twoProcesses()
	defer stop()

	// The resource: it refuses a token that is lower than one that it has seen.
	highest := int64(0)
	write := func(token int64, text string) {
		if token < highest {
			fmt.Println("refused:", text)
			return
		}
		highest = token
		fmt.Println("written:", text)
	}

	slow := here.Mutex("document", relock.WithFencing())
	slow.Lock(ctx)

	// The holder is paused for so long that it loses the lock to another one…
	there.Mutex("document").ForceUnlock(ctx)
	next := there.Mutex("document", relock.WithFencing())
	next.Lock(ctx)
	write(next.FencingToken(), "by the next holder")

	// …and wakes up in the middle of a write.
	write(slow.FencingToken(), "by the paused one")
	// Output:
	// written: by the next holder
	// refused: by the paused one
}

func ExampleWithOwner() {
	locks, stop := oneProcess()
	defer stop()

	// Give every job an owner of its own: all that have its handle are that owner.
	m := locks.Mutex("upload:7", relock.WithOwner("job-7"))
	if err := m.Lock(ctx); err != nil {
		fmt.Println(err)
		return
	}
	unlocked := make(chan error, 1)
	go func() { unlocked <- m.Unlock() }() // another goroutine finishes the job
	fmt.Println(<-unlocked)
	// Output: <nil>
}

func ExampleWithOwnerFrom() {
	locks, stop := oneProcess()
	defer stop()

	ctx := relock.NewOwner(ctx) // where a request begins: handles made from this ctx have one owner
	m := locks.Mutex("cart:7", relock.WithOwnerFrom(ctx))
	fmt.Println(m.TryLock(ctx))
	tried := make(chan error)
	go func() {
		held, err := locks.Mutex("cart:7", relock.WithOwnerFrom(ctx)).TryLock(ctx)
		fmt.Println(held)
		tried <- err
	}()
	fmt.Println(<-tried)
	fmt.Println("levels:", m.HoldCount())
	// Output:
	// true <nil>
	// true
	// <nil>
	// levels: 2
}

func ExampleWithHooks() {
	locks, stop := oneProcess(relock.WithHooks(relock.Hooks{
		Acquired: func(e relock.Event) { fmt.Printf("%s acquired\n", e.Name) },
		Released: func(e relock.Event) { fmt.Printf("%s released, error: %v\n", e.Name, e.Err) },
		Lost:     func(e relock.Event) { fmt.Printf("%s lost: %v\n", e.Name, e.Err) },
	}))
	defer stop()

	m := locks.Mutex("report")
	m.Lock(ctx)
	m.Unlock()
	// Output:
	// report acquired
	// report released, error: <nil>
}

func ExampleMutex_State() {
	here, there, stop := twoProcesses()
	defer stop()
	there.Mutex("report").Lock(ctx)

	state, err := here.Mutex("report").State(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held by the other process:", strings.HasPrefix(state.Owner, there.ID()+":"))
	fmt.Println("levels:", state.Count)
	fmt.Println("expires:", state.TTL > 0)
	// Output:
	// held by the other process: true
	// levels: 1
	// expires: true
}

func ExampleMutex_ForceUnlock() {
	here, there, stop := twoProcesses()
	defer stop()
	there.Mutex("report").Lock(ctx) // and the process hangs

	m := here.Mutex("report")
	fmt.Println(m.ForceUnlock(ctx))
	fmt.Println(m.TryLock(ctx))
	// Output:
	// true <nil>
	// true <nil>
}
