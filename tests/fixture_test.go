// Package tests has those tests of relock that need no more than its API, and what is on Redis: how its locks share
// Redis with each other, with Java and with other programs, and what becomes of them on Clusters and with replicas. The
// tests that look into a client are next to its code.
package tests

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// locksOn returns a client that is closed before rdb is.
func locksOn(tb testing.TB, rdb redis.UniversalClient, opts ...relock.ClientOption) *relock.Client {
	tb.Helper()
	return locktest.Closed[*relock.Client](tb)(relock.New(rdb, locktest.Options(relock.WithoutPipelining(), opts)...))
}

// chronicle records the events that hooks receive.
type chronicle = locktest.Chronicle[relock.Event, relock.Hooks]
