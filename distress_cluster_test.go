package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestDistress_OfAClusterIsReported(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	for name, d := range redistest.ClusterDistresses {
		t.Run(name, func(t *testing.T) { newCourse(t, d, redistest.NewWard(t, cluster)).run() })
	}
	t.Run("a lock follows its slot while that moves", func(t *testing.T) {
		testFollowing(t, redistest.NewWard(t, cluster))
	})
	for name, c := range redistest.Misroutings {
		t.Run(name, func(t *testing.T) { testMisrouted(t, c, redistest.NewWard(t, cluster)) })
	}
}

// testFollowing locks, renews, enters again and unlocks while the key is here, there and on
// the way.
func testFollowing(t *testing.T, p *redistest.Patient) {
	t.Helper()
	renewed := make(chan relock.Event, 4096)
	locks := relock.LocksOn(t, p.Rdb)
	m := locks.Mutex(p.Names("moved")[0], relock.WithRenewInterval(20*time.Millisecond),
		relock.WithHooks(relock.Hooks{Renewed: func(e relock.Event) { renewed <- e }}))
	other := locks.Mutex(p.Names("other")[0])
	id := locks.ID()
	use := func() {
		locktest.RequireLocked(t, m)
		for len(renewed) > 0 {
			<-renewed
		}
		redistest.Receive(t, renewed)
		locktest.RequireLocked(t, other)
		locktest.RequireUnlocked(t, other)
	}
	use()
	hold := m.Context(t.Context())
	for _, step := range []func(){p.BeginMove, func() { p.Move(m.Name()) }, p.EndMove} {
		step()
		use()
	}
	require.NoError(t, hold.Err())
	locktest.RequireOnRedis(t, p.Admin, m.Name(), locktest.FieldOf(locks), 4)
	for range 3 {
		locktest.RequireUnlocked(t, m)
	}
	require.Equal(t, id, locks.ID(), "nothing was in doubt")
	locktest.RequireUnlocked(t, m) // may cancel a renewal, and leave that in doubt
	locktest.RequireFree(t, p.Admin, m.Name())
	locktest.RequireFree(t, p.Admin, other.Name())
}

// testMisrouted locks at a node of a Cluster by a client of this node only.
func testMisrouted(t *testing.T, c redistest.Misrouting, p *redistest.Patient) {
	t.Helper()
	rdb, names := c.Ask(p)
	locks := relock.LocksOn(t, rdb)
	m, id := locks.MultiMutex(names, relock.WithFencing()), locks.ID()
	_, err := m.TryLock(t.Context())
	for _, err := range []error{err, m.Lock(t.Context())} {
		require.ErrorContains(t, err, c.Contains)
		require.ErrorContains(t, err, m.Name())
	}
	require.Equal(t, id, locks.ID(), "nothing was in doubt")
	c.After(p)
	for _, key := range append(m.Keys().Keys, m.Keys().Counters...) {
		locktest.RequireFree(t, p.Admin, key)
	}
	if !c.Means.Permanent {
		held, err := relock.LocksOn(t, p.Rdb).MultiMutex(names).TryLock(context.Background())
		require.NoError(t, err)
		require.True(t, held, "a client of the Cluster gets it")
	}
}
