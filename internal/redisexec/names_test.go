package redisexec

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestNames_NodeIsNamedByAddressOrNumber(t *testing.T) {
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
	rdbs := []redis.UniversalClient{client("127.0.0.1:2"), behindSentinel(), behindSentinel(), client("127.0.0.1:3"), wrapped}
	require.Equal(t, []string{
		"127.0.0.1:2", "node 2 of 5", "node 3 of 5", "127.0.0.1:3", "node 5 of 5",
	}, NamesOf(rdbs))
}
