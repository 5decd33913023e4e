package tests

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// What Redisson does to Redis, done by plain commands. interop/ has the real one.

// javaReads has a Java thread read key, whose watchdog gives the key and its own hold its lease, whatever
// others need, every third of that, until it dies.
func javaReads(t *testing.T, rdb *redis.Client, key string, lease time.Duration) (dies func()) {
	t.Helper()
	const field = "8743c9c0-0795-4907-87fd-6c719a6b4586:1"
	hold := "{" + key + "}:" + field + ":rwlock_timeout:1"
	require.NoError(t, rdb.HSet(t.Context(), key, "mode", "read", field, 1).Err())
	renew := func() {
		rdb.Set(t.Context(), hold, 1, lease)
		rdb.PExpire(t.Context(), key, lease)
	}
	renew()
	dead, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		ticker := time.NewTicker(lease / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				renew()
			case <-dead:
				return
			}
		}
	}()
	return func() {
		close(dead)
		<-gone
	}
}

func TestJava_ReaderWithALongTTLOutlivesADyingJavaReader(t *testing.T) {
	t.Parallel()
	locktest.OnEveryClock(t, func(t *testing.T, rdb *redis.Client, lease time.Duration) {
		lease /= 2
		m := locksOn(t, rdb, relock.WithTTL(time.Minute)).RWMutex(redistest.Key(t))
		dies := javaReads(t, rdb, m.Name(), lease)
		require.NoError(t, m.RLock(t.Context()))
		hold := m.RContext(t.Context())
		locktest.Throughout(t, 2*lease, func() bool { return hold.Err() == nil }, "beside a Java reader")
		dies()
		require.NoError(t, rdb.PExpire(t.Context(), m.Name(), lease).Err()) // the last it did
		locktest.Throughout(t, 3*lease, func() bool {
			return hold.Err() == nil && rdb.Exists(t.Context(), m.Name()).Val() == 1
		}, "after its death")
		require.Greater(t, locktest.TTLOf(rdb, m.Name()), 30*time.Second)
		require.NoError(t, m.RUnlock())
		locktest.RequireFree(t, rdb, m.Name())
	})
}

// javaWaits has a Java thread stand first in the queue of its fair lock, and returns the messages that it receives.
func javaWaits(t *testing.T, rdb *redis.Client, key string) <-chan *redis.Message {
	t.Helper()
	const first, second = "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "8743c9c0-0795-4907-87fd-6c719a6b4586:2"
	queue := "redisson_lock_queue:{" + key + "}"
	require.NoError(t, rdb.RPush(t.Context(), queue, first, second).Err())
	sub := rdb.Subscribe(t.Context(), "redisson_lock__channel:{"+key+"}:"+first)
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	return sub.Channel()
}

func TestJava_ReleaseNotifiesTheFirstFairWaiter(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb := backend.Client(t)
		c, key := locksOn(t, rdb), redistest.Key(t)
		reported := javaWaits(t, rdb, key)
		for name, ends := range map[string]func() error{
			"Mutex":        func() error { return lockAndUnlockAll(t, c.Mutex(key)) },
			"with levels":  func() error { return lockAndUnlockAll(t, c.Mutex(key), c.Mutex(key)) },
			"MultiMutex":   func() error { return lockAndUnlockAll(t, c.MultiMutex([]string{key + "2", key})) },
			"FairMutex":    func() error { return lockAndUnlockAll(t, c.FairMutex(key)) },
			"with a token": func() error { return lockAndUnlockAll(t, c.FairMutex(key, relock.WithFencing())) },
			"ForceUnlock": func() error {
				locktest.HeldByAnother(t, rdb, key, time.Minute)
				_, err := c.Mutex(key).ForceUnlock(t.Context())
				return err
			},
		} {
			require.NoError(t, ends(), name)
			require.Equal(t, "0", redistest.Receive(t, reported).Payload, name)
			require.Empty(t, reported, name)
		}
		require.EqualValues(t, 2, rdb.LLen(t.Context(), "redisson_lock_queue:{"+key+"}").Val(), "the queue is Java's")
	})
}

func lockAndUnlockAll(t *testing.T, all ...*relock.Mutex) error {
	t.Helper()
	var errs []error
	for _, m := range all {
		errs = append(errs, m.Lock(t.Context()))
	}
	for _, m := range all {
		errs = append(errs, m.Unlock())
	}
	return errors.Join(errs...)
}

func TestJava_ReleaseWithoutPermissionToNotifyIsARelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb, key := backend.Client(t), redistest.Key(t)
		require.NoError(t, rdb.Set(t.Context(), "redisson_lock_queue:{"+key+"}", "no queue", 0).Err())
		c := locksOn(t, rdb)
		for _, m := range []*relock.Mutex{c.Mutex(key), c.FairMutex(key), c.MultiMutex([]string{key, key + "2"})} {
			require.NoError(t, lockAndUnlockAll(t, m))
			locktest.RequireFree(t, rdb, key)
		}
	})
	server := redistest.NewServer(t)
	admin := server.Client(t)
	rules := slices.DeleteFunc(slices.Clone(locktest.LeastRules), func(rule string) bool { return rule == "+lindex" })
	m := locksOn(t, server.User(t, rules...), relock.WithPrefix("app:")).Mutex("x")
	require.NoError(t, admin.RPush(t.Context(), "redisson_lock_queue:{app:x}", "java:1").Err())
	require.NoError(t, lockAndUnlockAll(t, m))
	locktest.RequireFree(t, admin, "app:x")
}
