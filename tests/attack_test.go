package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// A lock survives while a server is out of memory, because PEXPIRE needs none. So must a permit.
func TestAttack_FullServerRenewsPermits(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	locks := locksOn(t, server.Client(t), relock.WithTTL(time.Second))
	m := locks.Mutex("m")
	require.NoError(t, m.Lock(t.Context()))
	p := acquired(t, locks.Semaphore("s", 2), 2)
	lock, permit := m.Context(t.Context()), p.Context(t.Context())
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	select {
	case <-permit.Done():
		t.Error("the permit was lost; the lock: ", lock.Err())
	case <-time.After(3 * time.Second):
	}
	require.NoError(t, m.Unlock())
	require.NoError(t, p.Release())
}

func TestAttack_WaitErrorNamesTheMinHold(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		s := locksOn(t, b.Client(t)).Semaphore("s", 1, relock.WithMinHold(time.Minute), relock.WithWaitTimeout(2*time.Second))
		p := acquired(t, s, 1)
		require.NoError(t, p.Release())
		_, err := s.Acquire(t.Context())
		require.ErrorIs(t, err, relock.ErrTimeout)
		require.ErrorContains(t, err, "reserved by the min hold of "+p.ID()+",")
	})
}
