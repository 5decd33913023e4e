package relock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// ringOf has each of n owners, each of its own client, hold one name and then wait for the next one's, in order.
// It returns the errors of the waits, and how long each took.
func ringOf(t *testing.T, addr string, n int, opts ...relock.ClientOption) (errs []error, took []time.Duration) {
	errs, took = make([]error, n), make([]time.Duration, n)
	var holding, all sync.WaitGroup
	holding.Add(n)
	for i := range n {
		c := relock.LocksOn(t, redistest.NewClient(t, addr), opts...)
		all.Go(func() {
			mine, next := c.Mutex(fmt.Sprint("lock-", i)), c.Mutex(fmt.Sprint("lock-", (i+1)%n))
			locktest.RequireLocked(t, mine)
			holding.Done()
			holding.Wait()
			time.Sleep(time.Duration(i) * 10 * time.Millisecond)
			began := time.Now()
			if errs[i] = next.Lock(t.Context()); errs[i] == nil {
				errs[i] = next.Unlock()
			}
			took[i] = time.Since(began)
			if err := mine.Unlock(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return errs, took
}

func TestDeadlock_LastWaitEndsAndNamesAllOwners(t *testing.T) {
	for _, n := range []int{2, 5} {
		t.Run(fmt.Sprint(n, " owners"), func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				errs, took := ringOf(t, b.Addr, n)
				for i, err := range errs[:n-1] {
					require.NoError(t, err, i)
				}
				last := errs[n-1]
				require.ErrorIs(t, last, relock.ErrDeadlock)
				for i := range n {
					require.ErrorContains(t, last, fmt.Sprintf("waits for %q, held by goroutine", fmt.Sprint("lock-", i)))
				}
				require.GreaterOrEqual(t, took[n-1], 5*time.Second)
				require.Less(t, took[n-1], 7*time.Second)
			})
		})
	}
}

func TestDeadlock_WithinOneClient(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		c := relock.LocksOn(t, b.Client(t), relock.WithDeadlockCheck(time.Second))
		holding := make(chan struct{})
		other := make(chan error)
		locktest.RequireLocked(t, c.Mutex("a"))
		go func() {
			locktest.RequireLocked(t, c.Mutex("b"))
			close(holding)
			err := c.Mutex("a").Lock(context.Background())
			other <- errors.Join(err, c.Mutex("a").Unlock(), c.Mutex("b").Unlock())
		}()
		<-holding
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		err := c.Mutex("b").Lock(t.Context())
		require.ErrorIs(t, err, relock.ErrDeadlock)
		require.Less(t, time.Since(began), 3*time.Second)
		require.NoError(t, c.Mutex("a").Unlock())
		require.NoError(t, <-other)
	})
}

func TestDeadlock_OfReadersAndAWriter(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		one, other := relock.LocksOn(t, b.Client(t)), relock.LocksOn(t, b.Client(t))
		locktest.RequireLocked(t, other.Mutex("m"))
		reader := make(chan error)
		reads := make(chan struct{})
		go func() { // it reads, and wants m
			rw := one.RWMutex("rw")
			if err := rw.RLock(context.Background()); err != nil {
				reader <- err
				return
			}
			close(reads)
			err := one.Mutex("m").Lock(context.Background())
			reader <- errors.Join(err, one.Mutex("m").Unlock(), rw.RUnlock())
		}()
		<-reads
		time.Sleep(100 * time.Millisecond)
		err := other.RWMutex("rw").Lock(t.Context()) // has m, and wants to write
		require.ErrorIs(t, err, relock.ErrDeadlock)
		require.NoError(t, other.Mutex("m").Unlock())
		require.NoError(t, <-reader)
	})
}

func TestDeadlock_MultiMutexIsInOne(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		multiInOne(t, b, "c")
	})
}

// multiInOne has a holder of "a" wait for "b", whose holder waits for "a" and with as one lock, and requires that the first
// wait ends as a deadlock.
func multiInOne(t *testing.T, b *redistest.Backend, with string) {
	t.Helper()
	one, other := relock.LocksOn(t, b.Client(t)), relock.LocksOn(t, b.Client(t))
	locktest.RequireLocked(t, one.Mutex("a"))
	waits, holds := make(chan error), make(chan struct{})
	go func() {
		m := other.Mutex("b")
		locktest.RequireLocked(t, m)
		close(holds)
		both := other.MultiMutex([]string{"a", with})
		err := both.Lock(context.Background())
		waits <- errors.Join(err, both.Unlock(), m.Unlock())
	}()
	<-holds
	time.Sleep(100 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	err := one.Mutex("b").Lock(ctx)
	require.NoError(t, one.Mutex("a").Unlock())
	require.NoError(t, <-waits)
	require.ErrorIs(t, err, relock.ErrDeadlock)
}

func TestDeadlock_ReportEndsNoWait(t *testing.T) {
	for name, opt := range map[string]func(i int) relock.MutexOption{
		"the user wants it so": func(int) relock.MutexOption { return relock.WithDeadlockReport() },
		"owners are shared":    func(i int) relock.MutexOption { return relock.WithOwner(fmt.Sprint("job-", i)) },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				found := make(chan relock.Event, 10)
				c := relock.LocksOn(t, b.Client(t), relock.WithHooks(relock.Hooks{Deadlock: func(e relock.Event) { found <- e }}))
				var all sync.WaitGroup
				for i := range 2 {
					all.Go(func() {
						mine := c.Mutex(fmt.Sprint("lock-", i), opt(i))
						locktest.RequireLocked(t, mine)
						time.Sleep(time.Second)
						next := c.Mutex(fmt.Sprint("lock-", 1-i), opt(i), relock.WithWaitTimeout(20*time.Second))
						err := next.Lock(t.Context())
						if err == nil {
							err = next.Unlock()
						} else if !errors.Is(err, relock.ErrTimeout) || errors.Is(err, relock.ErrDeadlock) {
							t.Error(err)
						} else {
							require.ErrorContains(t, err, "; deadlock: ")
							err = nil
						}
						if err := errors.Join(err, mine.Unlock()); err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				require.Len(t, found, 2, "each wait once")
				e := <-found
				require.ErrorIs(t, e.Err, relock.ErrDeadlock)
				require.InDelta(t, 6*time.Second, e.Elapsed, float64(time.Second))
			})
		})
	}
}

// A wait that has lasted for long is looked at less often, until a deadlock is in sight.
func TestDeadlock_WithAnOldWait(t *testing.T) {
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		one, other := relock.LocksOn(t, b.Client(t)), relock.LocksOn(t, b.Client(t))
		locktest.RequireLocked(t, one.Mutex("a"))
		old := make(chan error)
		go func() {
			locktest.RequireLocked(t, other.Mutex("b"))
			err := other.Mutex("a").Lock(context.Background())
			old <- errors.Join(err, other.Mutex("a").Unlock(), other.Mutex("b").Unlock())
		}()
		time.Sleep(10 * time.Minute)
		began := time.Now()
		require.ErrorIs(t, one.Mutex("b").Lock(t.Context()), relock.ErrDeadlock)
		require.Less(t, time.Since(began), 9*time.Second)
		require.NoError(t, one.Mutex("a").Unlock())
		require.NoError(t, <-old)
	})
}

// pair has two goroutines of c wait for each other, and requires that the second wait ends as a deadlock before most.
func pair(t *testing.T, c *relock.Client, most time.Duration) {
	t.Helper()
	holding, other := make(chan struct{}), make(chan error)
	locktest.RequireLocked(t, c.Mutex("b"))
	go func() {
		locktest.RequireLocked(t, c.Mutex("a"))
		close(holding)
		err := c.Mutex("b").Lock(context.Background())
		other <- errors.Join(err, c.Mutex("b").Unlock(), c.Mutex("a").Unlock())
	}()
	<-holding
	time.Sleep(100 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	err := c.Mutex("a").Lock(ctx)
	require.NoError(t, c.Mutex("b").Unlock())
	require.NoError(t, <-other)
	require.ErrorIs(t, err, relock.ErrDeadlock)
}

// The check of a client has nothing to do for a waiter that holds nothing, and yet must not sleep for long.
func TestDeadlock_BesideAWaiterThatHoldsNothing(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		c, other := relock.LocksOn(t, b.Client(t)), relock.LocksOn(t, b.Client(t))
		m := other.Mutex("z")
		locktest.RequireLocked(t, m)
		waits := make(chan error)
		go func() { waits <- c.Mutex("z").Do(context.Background(), func(context.Context) error { return nil }) }()
		time.Sleep(7 * time.Second)
		pair(t, c, 7*time.Second)
		locktest.RequireUnlocked(t, m)
		require.NoError(t, <-waits)
	})
}

func TestDeadlock_EndsBeforeItsHookReturns(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		release := make(chan struct{})
		c := relock.LocksOn(t, b.Client(t), relock.WithHooks(relock.Hooks{Deadlock: func(relock.Event) { <-release }}))
		pair(t, c, 7*time.Second)
		pair(t, c, 7*time.Second)
		close(release)
	})
}

// A TryLock that Redis does not answer for long ends all the same.
func TestDeadlock_TryLockIsInNone(t *testing.T) {
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		check := relock.WithDeadlockCheck(time.Second)
		one, other := relock.LocksOn(t, rdb, check), relock.LocksOn(t, b.Client(t), check)
		locktest.RequireLocked(t, one.Mutex("a"))
		owner := locktest.NewActor(t)
		owner.Locks(t, other.Mutex("b"))
		locktest.RequireLocked(t, other.Mutex("c"))
		checked := locktest.NewActor(t).Lock(t.Context(), one.Mutex("c")) // without a wait there is no check
		locktest.AwaitAsleep(t, relay, "c")                               // else the Lock could fail with the connection
		relay.LoseReply(locktest.RunsOf(protocol.AcquireScript).And(redistest.With("b"))).Always()
		waited := make(chan error, 1)
		go func() {
			time.Sleep(500 * time.Millisecond)
			waited <- <-owner.Lock(t.Context(), other.Mutex("a"))
		}()
		began := time.Now()
		_, err := one.Mutex("b").TryLock(t.Context())
		require.Error(t, err)
		require.Greater(t, time.Since(began), 5*time.Second, "long enough to be taken for a wait")
		locktest.RequireUnlocked(t, one.Mutex("a"))
		require.NoError(t, <-waited)
		locktest.RequireUnlocked(t, other.Mutex("c"))
		require.NoError(t, <-checked)
	})
}

func TestDeadlock_AmongManyOtherWaits(t *testing.T) {
	redistest.Slow(t)
	for _, x := range []struct {
		waits   int
		latency time.Duration // each way
	}{{210, 0}, {50, 5 * time.Millisecond}} { // the first are more than one check reads
		t.Run(fmt.Sprint(x.waits, x.latency), func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				relay := redistest.NewRelay(t, b.Addr)
				relay.Latency(x.latency)
				c := relock.LocksOn(t, redistest.NewClient(t, relay.Addr), relock.WithDeadlockCheck(time.Second))
				other := relock.LocksOn(t, b.Client(t))
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for i := range x.waits {
					locktest.RequireLocked(t, other.Mutex(fmt.Sprint("theirs-", i)))
					all.Go(func() {
						mine := c.Mutex(fmt.Sprint("mine-", i))
						locktest.RequireLocked(t, mine)
						_ = c.Mutex(fmt.Sprint("theirs-", i)).Lock(ctx)
						_ = mine.Unlock()
					})
				}
				time.Sleep(3 * time.Second)
				pair(t, c, 15*time.Second)
				cancel()
				all.Wait()
			})
		})
	}
}

// A ring of five is read one after the other, and takes as many answers.
func TestDeadlock_OverASlowLink(t *testing.T) {
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay := redistest.NewRelay(t, b.Addr)
		relay.Latency(100 * time.Millisecond) // each way
		errs, took := ringOf(t, relay.Addr, 5, relock.WithWaitTimeout(time.Minute))
		require.ErrorIs(t, errs[4], relock.ErrDeadlock)
		require.Less(t, took[4], 20*time.Second)
	})
}

// Somebody always has one of its names, and goes on. It gets none of them before it gets the other one.
func TestDeadlock_OfAMultiMutexWithABusyName(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		busy := relock.LocksOn(t, b.Client(t))
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				for ctx.Err() == nil {
					_ = busy.Mutex("hot").Do(ctx, func(context.Context) error {
						time.Sleep(100 * time.Millisecond)
						return nil
					})
				}
			})
		}
		multiInOne(t, b, "hot")
		cancel()
		all.Wait()
	})
}

// The holder waits for something else, which is in no deadlock.
func TestDeadlock_ChainOfWaitsIsNone(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		c := relock.LocksOn(t, b.Client(t))
		locktest.RequireLocked(t, c.Mutex("a"))
		middle := make(chan error)
		holds := make(chan struct{})
		go func() {
			m := c.Mutex("b")
			locktest.RequireLocked(t, m)
			close(holds)
			err := c.Mutex("a").Lock(context.Background())
			middle <- errors.Join(err, c.Mutex("a").Unlock(), m.Unlock())
		}()
		<-holds
		end := make(chan error)
		go func() {
			locktest.RequireLocked(t, c.Mutex("c"))
			defer func() { _ = c.Mutex("c").Unlock() }()
			end <- c.Mutex("b", relock.WithWaitTimeout(30*time.Second)).Lock(context.Background())
		}()
		err := <-end
		require.ErrorIs(t, err, relock.ErrTimeout)
		require.ErrorContains(t, err, `waits for "a"`, "what the holder waits for")
		require.NoError(t, c.Mutex("a").Unlock())
		require.NoError(t, <-middle)
	})
}

// Most waits are of owners that hold nothing, or are short: they send nothing more.
func TestDeadlock_CheckSendsNothingForMostWaits(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		c := relock.LocksOn(t, b.Client(t))
		locktest.RequireLocked(t, c.Mutex("a"))
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				locktest.RequireLocked(t, c.Mutex("mine"))
				_ = c.Mutex("a", relock.WithWaitTimeout(4*time.Second)).Lock(context.Background())
				if err := c.Mutex("mine").Unlock(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.Zero(t, b.Client(t).Exists(t.Context(), "relock_line_waits:{mine}").Val())
		require.NoError(t, c.Mutex("a").Unlock())
	})
}
