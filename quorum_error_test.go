package relock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/quorum"
	"github.com/relock-go/relock/internal/redistest"
)

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

func TestAQuorumErrorTellsOfEachNodeThatDidNotDoIt(t *testing.T) {
	err := wrap("lock", "orders:42", quorumError(quorum.Failure{Nodes: 5, Needed: 3, Agreed: 1, Said: []quorum.Said{
		{Node: "node-1", Err: lockerr.ErrNotOnRedis}, {Node: "node-2", Err: lockerr.ErrNoAnswer}, {Node: "node-3", Err: ErrInvalidName},
	}}))
	var q *QuorumError
	require.ErrorAs(t, err, &q)
	require.Len(t, q.Errors, 3)
	require.ErrorIs(t, err, ErrInvalidName)
	require.ErrorIs(t, err, lockerr.ErrNotOnRedis)
	require.ErrorIs(t, err, lockerr.ErrNoAnswer)
	var n *NodeError
	require.ErrorAs(t, err, &n)
	require.Equal(t, "node-1", n.Node)
	require.EqualError(t, err, `relock: lock "orders:42": 3 of 5 nodes are needed, 1 did it; `+
		`node-1: the key on Redis is gone, or another owner's; node-2: no answer from Redis; node-3: invalid name`)
}
