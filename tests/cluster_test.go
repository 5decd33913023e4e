package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// useEngine has c load the map of slots, and the server the scripts.
func useEngine(t *testing.T, c *relock.Client, servers ...*redistest.Backend) {
	t.Helper()
	_, err := c.Mutex("warm up").State(t.Context())
	require.NoError(t, err)
	for _, b := range servers {
		rdb := b.Client(t)
		for _, s := range []*redisexec.Script{protocol.AcquireScript, protocol.ReleaseScript, protocol.RenewScript} {
			require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
		}
	}
}

// A master that died answers nobody with MOVED, and go-redis looks for its successor every
// 10 s only.
func TestCluster_HoldFollowsItsKeyToANewMaster(t *testing.T) {
	t.Parallel()
	old, fresh := redistest.Mini(t), redistest.Mini(t)
	relay := redistest.NewRelay(t, old.Addr)
	rdb := redistest.NewOneMaster(t, relay.Addr)
	c := locksOn(t, rdb.ClusterClient, relock.WithTTL(2*time.Second), relock.WithRenewInterval(50*time.Millisecond))
	useEngine(t, c, old, fresh)

	m := c.Mutex(redistest.Key(t))
	require.NoError(t, m.Lock(t.Context()))
	s, err := m.State(t.Context())
	require.NoError(t, err)
	next := fresh.Client(t)
	require.NoError(t, next.HSet(t.Context(), m.Name(), s.Owner, 1).Err())
	require.NoError(t, next.PExpire(t.Context(), m.Name(), time.Second).Err())
	rdb.MoveTo(fresh.Addr)
	require.NoError(t, relay.Refuse(true))
	relay.Cut()

	require.Eventually(t, func() bool {
		ttl := next.PTTL(t.Context(), m.Name()).Val()
		return ttl > 1500*time.Millisecond
	}, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, 1, m.HoldCount())
	require.NoError(t, m.Unlock())
	require.Zero(t, next.Exists(t.Context(), m.Name()).Val())
}

func TestCluster_ResendOutsideTheEngineFollowsMOVED(t *testing.T) {
	old, fresh := redistest.Mini(t), redistest.Mini(t)
	relay := redistest.NewRelay(t, old.Addr)
	rdb := redistest.NewOneMaster(t, relay.Addr)
	c := locksOn(t, rdb.ClusterClient)
	useEngine(t, c, old, fresh)

	acquires := locktest.RunsOf(protocol.AcquireScript)
	drop := relay.DropReply(acquires)
	relay.ReplyWith("-MOVED 1 "+fresh.Addr+"\r\n", acquires).Always()
	m := c.Mutex(redistest.Key(t))
	held, err := m.TryLock(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	drop.Wait(t)
	require.EqualValues(t, 1, fresh.Client(t).Exists(t.Context(), m.Name()).Val())
}
