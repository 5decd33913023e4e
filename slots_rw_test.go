package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// A slot stays on the move, as it does when a resharding stops half-way: its keys are at the source,
// and what is not there is refused or looked for at the target.

func TestSlots_HoldsAreRenewedAndReleasedDuringAMove(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	cluster := redistest.NewCluster(t)
	for name, lock := range map[string]func(c *relock.Client, name string) goMutex{
		"plain":            func(c *relock.Client, name string) goMutex { return c.Mutex(name) },
		"plain with token": func(c *relock.Client, name string) goMutex { return c.Mutex(name, relock.WithFencing()) },
		"fair":             func(c *relock.Client, name string) goMutex { return c.FairMutex(name) },
		"fair with token":  func(c *relock.Client, name string) goMutex { return c.FairMutex(name, relock.WithFencing()) },
		"read":             func(c *relock.Client, name string) goMutex { return c.RWMutex(name).Read() },
		"write":            func(c *relock.Client, name string) goMutex { return c.RWMutex(name).Write() },
		"write with token": func(c *relock.Client, name string) goMutex { return c.RWMutex(name, relock.WithFencing()).Write() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, events := redistest.NewWard(t, cluster), &chronicle{}
			const ttl = 600 * time.Millisecond
			c := relock.LocksOn(t, cluster.Client(t), relock.WithTTL(ttl), relock.WithRenewInterval(100*time.Millisecond), relock.WithHooks(events.Hooks()))
			m := lock(c, p.Names("k")[0])
			require.NoError(t, m.Lock(t.Context()))
			require.NoError(t, m.Lock(t.Context()))
			id := c.ID()
			p.BeginMove()
			locktest.Throughout(t, 3*ttl/2, func() bool { return m.HoldCount() == 2 }, "lost")
			require.NoError(t, m.Unlock())
			require.NoError(t, m.Unlock())
			require.Empty(t, events.Of("renew failed"))
			require.Equal(t, id, c.ID(), "nothing was in doubt")
			p.EndMove()
			locktest.RequireFree(t, p.Admin, p.Names("k")[0])
		})
	}
}

// goMutex is what the sides of all kinds can do.
type goMutex interface {
	Lock(ctx context.Context) error
	Unlock() error
	HoldCount() int
}

func TestSlots_NewcomerWaitsForTheEndOfAMove(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	cluster := redistest.NewCluster(t)
	for name, lock := range map[string]func(c *relock.Client, names []string) *relock.Mutex{
		"plain with token": func(c *relock.Client, names []string) *relock.Mutex { return c.Mutex(names[0], relock.WithFencing()) },
		"multi":            func(c *relock.Client, names []string) *relock.Mutex { return c.MultiMutex(names) },
		"fair":             func(c *relock.Client, names []string) *relock.Mutex { return c.FairMutex(names[0]) },
		"read":             func(c *relock.Client, names []string) *relock.Mutex { return c.RWMutex(names[0]).Read() },
		"write":            func(c *relock.Client, names []string) *relock.Mutex { return c.RWMutex(names[0]).Write() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := redistest.NewWard(t, cluster)
			c, comer := relock.LocksOn(t, cluster.Client(t)), locktest.NewActor(t)
			m, id := lock(c, p.Names("k")), c.ID()
			p.BeginMove()
			waiting := comer.Lock(t.Context(), m)
			locktest.GoesOn(t, waiting)
			_, err := lock(relock.LocksOn(t, cluster.Client(t)), p.Names("k")).TryLock(t.Context())
			require.ErrorContains(t, err, "TRYAGAIN")
			p.EndMove()
			require.NoError(t, locktest.OutcomeOf(t, waiting))
			require.Equal(t, id, c.ID(), "nothing was in doubt")
			comer.Unlocks(t, m)
		})
	}
}

func TestSlots_NewcomerReportsAMoveLongerThanATTL(t *testing.T) {
	t.Parallel()
	p := redistest.NewWard(t, redistest.NewCluster(t))
	const ttl = time.Second
	m := relock.LocksOn(t, p.Rdb, relock.WithTTL(ttl)).RWMutex(p.Names("k")[0])
	p.BeginMove()
	began := time.Now()
	err := locktest.OutcomeOf(t, locktest.NewActor(t).Lock(t.Context(), m.Write()))
	require.ErrorContains(t, err, "TRYAGAIN")
	require.ErrorContains(t, err, m.Name())
	require.GreaterOrEqual(t, time.Since(began), ttl)
	p.EndMove()
}

// The lock and the keys of its readers are on two nodes: of the latter there is none where the script
// runs, and it must not take them for dead, nor what it does for half done.
func TestSlots_ReaderWithKeysOnTwoNodesIsRefusedForCertain(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	p := redistest.NewWard(t, cluster)
	name := p.Names("rw")[0]
	c := relock.LocksOn(t, cluster.Client(t), relock.WithRenewInterval(time.Minute), relock.WithTTL(5*time.Minute), relock.WithUnlockTimeout(5*time.Minute))
	m, me, you := c.RWMutex(name), locktest.NewActor(t), locktest.NewActor(t)
	for _, reader := range []*locktest.Actor{me, you} {
		reader.Locks(t, m.Read())
		reader.Locks(t, m.Read())
	}
	id, before := c.ID(), locktest.OnRedis(t, p.Admin, name)
	p.BeginMove()
	once := redisexec.CallOptions{Attempts: 1}
	for _, gone := range [][]string{nil, {name}} { // at first only a new level's key is not there
		p.Move(gone...)
		for _, h := range relock.HoldsOn(c, name) {
			_, out := h.Protocol.Reenter(t.Context(), once, h.Keys, h.Field, h.Terms, false, []int{3})
			requireElsewhere(t, out)
			if gone == nil {
				continue
			}
			_, out = h.Protocol.Renew(t.Context(), once, h.Keys, h.Field, time.Hour)
			requireElsewhere(t, out)
			_, out = h.Protocol.Release(t.Context(), once, h.Keys, h.Field, []int{1})
			requireElsewhere(t, out)
		}
		require.Equal(t, before, locktest.OnRedis(t, p.Admin, name))
	}
	releasing := me.Begin(m.RUnlock) // the count goes from 2 to 1
	locktest.GoesOn(t, releasing)
	p.EndMove()
	require.NoError(t, locktest.OutcomeOf(t, releasing))
	require.Equal(t, id, c.ID())
	require.NoError(t, me.Call(m.RUnlock))
	you.Unlocks(t, m.Read())
	you.Unlocks(t, m.Read())
	locktest.RequireFree(t, p.Admin, name)
}

func requireElsewhere(t *testing.T, out redisexec.Outcome) {
	t.Helper()
	require.Error(t, out.Err)
	require.Regexp(t, "non local key|undeclared keys were accessed during rehashing", out.Err.Error())
	require.False(t, out.Ambiguous, "it was not executed: %v", out.Err)
	require.False(t, out.Permanent)
}
