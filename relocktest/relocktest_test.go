package relocktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relocktest"
)

// onEachClock runs test with the time of the machine, and in a bubble.
func onEachClock(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Run("clock of the machine", test)
	t.Run("bubble", func(t *testing.T) { synctest.Test(t, test) })
}

// begin calls f in a goroutine.
func begin(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// contended returns an option that reports each Lock that has to wait.
func contended() (relock.ClientOption, <-chan relock.Event) {
	waits := make(chan relock.Event, 64)
	return relock.WithHooks(relock.Hooks{Contended: func(e relock.Event) { waits <- e }}), waits
}

// side is one side of a lock of some kind.
type side struct {
	lock    func(context.Context) error
	unlock  func() error
	context func(context.Context) context.Context
}

func sidesOf(c *relock.Client) map[string]side {
	sides := make(map[string]side)
	for kind, m := range map[string]*relock.Mutex{
		"Mutex": c.Mutex("name"), "FairMutex": c.FairMutex("name"), "MultiMutex": c.MultiMutex([]string{"name", "other"}),
	} {
		sides[kind] = side{m.Lock, m.Unlock, m.Context}
	}
	m := c.RWMutex("name")
	sides["RWMutex, to write"] = side{m.Lock, m.Unlock, m.Context}
	sides["RWMutex, to read"] = side{m.RLock, m.RUnlock, m.RContext}
	return sides
}

func TestLose_HolderIsNotifiedAtOnceWhateverTheKind(t *testing.T) {
	onEachClock(t, func(t *testing.T) {
		c := relocktest.New(t, relock.WithPrefix("app:"))
		for kind, m := range sidesOf(c) {
			require.NoError(t, m.lock(t.Context()), kind)
			ctx := m.context(t.Context())
			require.NoError(t, ctx.Err(), kind)
			relocktest.Lose(t, c, "name")
			require.ErrorIs(t, context.Cause(ctx), relock.ErrLost, kind)
			require.ErrorIs(t, m.unlock(), relock.ErrLost, kind)
			require.NoError(t, m.lock(t.Context()), kind)
			require.NoError(t, m.unlock(), kind)
		}
	})
}

func TestLose_NextWaiterGetsTheLock(t *testing.T) {
	onEachClock(t, func(t *testing.T) {
		hooks, waits := contended()
		c := relocktest.New(t, hooks)
		m := c.Mutex("name")
		require.NoError(t, m.Lock(t.Context()))
		waiting := begin(func() error { return m.Do(t.Context(), func(context.Context) error { return nil }) })
		redistest.Receive(t, waits)
		relocktest.Lose(t, c, "name")
		require.NoError(t, redistest.Receive(t, waiting))
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
	})
}

func TestHoldElsewhere_IsAwaitedUntilItsRelease(t *testing.T) {
	onEachClock(t, func(t *testing.T) {
		hooks, waits := contended()
		c := relocktest.New(t, hooks, relock.WithPrefix("app:"), relock.WithFencing())
		release := relocktest.HoldElsewhere(t, c, "name")
		m := c.Mutex("name")
		held, err := m.TryLock(t.Context())
		require.NoError(t, err)
		require.False(t, held)
		state, err := m.State(t.Context())
		require.NoError(t, err)
		require.Contains(t, state.Owner, ":elsewhere")

		waiting := begin(func() error {
			return m.Do(t.Context(), func(context.Context) error {
				if m.FencingToken() <= state.FencingToken {
					return errors.New("the token has not risen")
				}
				return nil
			})
		})
		redistest.Receive(t, waits)
		require.Empty(t, waiting)
		release()
		require.NoError(t, redistest.Receive(t, waiting))
		release() // to no effect
	})
}

func TestHoldElsewhere_MayFollowALossAtOnce(t *testing.T) {
	onEachClock(t, func(t *testing.T) {
		c := relocktest.New(t)
		m := c.Mutex("name")
		require.NoError(t, m.Lock(t.Context()))
		relocktest.Lose(t, c, "name")
		release := relocktest.HoldElsewhere(t, c, "name")
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
		held, err := m.TryLock(t.Context())
		require.NoError(t, err)
		require.False(t, held)
		relocktest.Lose(t, c, "name") // the other process, too
		release()                     // which is no error then
		require.NoError(t, m.Lock(t.Context()))
	})
}

// optionsOfLeases are options that bound how long a lock is held.
var optionsOfLeases = map[string][]relock.ClientOption{
	"by default":            nil,
	"with a fixed lease":    {relock.WithoutRenewal(), relock.WithTTL(time.Second)},
	"with a bound":          {relock.WithMaxHold(time.Minute)},
	"with other intervals":  {relock.WithTTL(time.Second), relock.WithRenewInterval(100 * time.Millisecond)},
	"with an unlock's time": {relock.WithUnlockTimeout(time.Second)},
}

func TestHoldElsewhere_LastsAsLongAsTheTest(t *testing.T) {
	redistest.Slow(t)
	for name, opts := range optionsOfLeases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := relocktest.New(t, opts...)
				relocktest.HoldElsewhere(t, c, "name")
				time.Sleep(time.Hour)
				relocktest.Outage(t, c, time.Hour)
				time.Sleep(2 * time.Hour)
				held, err := c.Mutex("name").TryLock(t.Context())
				require.NoError(t, err)
				require.False(t, held)
			})
		})
	}
}

func TestHoldElsewhere_ReleaseWaitsForTheEndOfAnOutage(t *testing.T) {
	redistest.Slow(t)
	for name, opts := range optionsOfLeases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := relocktest.New(t, opts...)
				release := relocktest.HoldElsewhere(t, c, "name")
				relocktest.Outage(t, c, 10*time.Minute)
				began := time.Now()
				release()
				require.Equal(t, 10*time.Minute, time.Since(began).Round(time.Minute))
				require.NoError(t, c.Mutex("name").Lock(t.Context()))
			})
		})
	}
}

func TestLease_EndsAsTimePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := relocktest.New(t)
		rdb := relocktest.Redis(t, c)
		require.NoError(t, rdb.Set(t.Context(), "data", "x", time.Minute).Err())
		m, fixed := c.Mutex("name"), c.Mutex("fixed", relock.WithoutRenewal())
		require.NoError(t, m.Lock(t.Context()))
		require.NoError(t, fixed.Lock(t.Context()))
		time.Sleep(time.Hour)
		require.Zero(t, rdb.Exists(t.Context(), "data", "fixed").Val())
		require.ErrorIs(t, fixed.Unlock(), relock.ErrLost)
		require.NoError(t, m.Unlock(), "renewed all along")
	})
}

func TestClient_AnotherOnTheSameRedisIsAnotherProcess(t *testing.T) {
	onEachClock(t, func(t *testing.T) {
		c := relocktest.New(t)
		other, err := relock.New(relocktest.Redis(t, c), relock.WithTTL(300*time.Millisecond))
		require.NoError(t, err)
		defer other.Close()
		m := other.Mutex("name")
		require.NoError(t, m.Lock(t.Context()))
		held, err := c.Mutex("name").TryLock(t.Context())
		require.NoError(t, err)
		require.False(t, held)
		ctx := m.Context(t.Context())
		relocktest.Lose(t, c, "name") // found out at the next renewal
		redistest.Receive(t, ctx.Done())
		require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
	})
}

func TestClient_TwoHaveNothingInCommon(t *testing.T) {
	onEachClock(t, func(t *testing.T) {
		a, b := relocktest.New(t), relocktest.New(t)
		require.NoError(t, a.Mutex("name").Lock(t.Context()))
		require.NoError(t, b.Mutex("name").Lock(t.Context()))
		relocktest.Lose(t, a, "name")
		relocktest.Outage(t, a, time.Hour)
		require.ErrorIs(t, a.Mutex("name").Unlock(), relock.ErrLost)
		require.NoError(t, b.Mutex("name").Unlock())
	})
}

func TestOutage_ShorterThanTheLeaseLosesNoHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := relocktest.New(t)
		m := c.Mutex("name")
		require.NoError(t, m.Lock(t.Context()))
		ctx := m.Context(t.Context())
		for range 10 {
			relocktest.Outage(t, c, 15*time.Second)
			time.Sleep(time.Minute)
			require.NoError(t, ctx.Err())
		}
		require.NoError(t, m.Unlock())
	})
}

func TestOutage_LongerThanTheLeaseLosesTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := relocktest.New(t)
		m := c.Mutex("name")
		require.NoError(t, m.Lock(t.Context()))
		ctx := m.Context(t.Context())
		relocktest.Outage(t, c, time.Minute)
		relocktest.Outage(t, c, time.Second) // which does not make it shorter
		began := time.Now()
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
		require.LessOrEqual(t, time.Since(began), 30*time.Second)
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
		require.Error(t, m.Lock(t.Context()))
		require.Less(t, time.Since(began), time.Minute, "it does not wait for the end of the outage")
		relocktest.Outage(t, c, time.Hour) // but that may come later
		time.Sleep(time.Minute)
		require.Error(t, m.Lock(t.Context()))
		time.Sleep(time.Hour)
		require.NoError(t, m.Lock(t.Context()))
		require.NoError(t, m.Unlock())
	})
}

func TestOutage_WaiterRidesItOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hooks, waits := contended()
		c := relocktest.New(t, hooks)
		release := relocktest.HoldElsewhere(t, c, "name")
		m := c.Mutex("name")
		waiting := begin(func() error { return m.Do(t.Context(), func(context.Context) error { return nil }) })
		<-waits
		time.Sleep(time.Second)
		relocktest.Outage(t, c, 20*time.Second)
		time.Sleep(time.Minute)
		require.Empty(t, waiting)
		release()
		require.NoError(t, <-waiting)
	})
}

// Redis has ended many connections, and none of them costs a command afterwards.
func TestOutage_LeavesNothingAfterItsEnd(t *testing.T) {
	onEachClock(t, func(t *testing.T) {
		c := relocktest.New(t)
		rdb := relocktest.Redis(t, c)
		all, begun := make(chan struct{}), make(chan error)
		for range 20 { // that have a connection each
			go func() {
				conn := rdb.Conn()
				defer conn.Close()
				begun <- conn.Ping(t.Context()).Err()
				<-all
			}()
		}
		for range 20 {
			require.NoError(t, <-begun)
		}
		close(all)
		redistest.Eventually(t, "all connections to be idle", func() bool { return rdb.PoolStats().IdleConns >= 20 })
		relocktest.Outage(t, c, 10*time.Millisecond)
		for range 20 {
			require.NoError(t, rdb.Ping(t.Context()).Err())
			require.NoError(t, c.Mutex("name").Do(t.Context(), func(context.Context) error { return nil }))
		}
	})
}

// The cleanup of the test must not wait for the end of the outage, nor stop the clock of the bubble.
func TestOutage_TestMayEndInOne(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, c *relock.Client){
		"idle":   func(*testing.T, *relock.Client) {},
		"held":   func(t *testing.T, c *relock.Client) { require.NoError(t, c.Mutex("name").Lock(t.Context())) },
		"closed": func(_ *testing.T, c *relock.Client) { _ = c.Close() },
		"waited for": func(t *testing.T, c *relock.Client) {
			relocktest.HoldElsewhere(t, c, "name")
			waiting := begin(func() error { return c.Mutex("name").Lock(context.WithoutCancel(t.Context())) })
			t.Cleanup(func() { _ = c.Close(); <-waiting })
		},
	} {
		for _, pause := range []time.Duration{0, time.Millisecond, time.Second, 7 * time.Second, time.Minute} {
			t.Run(name+" for "+pause.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := relocktest.New(t)
					prepare(t, c)
					relocktest.Outage(t, c, time.Hour)
					time.Sleep(pause)
				})
			})
			t.Run(name+", then closed after "+pause.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := relocktest.New(t)
					prepare(t, c)
					relocktest.Outage(t, c, time.Hour)
					locking := make(chan error, 1)
					go func() { locking <- c.Mutex("other").Lock(context.WithoutCancel(t.Context())) }()
					time.Sleep(pause)
					_ = c.Close()
					require.Error(t, <-locking)
				})
			})
		}
	}
}

func TestOutage_TestEndsAtOnceInOne(t *testing.T) {
	began := time.Now()
	t.Run("test", func(t *testing.T) {
		c := relocktest.New(t)
		require.NoError(t, c.Mutex("name").Lock(t.Context()))
		relocktest.HoldElsewhere(t, c, "other")
		relocktest.Outage(t, c, time.Hour)
	})
	require.Less(t, time.Since(began), 10*time.Second)
}

// A goroutine that waits for the Close of another must not stop the clock of the bubble.
func TestBubble_SeveralGoroutinesMayCloseAClient(t *testing.T) {
	redistest.Slow(t)
	synctest.Test(t, func(t *testing.T) {
		c := relocktest.New(t, relock.WithTTL(time.Second))
		require.NoError(t, c.Mutex("name").Lock(t.Context()))
		relocktest.Outage(t, c, time.Hour)
		first, second := begin(c.Close), begin(c.Close)
		err := <-first
		require.Error(t, err)
		require.Equal(t, err, <-second)
	})
}

// A Lock that gives up waits for its hook. That must not stop the clock of the bubble either.
func TestBubble_LockMayEndWhileItsHookSleeps(t *testing.T) {
	redistest.Slow(t)
	onEachClock(t, func(t *testing.T) {
		failures := make(chan relock.Event, 2)
		ctx, giveUp := context.WithCancel(t.Context())
		c := relocktest.New(t, relock.WithHooks(relock.Hooks{
			Contended: func(relock.Event) {
				giveUp()
				time.Sleep(200 * time.Millisecond)
			},
			Failed: func(e relock.Event) { failures <- e },
		}))
		relocktest.HoldElsewhere(t, c, "name")
		require.ErrorIs(t, c.Mutex("name", relock.WithOwner("job-17")).Lock(ctx), context.Canceled)
		require.True(t, (<-failures).Waited)
	})
}
