package relock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// hookCalls are the ways in which a hook is called, each with a test that has it called.
var hookCalls = []struct {
	name  string
	hooks func(hook func(relock.Event)) relock.Hooks
	test  func(b *kindBench, hook relock.MutexOption)
}{
	{"Acquired", acquiredIs, func(b *kindBench, hook relock.MutexOption) { b.me.Begin(b.locking(hook)) }},
	{"Acquired, of a fixed owner", acquiredIs, func(b *kindBench, hook relock.MutexOption) {
		b.me.Begin(b.locking(hook, relock.WithOwner("job")))
	}},
	{"Contended", contendedIs, func(b *kindBench, hook relock.MutexOption) {
		b.me.Locks(b.t, b.another())
		b.you.Begin(b.locking(hook))
	}},
	{"Contended, of a fixed owner", contendedIs, func(b *kindBench, hook relock.MutexOption) {
		b.me.Locks(b.t, b.another())
		b.you.Begin(b.locking(hook, relock.WithOwner("job")))
	}},
	{"Failed", failedIs, func(b *kindBench, hook relock.MutexOption) {
		b.me.Locks(b.t, b.another())
		b.you.Begin(b.locking(hook, relock.WithWaitTimeout(20*time.Millisecond)))
	}},
	{"Failed, of a fixed owner", failedIs, func(b *kindBench, hook relock.MutexOption) {
		b.me.Locks(b.t, b.another())
		b.you.Begin(b.locking(hook, relock.WithOwner("job"), relock.WithWaitTimeout(20*time.Millisecond)))
	}},
	{"Released", releasedIs, func(b *kindBench, hook relock.MutexOption) {
		b.me.Locks(b.t, b.mutex(hook))
		b.me.Begin(b.mutex(hook).Unlock)
	}},
	{"Released, by Close", releasedIs, func(b *kindBench, hook relock.MutexOption) {
		b.me.Locks(b.t, b.mutex(hook))
		b.you.Begin(b.c.Close)
	}},
	{"Renewed", renewedIs, func(b *kindBench, hook relock.MutexOption) {
		b.me.Locks(b.t, b.mutex(hook, relock.WithRenewInterval(20*time.Millisecond)))
	}},
	{"Lost, in a renewal", lostIs, func(b *kindBench, hook relock.MutexOption) {
		b.me.Locks(b.t, b.mutex(hook, relock.WithRenewInterval(20*time.Millisecond)))
		b.on(func(rdb redis.UniversalClient) bool { return rdb.Del(b.t.Context(), b.key).Err() == nil })
	}},
	{"Lost, in a call", lostIs, func(b *kindBench, hook relock.MutexOption) {
		b.me.Locks(b.t, b.mutex(hook))
		b.me.Begin(func() error {
			_, err := b.mutex().ForceUnlock(b.t.Context())
			return err
		})
	}},
}

func acquiredIs(hook func(relock.Event)) relock.Hooks { return relock.Hooks{Acquired: hook} }

func contendedIs(hook func(relock.Event)) relock.Hooks { return relock.Hooks{Contended: hook} }

func failedIs(hook func(relock.Event)) relock.Hooks { return relock.Hooks{Failed: hook} }

func releasedIs(hook func(relock.Event)) relock.Hooks { return relock.Hooks{Released: hook} }

func renewedIs(hook func(relock.Event)) relock.Hooks { return relock.Hooks{Renewed: hook} }

func lostIs(hook func(relock.Event)) relock.Hooks { return relock.Hooks{Lost: hook} }

// locking is a Lock, which may fail.
func (b *kindBench) locking(opts ...relock.MutexOption) func() error {
	m := b.mutex(opts...)
	return func() error { return m.Lock(b.t.Context()) }
}

// In the case of "Released, by Close" the client is closed, by another Close.
func TestClose_InAHookReturnsAnErrorAtOnceAndClosesNothing(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for _, from := range hookCalls {
		t.Run(from.name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
				b := newKindBench(t, backend, k)
				closed := make(chan error, 100)
				hook := relock.WithHooks(from.hooks(func(relock.Event) { closed <- b.c.Close() }))
				from.test(b, hook)
				err := redistest.Receive(t, closed)
				require.ErrorIs(t, err, relock.ErrUnsupported)
				require.ErrorContains(t, err, "Close in a hook")
				if from.name != "Released, by Close" {
					locktest.RequireLocked(t, b.c.Mutex(b.key+"-other"))
				}
				require.NoError(t, b.c.Close(), "outside")
			})
		})
	}
}

// The hook locks another name, whose hook is called while the first one runs.
func TestClose_InAHookAfterAnotherHookWasCalledInItIsAnError(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		key := redistest.Key(t)
		var c *relock.Client
		closed := make(chan error, 1)
		c = relock.LocksOn(t, b.Client(t), relock.WithHooks(acquiredIs(func(e relock.Event) {
			if e.Name == key {
				locktest.RequireLocked(t, c.Mutex(key+"-other"))
				closed <- c.Close()
			}
		})))
		locktest.RequireLocked(t, c.Mutex(key))
		require.ErrorIs(t, redistest.Receive(t, closed), relock.ErrUnsupported)
		require.NoError(t, c.Close(), "after the hook")
	})
}

func TestClose_InAHookOfAnotherClientCloses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		closed := make(chan error, 1)
		other := relock.LocksOn(t, rdb)
		c := relock.LocksOn(t, rdb, relock.WithHooks(acquiredIs(func(relock.Event) { closed <- other.Close() })))
		locktest.RequireLocked(t, c.Mutex(key))
		require.NoError(t, redistest.Receive(t, closed))
		require.ErrorIs(t, other.Mutex(key).Lock(t.Context()), relock.ErrClosed)
	})
}

// As the documentation advises.
func TestClose_OnGoroutinesThatHooksOfManyHoldsStartCloses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		const n = 20
		rdb, keys := b.Client(t), locktest.NamesFrom(redistest.Key(t), n)
		var c *relock.Client
		closed := make(chan time.Duration, n)
		c = relock.LocksOn(t, rdb, relock.WithRenewInterval(50*time.Millisecond), relock.WithHooks(lostIs(func(relock.Event) {
			go func() {
				began := time.Now()
				_ = c.Close()
				closed <- time.Since(began)
			}()
		})))
		for _, key := range keys {
			locktest.RequireLocked(t, c.Mutex(key))
		}
		require.NoError(t, rdb.Del(t.Context(), keys...).Err())
		require.Less(t, redistest.Receive(t, closed), soonClosed)
		require.ErrorIs(t, c.Mutex(keys[0]).Lock(t.Context()), relock.ErrClosed)
	})
}
