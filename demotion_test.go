package relock

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// throughThePipeline has the client talk to the server, by its pipeline if it has one.
func throughThePipeline(t *testing.T, c *Client, rdb *redis.Client) {
	t.Helper()
	m := c.Mutex(redistest.Key(t))
	requireLocked(t, m) // with a context that may end
	requireUnlocked(t, m)
	if pipelinedByDefault {
		require.Positive(t, rdb.PoolStats().PipelineStats.TotalConns)
	}
}

func TestAMasterThatHasBecomeAReplicaIsLeft(t *testing.T) {
	t.Parallel()
	s, events := redistest.NewTwoServers(t), &chronicle{}
	rdb := s.Client()
	c := locksOn(t, rdb, WithHooks(events.hooks()))
	throughThePipeline(t, c, rdb)
	s.Failover(false)
	m := c.Mutex(redistest.Key(t), WithRenewInterval(20*time.Millisecond))
	eventually(t, "a lock", func() bool { return m.Lock(t.Context()) == nil })
	renewed := len(events.of("renewed"))
	eventually(t, "renewed", func() bool { return len(events.of("renewed")) >= renewed+3 })
	failed := len(events.of("renew failed"))
	eventually(t, "renewed on", func() bool { return len(events.of("renewed")) >= renewed+10 })
	require.Len(t, events.of("renew failed"), failed, "it still asks the replica")
	requireUnlocked(t, m)
	requireFree(t, s.Next.Client(t), m.Name())
}

// It knows nothing of what its successor has granted. That is not to be taken for a loss.
func TestAMasterThatHasBecomeAReplicaAndIsCutOffTakesNothingAway(t *testing.T) {
	t.Parallel()
	for _, k := range lockKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s, events := redistest.NewTwoServers(t), &chronicle{}
			rdb := s.Client()
			c := locksOn(t, rdb, WithHooks(events.hooks()))
			throughThePipeline(t, c, rdb)
			s.Failover(true)
			eventually(t, "go-redis has left it", func() bool { return rdb.Set(t.Context(), "mine", 1, 0).Err() == nil })
			m := k.mutex(c, redistest.Key(t), WithRenewInterval(20*time.Millisecond))
			eventually(t, "a lock", func() bool { return m.Lock(context.Background()) == nil }) // past the pipeline
			renewed := len(events.of("renewed"))
			eventually(t, "renewed", func() bool { return len(events.of("renewed")) >= renewed+3 || len(events.of("lost")) > 0 })
			requireLocked(t, m)
			requireUnlocked(t, m)
			requireUnlocked(t, m)
			require.Empty(t, events.of("lost"))
			require.Zero(t, s.Next.Client(t).Exists(t.Context(), m.target.Keys...).Val())
		})
	}
}
