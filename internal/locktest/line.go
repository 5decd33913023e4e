package locktest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
)

// LongestPlace are the terms of a waiter whose entry in the line lives for as long as an entry can,
// if no poll keeps it.
var LongestPlace = protocol.Terms{TTL: time.Minute, SafetyPoll: time.Minute}

// PlacesOn returns the entries in the line of key, first come first.
func PlacesOn(t *testing.T, rdb redis.UniversalClient, key string) []redis.Z {
	t.Helper()
	places, err := rdb.ZRangeWithScores(t.Context(), keys.LineOf(key).Queue, 0, -1).Result()
	require.NoError(t, err)
	return places
}

// RequireFairFree requires that nothing is left of a fair lock.
func RequireFairFree(t *testing.T, rdb redis.UniversalClient, key string) {
	t.Helper()
	k := keys.LineOf(key)
	RequireFree(t, rdb, key, k.Queue, k.Entries)
}

// Roll is the order in which a lock was held.
type Roll struct {
	mu    sync.Mutex
	Names []int
}

// Call adds n.
func (r *Roll) Call(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Names = append(r.Names, n)
}

// UpTo returns the numbers below n.
func UpTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// QueueUp has n goroutines, one after the other, wait for a fair lock, each by the next of its handles, and then hold it
// for a moment each. It returns when all wait.
func QueueUp(t *testing.T, rdb redis.UniversalClient, key string, n int, r *Roll, handles ...Mutex) *sync.WaitGroup {
	t.Helper()
	var all sync.WaitGroup
	for i := range n {
		m := handles[i%len(handles)]
		all.Go(func() {
			if err := m.Lock(context.WithoutCancel(t.Context())); err != nil {
				t.Errorf("waiter %d: %v", i, err)
				return
			}
			r.Call(i)
			if err := m.Unlock(); err != nil {
				t.Errorf("waiter %d: %v", i, err)
			}
		})
		AwaitFairQueue(t, rdb, key, i+1)
	}
	return &all
}

// Visit has an owner of its own wait for m, hold it for a moment, and call n meanwhile.
func Visit(t *testing.T, m Doer, r *Roll, n int) <-chan error {
	t.Helper()
	return NewActor(t).Begin(func() error {
		return m.Do(t.Context(), func(context.Context) error { r.Call(n); return nil })
	})
}
