package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/pagetest"
	"github.com/relock-go/relock/internal/redistest"
)

// The code of docs/migrating.md, old and new, and what it says of a name that both use. It is here
// because this module has the other libraries.

func bothLocks(ctx context.Context, old *redsync.Mutex, m *relock.Mutex, work func(context.Context) error) (err error) {
	if err := old.LockContext(ctx); err != nil {
		return err
	}
	defer func() { // whatever happens to the new lock, the old one is released
		_, unlockErr := old.UnlockContext(context.WithoutCancel(ctx))
		err = errors.Join(err, unlockErr)
	}()
	return m.Do(ctx, work) // m has another name than old
}

func beforeFromRedsync(ctx context.Context, rdb *redis.Client, ship func(context.Context) error) error {
	rs := redsync.New(goredis.NewPool(rdb))
	m := rs.NewMutex("orders:42", redsync.WithExpiry(30*time.Second), redsync.WithTries(100))
	if err := m.LockContext(ctx); err != nil {
		return err
	}
	defer m.UnlockContext(ctx)
	return ship(ctx) // must be over before m.Until(), or call m.Extend
}

func afterFromRedsync(ctx context.Context, rdb *redis.Client, ship func(context.Context) error) error {
	locks, err := relock.New(rdb, relock.WithTTL(30*time.Second))
	if err != nil {
		return err
	}
	defer locks.Close()
	return locks.Mutex("orders:42").Do(ctx, ship) // as long as it takes
}

func beforeFromRedislock(ctx context.Context, rdb *redis.Client, ship func(context.Context) error) error {
	locker := redislock.New(rdb)
	lock, err := locker.Obtain(ctx, "orders:42", 30*time.Second, &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond),
	})
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	return ship(ctx) // must be over in 30 s, or call lock.Refresh
}

func afterFromRedislock(ctx context.Context, rdb *redis.Client, ship func(context.Context) error) error {
	locks, err := relock.New(rdb)
	if err != nil {
		return err
	}
	defer locks.Close()
	return locks.Mutex("orders:42", relock.WithWaitTimeout(30*time.Second)).Do(ctx, ship)
}

func beforeFromRueidislock(ctx context.Context, addr string, ship func(context.Context) error) error {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyMajority: 1, NoLoopTracking: true,
	})
	if err != nil {
		return err
	}
	defer locker.Close()
	held, release, err := locker.WithContext(ctx, "orders:42")
	if err != nil {
		return err
	}
	defer release()
	return ship(held)
}

func afterFromRueidislock(ctx context.Context, addr string, ship func(context.Context) error) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locks, err := relock.New(rdb)
	if err != nil {
		return err
	}
	defer locks.Close()
	return locks.Mutex("orders:42").Do(ctx, ship)
}

var errBusy = errors.New("busy")

func beforeFromCounter(ctx context.Context, rdb *redis.Client, call func(context.Context) error) error {
	n, err := rdb.Incr(ctx, "llm:count").Result()
	if err != nil {
		return err
	}
	defer rdb.Decr(context.WithoutCancel(ctx), "llm:count") // does not run if the process is killed
	if n > 20 {
		return errBusy // the caller polls
	}
	return call(ctx)
}

func afterFromCounter(ctx context.Context, rdb *redis.Client, call func(context.Context) error) error {
	locks, err := relock.New(rdb)
	if err != nil {
		return err
	}
	defer locks.Close()
	return locks.Semaphore("llm", 20).Do(ctx, call) // waits in line; call's ctx ends if the permit is lost
}

func bothCounts(ctx context.Context, old func(context.Context, func(context.Context) error) error, sem *relock.Semaphore, work func(context.Context) error) error {
	return old(ctx, func(ctx context.Context) error { return sem.Do(ctx, work) })
}

// tryOf tries once to take the name of the examples with relock.
func tryOf(t *testing.T, rdb *redis.Client) (bool, error) {
	t.Helper()
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	defer locks.Close()
	return locks.Mutex("orders:42").TryLock(t.Context())
}

// migration is the old and the new code of one library, and what becomes of one name in both.
type migration struct {
	before, after func(context.Context, func(context.Context) error) error
	tryOld        func(context.Context) error // tries once to take the name as old code does
	shared        bool                        // the sides keep each other out
}

func migrations(t *testing.T, server *redistest.Server) map[string]migration {
	rdb := server.Client(t)
	on := func(code func(context.Context, *redis.Client, func(context.Context) error) error) func(context.Context, func(context.Context) error) error {
		return func(ctx context.Context, work func(context.Context) error) error { return code(ctx, rdb, work) }
	}
	return map[string]migration{
		"redsync": {on(beforeFromRedsync), on(afterFromRedsync), func(ctx context.Context) error {
			return redsync.New(goredis.NewPool(rdb)).NewMutex("orders:42").TryLockContext(ctx)
		}, true},
		"redislock": {on(beforeFromRedislock), on(afterFromRedislock), func(ctx context.Context) error {
			_, err := redislock.Obtain(ctx, rdb, "orders:42", time.Second, nil)
			return err
		}, true},
		"rueidislock": {
			func(ctx context.Context, work func(context.Context) error) error {
				return beforeFromRueidislock(ctx, server.Addr, work)
			},
			func(ctx context.Context, work func(context.Context) error) error {
				return afterFromRueidislock(ctx, server.Addr, work)
			},
			func(ctx context.Context) error {
				return beforeFromRueidislock(ctx, server.Addr, func(context.Context) error { return nil })
			}, false},
	}
}

func TestMigrating_BothSidesHoldTheLockWhileTheyWork(t *testing.T) {
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	for name, m := range migrations(t, server) {
		for side, code := range map[string]func(context.Context, func(context.Context) error) error{"before": m.before, "after": m.after} {
			t.Run(name+"/"+side, func(t *testing.T) {
				done := errors.New("done")
				err := code(t.Context(), func(context.Context) error {
					require.NotZero(t, rdb.DBSize(t.Context()).Val())
					return done
				})
				require.ErrorIs(t, err, done)
				require.Eventually(t, func() bool { return rdb.DBSize(t.Context()).Val() == 0 }, 10*time.Second, time.Millisecond)
			})
		}
	}
}

func TestMigrating_OnOneNameDoesWhatThePageSays(t *testing.T) {
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	for name, m := range migrations(t, server) {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, m.before(t.Context(), func(context.Context) error {
				held, err := tryOf(t, rdb)
				if m.shared {
					require.ErrorIs(t, err, relock.ErrInvalidName)
				} else {
					require.NoError(t, err)
				}
				require.Equal(t, !m.shared, held)
				return nil
			}))
			require.NoError(t, m.after(t.Context(), func(ctx context.Context) error {
				if err := m.tryOld(ctx); m.shared {
					require.Error(t, err)
					t.Log(name, "while relock holds:", err)
				} else {
					require.NoError(t, err)
				}
				return nil
			}))
		})
	}
}

func TestMigrating_WithBothLocksReleasesBoth(t *testing.T) {
	rdb := redistest.NewServer(t).Client(t)
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	defer locks.Close()
	old := redsync.New(goredis.NewPool(rdb)).NewMutex("old:42")
	m := locks.Mutex("orders:42")
	require.NoError(t, bothLocks(t.Context(), old, m, func(ctx context.Context) error {
		require.Equal(t, int64(2), rdb.Exists(ctx, "old:42", "orders:42").Val())
		return nil
	}))
	require.Zero(t, rdb.Exists(t.Context(), "old:42", "orders:42").Val())
}

func TestMigrating_CounterAndSemaphoreCountInTheirOwnKeys(t *testing.T) {
	rdb := redistest.NewServer(t).Client(t)
	require.NoError(t, beforeFromCounter(t.Context(), rdb, func(ctx context.Context) error {
		require.Equal(t, "1", rdb.Get(ctx, "llm:count").Val())
		return nil
	}))
	require.NoError(t, rdb.Set(t.Context(), "llm:count", 20, 0).Err())
	require.ErrorIs(t, beforeFromCounter(t.Context(), rdb, func(context.Context) error { return nil }), errBusy)
	require.Equal(t, "20", rdb.Get(t.Context(), "llm:count").Val())
	require.NoError(t, afterFromCounter(t.Context(), rdb, func(ctx context.Context) error {
		require.Equal(t, int64(1), rdb.ZCard(ctx, "llm").Val())
		return nil
	}))
}

// Redisson's RSemaphore and RPermitExpirableSemaphore have a number in a string under their name, as a counter has.
func TestMigrating_NumberAndSemaphoreOfOneNameRefuseEachOther(t *testing.T) {
	rdb := redistest.NewServer(t).Client(t)
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	defer locks.Close()
	sem := locks.Semaphore("llm", 20)
	require.NoError(t, rdb.Set(t.Context(), "llm", 0, 0).Err())
	_, err = sem.Acquire(t.Context())
	require.ErrorIs(t, err, relock.ErrInvalidName)
	require.NoError(t, rdb.Del(t.Context(), "llm").Err())
	require.NoError(t, sem.Do(t.Context(), func(ctx context.Context) error {
		require.ErrorContains(t, rdb.Incr(ctx, "llm").Err(), "WRONGTYPE")
		require.ErrorContains(t, rdb.Get(ctx, "llm").Err(), "WRONGTYPE")
		return nil
	}))
	require.Zero(t, rdb.Exists(t.Context(), "llm").Val())
}

func TestMigrating_WithBothCountsTakesAPlaceInEach(t *testing.T) {
	rdb := redistest.NewServer(t).Client(t)
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	defer locks.Close()
	old := func(ctx context.Context, work func(context.Context) error) error {
		return beforeFromCounter(ctx, rdb, work)
	}
	sem := locks.Semaphore("llm", 20)
	requireCounts := func(n string, inUse int) {
		t.Helper()
		state, err := sem.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, inUse, state.InUse)
		require.Equal(t, n, rdb.Get(t.Context(), "llm:count").Val())
	}
	require.NoError(t, bothCounts(t.Context(), old, sem, func(context.Context) error {
		requireCounts("1", 1)
		return nil
	}))
	requireCounts("0", 0)
}

func TestMigrating_CodeIsThatOfThePage(t *testing.T) {
	pagetest.RequireCode(t, "../docs/migrating.md", "go", "migrating_test.go")
}
