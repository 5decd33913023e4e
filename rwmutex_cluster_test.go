package relock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// A slot is on the move: the lock and its claim are there already, what keeps a reader alive is
// not. A server that says of a key that there is none may mean that it has not come yet.

func TestAWriterDoesNotComeInBesideAReaderWhileTheSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	p := redistest.NewWard(t, cluster)
	name := p.Names("rw")[0]
	r := locksOn(t, cluster.Client(t)).RWMutex(name)
	w := locksOn(t, cluster.Client(t), WithSafetyPoll(300*time.Millisecond)).RWMutex(name)
	require.NoError(t, r.RLock(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	waiting := newActor(t).lock(ctx, toWrite(w))
	claim := w.write.target.RW.Claim
	eventually(t, "a claim", func() bool { return p.Admin.Exists(t.Context(), claim).Val() == 1 })
	p.BeginMove()
	p.Move(name, claim)
	require.Error(t, outcomeOf(t, waiting), "a writer beside a reader")
	p.EndMove()
	require.Equal(t, 1, r.RHoldCount())
	require.NoError(t, r.RUnlock())
}

func TestAReaderIsNotLostWhileTheSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	p := redistest.NewWard(t, cluster)
	name, events := p.Names("rw")[0], &chronicle{}
	r := locksOn(t, cluster.Client(t)).RWMutex(name, WithRenewInterval(50*time.Millisecond), WithHooks(events.hooks()))
	require.NoError(t, r.RLock(t.Context()))
	claim := r.write.target.RW.Claim
	require.NoError(t, p.Admin.Set(t.Context(), claim, "1 waiting:7:write", time.Minute).Err())
	p.BeginMove()
	p.Move(name, claim)
	tried := len(events.of("renew failed"))
	eventually(t, "a renewal meanwhile", func() bool { return len(events.of("renew failed")) > tried || r.RHoldCount() == 0 })
	p.EndMove()
	renewed := len(events.of("renewed"))
	eventually(t, "a renewal after that", func() bool { return len(events.of("renewed")) > renewed || r.RHoldCount() == 0 })
	require.NoError(t, r.RUnlock())
}
