package relock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/stretchr/testify/require"
)

func TestCommandsOfOneNameReachANodeInTheOrderOfTheirCalls(t *testing.T) {
	t.Parallel()
	n := &node{last: make(map[string]chan struct{})}
	begun := func(errand *errand) bool {
		for _, before := range errand.before {
			select {
			case <-before:
			default:
				return false
			}
		}
		return true
	}
	first, other := n.line([]string{"a"}), n.line([]string{"b"})
	both, last := n.line([]string{"a", "b"}), n.line([]string{"b"})
	require.True(t, begun(first))
	require.True(t, begun(other))
	require.False(t, begun(both))

	passed := make(chan string, 2)
	go func() {
		last.await()
		passed <- "last"
		last.pass()
	}()
	go func() {
		both.await()
		passed <- "both"
		both.pass()
	}()
	first.pass()
	require.False(t, begun(both), "it has another name, too")
	require.Empty(t, passed)
	other.pass()
	require.Equal(t, "both", receives(t, passed))
	require.Equal(t, "last", receives(t, passed))
	eventually(t, "nothing is kept", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.last) == 0
	})
}

func TestANodeIsNamedByItsAddressOrElseItsNumber(t *testing.T) {
	client := func(addr string) *redis.Client {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	behindSentinel := func() *redis.Client {
		rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "mymaster", SentinelAddrs: []string{"127.0.0.1:1"}})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	wrapped := struct{ redis.UniversalClient }{client("127.0.0.1:5")}
	rdbs := []redis.UniversalClient{client("127.0.0.1:2"), behindSentinel(), behindSentinel(), client("127.0.0.1:3"), client("127.0.0.1:3"), wrapped}
	names := make([]string, len(rdbs))
	for i := range rdbs {
		names[i] = nameOf(rdbs, i)
	}
	require.Equal(t, []string{
		"127.0.0.1:2", "number 2 of 6", "number 3 of 6", "127.0.0.1:3 (number 4 of 6)", "127.0.0.1:3 (number 5 of 6)", "number 6 of 6",
	}, names)
}

func TestAnErrorOfAQuorumBehindSentinelsSaysWhichNodesItIsOf(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	var rdbs []redis.UniversalClient
	for range 3 {
		rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "mymaster", SentinelAddrs: []string{"127.0.0.1:1"}})
		t.Cleanup(func() { _ = rdb.Close() })
		rdbs = append(rdbs, rdb)
	}
	_, err := quorumOn(t, rdbs, WithTTL(time.Second)).Mutex("orders").State(t.Context())
	var said *QuorumError
	require.ErrorAs(t, err, &said)
	names := make([]string, len(said.Errors))
	for i, node := range said.Errors {
		names[i] = node.Node
	}
	require.NotEmpty(t, names)
	require.Subset(t, []string{"number 1 of 3", "number 2 of 3", "number 3 of 3"}, names)
	require.ErrorContains(t, err, names[0]+": ")
}
