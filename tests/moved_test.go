package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// A node of a Cluster refuses most names of a client for one server.
func TestErrors_MovedNamesTheClientForACluster(t *testing.T) {
	for name, opts := range map[string][]relock.ClientOption{"pipelined": nil, "without pipelining": {relock.WithoutPipelining()}} {
		t.Run(name, func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				relay, rdb := locktest.RelayedTo(t, b)
				relay.ReplyWith("-MOVED 1 127.0.0.1:1\r\n", locktest.RunsOf(protocol.AcquireScript)).Always()
				_, err := locksOn(t, rdb, opts...).Mutex("a").TryLock(t.Context())
				require.ErrorContains(t, err, `"a": `+relay.Addr+`: this server is a node of a Cluster: use a *redis.ClusterClient: MOVED 1 127.0.0.1:1`)
				require.True(t, redisexec.Replied(err))
			})
		})
	}
}
