package relock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

func TestDo_RunsTheBodyLockedAndUnlocks(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := LocksOn(t, rdb)
		m := c.Mutex(key)
		type mark struct{}
		var inside context.Context
		err := m.Do(context.WithValue(t.Context(), mark{}, "kept"), func(ctx context.Context) error {
			inside = ctx
			require.Equal(t, 1, m.HoldCount())
			locktest.RequireOnRedis(t, rdb, key, locktest.FieldOf(c), 1)
			require.NoError(t, ctx.Err())
			require.Equal(t, "kept", ctx.Value(mark{}))
			return m.Do(ctx, func(ctx context.Context) error {
				require.Equal(t, 2, m.HoldCount())
				return ctx.Err()
			})
		})
		require.NoError(t, err)
		require.ErrorIs(t, inside.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(inside), ErrReleased)
		require.Zero(t, m.HoldCount())
		locktest.RequireFree(t, rdb, key)
	})
}

func TestDo_ContextEndsWithTheBodyEvenIfTheHoldGoesOn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		m := LocksOn(t, b.Client(t)).Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		outer := m.Context(t.Context())
		var inner context.Context
		require.NoError(t, m.Do(t.Context(), func(ctx context.Context) error {
			inner = ctx
			return nil
		}))
		require.ErrorIs(t, context.Cause(inner), ErrReleased)
		require.ErrorIs(t, inner.Err(), context.Canceled)
		require.NoError(t, outer.Err())
		locktest.RequireUnlocked(t, m)
	})
}

func TestDo_UnlocksWhenTheBodyPanics(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		m := LocksOn(t, rdb).Mutex(key)
		require.PanicsWithValue(t, "bad day", func() {
			_ = m.Do(t.Context(), func(context.Context) error { panic("bad day") })
		})
		require.Zero(t, m.HoldCount())
		locktest.RequireFree(t, rdb, key)
	})
}

func TestDo_UnlocksWhenTheBodyEndsItsGoroutine(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := LocksOn(t, rdb)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = c.Mutex(key).Do(t.Context(), func(context.Context) error {
				runtime.Goexit()
				return nil
			})
		}()
		redistest.Receive(t, ended)
		locktest.RequireFree(t, rdb, key)
		require.Zero(t, NamesOf(c))
	})
}

func TestDo_JoinsTheErrorsOfBodyAndUnlock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		m := LocksOn(t, rdb).Mutex(key)
		failed := errors.New("the body failed")
		err := m.Do(t.Context(), func(context.Context) error { return failed })
		require.Equal(t, failed, err, "a single error is left as it is")

		err = m.Do(t.Context(), func(context.Context) error {
			require.NoError(t, rdb.Del(context.Background(), key).Err())
			return failed
		})
		require.ErrorIs(t, err, failed)
		require.ErrorIs(t, err, ErrLost)

		err = m.Do(t.Context(), func(context.Context) error {
			require.NoError(t, rdb.Del(context.Background(), key).Err())
			return nil
		})
		require.ErrorIs(t, err, ErrLost, "the loss alone is an error, too")
		locktest.RequireFree(t, rdb, key)
	})
}

func TestDo_DoesNotRunTheBodyWithoutTheLock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		locktest.HeldByAnother(t, rdb, key, time.Minute)
		c := LocksOn(t, rdb)
		body := func(context.Context) error {
			require.Fail(t, "the body ran")
			return nil
		}
		err := c.Mutex(key, WithWaitTimeout(20*time.Millisecond)).Do(t.Context(), body)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, c.Mutex("").Do(t.Context(), body), ErrInvalidName)
		require.ErrorIs(t, c.Mutex(key).Do(t.Context(), nil), ErrInvalidOption)
		locktest.RequireOnRedis(t, rdb, key, "another:1", 1)
	})
}

func TestContext_EndsWithTheLastUnlock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		m := LocksOn(t, b.Client(t)).Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		first := m.Context(t.Context())
		locktest.RequireLocked(t, m)
		second := m.Context(t.Context())
		locktest.RequireUnlocked(t, m)
		require.NoError(t, first.Err())
		require.NoError(t, second.Err())
		locktest.RequireUnlocked(t, m)
		for _, ctx := range []context.Context{first, second} {
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			require.ErrorIs(t, context.Cause(ctx), ErrReleased)
			require.NotErrorIs(t, context.Cause(ctx), ErrLost)
			redistest.Receive(t, ctx.Done())
		}
		require.NoError(t, m.Lock(t.Context()), "a new hold")
		require.Error(t, first.Err(), "does not revive the context of the old one")
		require.NoError(t, m.Context(t.Context()).Err())
		locktest.RequireUnlocked(t, m)
	})
}

func TestContext_HasEndedIfTheOwnerHoldsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c, key, other := LocksOn(t, b.Client(t)), redistest.Key(t), locktest.NewActor(t)
		m := c.Mutex(key)
		other.Locks(t, m)
		for _, m := range []*Mutex{m, c.MultiMutex([]string{key, key + "-b"}), c.Mutex(key, WithOwner("job-17"))} {
			ctx := m.Context(t.Context())
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			require.ErrorIs(t, context.Cause(ctx), ErrNotHeld)
		}
		require.ErrorIs(t, context.Cause(c.Mutex("").Context(t.Context())), ErrInvalidName)
		other.Unlocks(t, m)
	})
}

func TestContext_EndsWithItsParent(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		m := LocksOn(t, b.Client(t)).Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		reason := errors.New("the request was withdrawn")
		parent, cancel := context.WithCancelCause(t.Context())
		ctx := m.Context(parent)
		below, done := context.WithTimeout(ctx, time.Hour)
		defer done()
		cancel(reason)
		redistest.Receive(t, ctx.Done())
		redistest.Receive(t, below.Done())
		require.ErrorIs(t, context.Cause(ctx), reason)
		require.ErrorIs(t, context.Cause(below), reason)
		require.Equal(t, 1, m.HoldCount(), "the hold goes on")
		h := holdsOn(m.session, m.Name())[0]
		redistest.Eventually(t, "the hold to forget the context", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.contexts.len() == 0
		})
		locktest.RequireUnlocked(t, m)
	})
}

func TestContext_OfALostHoldEndsWithErrLost(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		m := LocksOn(t, rdb, WithTTL(time.Second), WithRenewInterval(20*time.Millisecond)).Mutex(key)
		locktest.RequireLocked(t, m)
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		redistest.Receive(t, ctx.Done())
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.ErrorContains(t, context.Cause(ctx), key)
		require.ErrorIs(t, context.Cause(m.Context(t.Context())), ErrLost)
		require.Zero(t, m.HoldCount())
		require.ErrorIs(t, m.Lock(t.Context()), ErrLost, "unwind first")
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, ErrLost)
		require.ErrorIs(t, m.Unlock(), ErrLost)
		require.ErrorIs(t, m.Lock(t.Context()), ErrLost, "one level is left")
		require.ErrorIs(t, m.Unlock(), ErrLost)
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
	})
}

func TestContext_EndsWithTheClient(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := LocksOn(t, rdb)
		m := c.Mutex(key)
		locktest.RequireLocked(t, m)
		ctx := m.Context(t.Context())
		require.NoError(t, c.Close())
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(ctx), ErrClosed)
		require.ErrorIs(t, m.Unlock(), ErrClosed)
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
		locktest.RequireFree(t, rdb, key)
	})
}

// The end of a hold is recorded here before Redis is notified, or another process might work
// under the lock while ours still does.
func TestContext_EndsBeforeRedisIsNotifiedOfTheRelease(t *testing.T) {
	ends := map[string]struct {
		end   func(t *testing.T, c *Client, m *Mutex)
		sends *redisexec.Script
		cause error
	}{
		"unlock": {func(t *testing.T, _ *Client, m *Mutex) { locktest.RequireUnlocked(t, m) }, protocol.ReleaseScript, ErrReleased},
		"hand-over": {func(t *testing.T, c *Client, m *Mutex) {
			HandOver(t, c, m, m)
		}, protocol.RenameScript, ErrReleased},
		"hand-over with a token": {func(t *testing.T, c *Client, m *Mutex) {
			HandOver(t, c, m, c.Mutex(m.Name(), WithFencing()))
		}, protocol.RenameScript, ErrReleased},
		"close": {func(t *testing.T, c *Client, _ *Mutex) { require.NoError(t, c.Close()) }, protocol.ReleaseScript, ErrClosed},
		"force": {func(t *testing.T, _ *Client, m *Mutex) {
			_, err := m.ForceUnlock(t.Context())
			require.NoError(t, err)
		}, protocol.ForceScript, ErrLost},
	}
	for name, test := range ends {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				relay, rdb := locktest.RelayedTo(t, b)
				c := LocksOn(t, rdb)
				m := c.Mutex(redistest.Key(t))
				locktest.RequireLocked(t, m)
				ctx := m.Context(t.Context())
				causes := make(chan error, 1)
				relay.Before(locktest.RunsOf(test.sends), func(redistest.Command) {
					if ctx.Err() == nil {
						causes <- nil
						return
					}
					causes <- context.Cause(ctx)
				})
				test.end(t, c, m)
				require.ErrorIs(t, redistest.Receive(t, causes), test.cause)
			})
		})
	}
}

// A watchdog that has to wait for many contexts that end together comes too late.
func TestContext_EndingDoesNotKeepTheWatchdogWaiting(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		m := LocksOn(t, b.Client(t)).Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		kept := m.Context(t.Context())
		h, end := m.withContexts(t, 1000)
		h.mu.Lock() // as the watchdog does
		end()
		redistest.Eventually(t, "the others are forgotten", func() bool { return h.contexts.len() == 1 })
		h.mu.Unlock()
		require.NoError(t, kept.Err())
		locktest.RequireUnlocked(t, m)
		require.ErrorIs(t, context.Cause(kept), ErrReleased)
	})
}

// withContexts makes n contexts of the hold of m, and returns what ends them.
func (m *Mutex) withContexts(tb testing.TB, n int) (h *hold, end context.CancelFunc) {
	parent, end := context.WithCancel(tb.Context())
	for range n {
		m.Context(parent)
	}
	return holdsOn(m.session, m.target.Keys[0])[0], end
}

// BenchmarkContextsThatEndTogether is the time until a hold has forgotten so many contexts, and
// how often it was lost meanwhile.
func BenchmarkContextsThatEndTogether(b *testing.B) {
	for _, n := range []int{5000, 50_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m, lost, took := LocksOn(b, redistest.Redis(b).Client(b)).Mutex(redistest.Key(b), WithTTL(time.Second)), 0, time.Duration(0)
			b.ReportAllocs()
			for range b.N {
				if err := m.Lock(b.Context()); err != nil {
					b.Fatal(err)
				}
				h, end := m.withContexts(b, n)
				began := time.Now()
				end()
				for h.contexts.len() > 0 {
					time.Sleep(locktest.LookEvery)
				}
				took += time.Since(began)
				if m.Unlock() != nil {
					lost++
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ms/ending")
			b.ReportMetric(float64(lost)/float64(b.N), "lost/op")
		})
	}
}
