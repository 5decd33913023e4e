package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// A slot is on the move: the lock and its claim are there already, what keeps a reader alive is
// not. A server that says of a key that there is none may mean that it has not come yet.

func TestRWMutex_WriterDoesNotJoinAReaderWhileTheSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	p := redistest.NewWard(t, cluster)
	name := p.Names("rw")[0]
	r := locksOn(t, cluster.Client(t)).RWMutex(name)
	w := locksOn(t, cluster.Client(t), relock.WithSafetyPoll(300*time.Millisecond)).RWMutex(name)
	require.NoError(t, r.RLock(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	waiting := locktest.NewActor(t).Lock(ctx, w)
	claim := locktest.ClaimOf(name)
	redistest.Eventually(t, "a claim", func() bool { return p.Admin.Exists(t.Context(), claim).Val() == 1 })
	p.BeginMove()
	p.Move(name, claim)
	require.Error(t, locktest.OutcomeOf(t, waiting), "a writer beside a reader")
	p.EndMove()
	require.Equal(t, 1, r.RHoldCount())
	require.NoError(t, r.RUnlock())
}

func TestRWMutex_ReaderIsNotLostWhileTheSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	p := redistest.NewWard(t, cluster)
	name, events := p.Names("rw")[0], &chronicle{}
	r := locksOn(t, cluster.Client(t)).RWMutex(name, relock.WithRenewInterval(50*time.Millisecond), relock.WithHooks(events.Hooks()))
	require.NoError(t, r.RLock(t.Context()))
	claim := locktest.ClaimOf(name)
	require.NoError(t, p.Admin.Set(t.Context(), claim, "1 waiting:7:write", time.Minute).Err())
	p.BeginMove()
	p.Move(name, claim)
	tried := len(events.Of("renew failed"))
	redistest.Eventually(t, "a renewal meanwhile", func() bool { return len(events.Of("renew failed")) > tried || r.RHoldCount() == 0 })
	p.EndMove()
	renewed := len(events.Of("renewed"))
	redistest.Eventually(t, "a renewal after that", func() bool { return len(events.Of("renewed")) > renewed || r.RHoldCount() == 0 })
	require.NoError(t, r.RUnlock())
}
