package tests

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// A node of a Cluster refuses most names of a client for one server.
func TestMoved_AClientOfOneServerIsToldWhatToUse(t *testing.T) {
	for name, opts := range map[string][]relock.ClientOption{"pipelined": nil, "without pipelining": {relock.WithoutPipelining()}} {
		t.Run(name, func(t *testing.T) {
			relay := redistest.NewRelay(t, redistest.Mini(t).Addr)
			relay.ReplyWith("-MOVED 1 127.0.0.1:1\r\n", locktest.RunsOf(protocol.AcquireScript)).Always()
			rdb := redis.NewClient(&redis.Options{Addr: relay.Addr})
			defer rdb.Close()
			c, err := relock.New(rdb, opts...)
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Mutex("a").TryLock(t.Context())
			require.ErrorContains(t, err, `"a": `+relay.Addr+`: this server is a node of a Cluster: use a *redis.ClusterClient: MOVED 1 127.0.0.1:1`)
			require.True(t, redisexec.Replied(err))
		})
	}
}
