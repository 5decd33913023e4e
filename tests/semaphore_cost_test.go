package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// P-S5. On a machine that stalls, a waiter polls now and then, which is a script more.
func TestSemaphore_FreePermitCostsTwoCommands(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		s := locksOn(t, rdb).Semaphore("s", 4)
		for range 50 {
			p := acquired(t, s, 1)
			require.NoError(t, p.Release())
		}
		require.Equal(t, 100, relay.Count(redistest.Scripts))
	})
}

func TestSemaphore_ContendedPermitCostsTwoCommands(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for _, waiters := range []int{8, 64, 512} {
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			redistest.Eventually(t, "two commands for a permit", func() bool {
				cost := commandsPerPermit(t, waiters)
				t.Logf("%d waiters: %.3f commands per permit", waiters, cost)
				return cost <= 2.05
			})
		})
	}
}

// commandsPerPermit has waiters, of 8 processes, share 4 permits.
func commandsPerPermit(t *testing.T, waiters int) float64 {
	t.Helper()
	relay, _ := locktest.RelayedTo(t, redistest.Redis(t))
	key := redistest.Key(t)
	var handles []*relock.Semaphore
	for range 8 {
		rdb := redis.NewClient(redistest.Options(relay.Addr))
		t.Cleanup(func() { _ = rdb.Close() })
		handles = append(handles, locksOn(t, rdb).Semaphore(key, 4))
	}
	rounds := max(4, 2400/waiters)
	var all sync.WaitGroup
	for i := range waiters {
		all.Go(func() {
			for range rounds {
				p, err := handles[i%8].Acquire(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				if err := p.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	return float64(relay.Count(redistest.Scripts)) / float64(rounds*waiters)
}
