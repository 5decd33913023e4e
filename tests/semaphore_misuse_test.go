package tests

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestSemaphore_InvalidUseIsAnErrorBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c := locksOn(t, rdb)
		for name, s := range map[string]*relock.Semaphore{
			"limit 0":     c.Semaphore("s", 0),
			"limit -1":    c.Semaphore("s", -1),
			"limit 10001": c.Semaphore("s", 10_001),
			"WithOwner":   c.Semaphore("s", 1, relock.WithOwner("job")),
			"OwnerFrom":   c.Semaphore("s", 1, relock.WithOwnerFrom(relock.NewOwner(t.Context()))),
			"Fencing":     c.Semaphore("s", 1, relock.WithFencing()),
			"shared":      c.Semaphore("s", 1, relock.WithSharedFencing()),
			"reentrancy":  c.Semaphore("s", 1, relock.WithoutReentrancy()),
		} {
			for call, err := range callsOf(t, s) {
				require.ErrorIs(t, err, relock.ErrInvalidOption, "%s: %s", name, call)
			}
		}
		for call, err := range callsOf(t, c.Semaphore("", 1)) {
			require.ErrorIs(t, err, relock.ErrInvalidName, call)
		}
		s := c.Semaphore("s", 3)
		for _, weight := range []int{0, -1, 4} {
			_, err := s.AcquireN(t.Context(), weight)
			require.ErrorIs(t, err, relock.ErrInvalidOption)
			require.ErrorContains(t, err, fmt.Sprint("weight ", weight))
		}
		var none context.Context
		_, err := s.Acquire(none)
		require.ErrorIs(t, err, relock.ErrInvalidOption)
		require.Zero(t, relay.Count(redistest.Scripts))

		quorum, err := relock.NewQuorum([]redis.UniversalClient{b.Client(t)})
		require.NoError(t, err)
		defer quorum.Close()
		for call, err := range callsOf(t, quorum.Semaphore("s", 1)) {
			require.ErrorIs(t, err, relock.ErrUnsupported, call)
		}
	})
}

func TestSemaphore_OptionsOfAClientForItsLocksDoNotApply(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		c := locksOn(t, rdb, relock.WithSharedFencing(), relock.WithoutReentrancy())
		require.NoError(t, c.Semaphore("s", 2).Do(t.Context(), func(context.Context) error { return nil }))
		require.Empty(t, rdb.Keys(t.Context(), "*").Val())
	})
}

// callsOf are the errors of the calls of s, by their names.
func callsOf(t *testing.T, s *relock.Semaphore) map[string]error {
	errs := make(map[string]error)
	_, errs["Acquire"] = s.Acquire(t.Context())
	_, errs["AcquireN"] = s.AcquireN(t.Context(), 1)
	_, _, errs["TryAcquire"] = s.TryAcquire(t.Context())
	errs["Do"] = s.Do(t.Context(), func(context.Context) error { return nil })
	_, errs["State"] = s.State(t.Context())
	_, errs["ForceRelease"] = s.ForceRelease(t.Context(), "x")
	return errs
}

func TestSemaphore_LockOfTheSameNameIsRefused(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		s, m := c.Semaphore(key, 2), c.Mutex(key)
		p := acquired(t, s, 1)
		for _, lock := range []locktest.Mutex{m, c.FairMutex(key), c.MultiMutex([]string{key, key + "b"}), c.RWMutex(key)} {
			require.ErrorIs(t, lock.Lock(t.Context()), relock.ErrInvalidName)
		}
		require.ErrorIs(t, c.RWMutex(key).RLock(t.Context()), relock.ErrInvalidName)
		requirePermits(t, s, 1, 0)
		require.NoError(t, p.Release())
		require.NoError(t, m.Lock(t.Context()))
		for call, err := range callsOf(t, s) {
			require.ErrorIs(t, err, relock.ErrInvalidName, call)
		}
		require.NoError(t, m.Unlock())
		require.Zero(t, rdb.Exists(t.Context(), key, key+"b").Val())
	})
}
