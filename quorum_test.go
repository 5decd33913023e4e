package relock

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// clientsOf returns a Redis client of each node.
func clientsOf(t *testing.T, nodes []*redistest.Backend) []redis.UniversalClient {
	t.Helper()
	var rdbs []redis.UniversalClient
	for _, n := range nodes {
		rdbs = append(rdbs, n.Client(t))
	}
	return rdbs
}

// quorumOn returns a client that is closed before its Redis clients are.
func quorumOn(t *testing.T, rdbs []redis.UniversalClient, opts ...ClientOption) *Client {
	t.Helper()
	c, err := NewQuorum(rdbs, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestProcessesThatContendForAQuorumAreAllServed(t *testing.T) {
	for _, n := range []int{3, 5} {
		for _, processes := range []int{2, 8} {
			t.Run(fmt.Sprintf("%d processes on %d nodes", processes, n), func(t *testing.T) {
				redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
					nodes, key := b.Nodes(t, n), redistest.Key(t)
					var all sync.WaitGroup
					inside, count := 0, 0
					began := time.Now()
					for range processes {
						m := quorumOn(t, clientsOf(t, nodes)).Mutex(key)
						all.Go(func() {
							for range 40 {
								if err := m.Lock(t.Context()); err != nil {
									t.Error(err)
									return
								}
								if inside++; inside != 1 {
									t.Error("two holders")
								}
								count++
								inside--
								if err := m.Unlock(); err != nil {
									t.Error(err)
								}
							}
						})
					}
					all.Wait()
					require.Equal(t, 40*processes, count)
					t.Logf("%v per lock", time.Since(began)/time.Duration(count))
				})
			})
		}
	}
}
