package relock_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// Where the line cannot be used a Mutex is locked by its own key, and its waiters wait as foreign waiters do.

// withoutLine returns the rules that suited users before there was a line.
func withoutLine(rules []string) []string {
	return slices.DeleteFunc(slices.Clone(rules), func(rule string) bool {
		return strings.Contains(rule, "relock_line") || slices.Contains([]string{"+exists", "+hget"}, rule) || strings.HasPrefix(rule, "+z")
	})
}

func TestPermissions_MutexWorksWithoutThoseForTheLine(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string][]string{
		"neither keys nor channels": withoutLine(locktest.LeastRules),
		"no commands":               append(withoutLine(locktest.LeastRules), "~*", "&*"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.NewServer(t)
			limited, admin := server.User(t, rules...), server.Client(t)
			here, there, full := prefixed(t, limited), prefixed(t, limited), prefixed(t, admin)
			key := here.Mutex("17").Keys().Keys[0]

			locktest.RequireLocked(t, here.Mutex("17"))
			locktest.RequireLocked(t, here.Mutex("17"))
			locktest.RequireOnRedis(t, admin, key, locktest.FieldOf(here), 2)
			require.False(t, locktest.NewActor(t).Tries(t, there.Mutex("17")))
			locktest.RequireUnlocked(t, here.Mutex("17"))
			locktest.RequireUnlocked(t, here.Mutex("17"))
			locktest.RequireFree(t, admin, key)

			// One waits for another process, which may not use the line either, or may.
			for _, other := range []*relock.Client{there, full} {
				holder, waiter := locktest.NewActor(t), locktest.NewActor(t)
				holder.Locks(t, other.Mutex("17"))
				waiting := waiter.Lock(t.Context(), here.Mutex("17"))
				relock.AwaitWaiters(t, here, key, 1)
				locktest.GoesOn(t, waiting)
				holder.Unlocks(t, other.Mutex("17"))
				began := time.Now()
				require.NoError(t, locktest.OutcomeOf(t, waiting))
				require.Less(t, time.Since(began), time.Second)
				waiter.Unlocks(t, here.Mutex("17"))
			}

			for _, m := range []*relock.Mutex{
				here.Mutex("17", relock.WithFencing()),
				here.MultiMutex([]string{"17", "18"}), here.MultiMutex([]string{"17", "18"}, relock.WithFencing()),
			} {
				locktest.RequireLocked(t, m)
				require.False(t, locktest.NewActor(t).Tries(t, there.Mutex("17")))
				locktest.RequireUnlocked(t, m)
				locktest.RequireFree(t, admin, key)
			}

			refused := here.FairMutex("17").Lock(t.Context())
			require.Error(t, refused)
			require.Regexp(t, "NOPERM|"+redistest.RefusedByACL, refused.Error())
			locktest.RequireFree(t, admin, key)
		})
	}
}

// prefixed returns a client for the names that locktest.LeastRules are for.
func prefixed(t *testing.T, rdb *redis.Client) *relock.Client {
	t.Helper()
	return relock.LocksOn(t, rdb, relock.WithPrefix("app:"))
}

// Redis refuses what needs several keys if some may have moved.
func TestPermissions_MutexUsesItsOwnKeyWhileTheSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	for name, heldBefore := range map[string]bool{"held before": true, "free": false} {
		t.Run(name, func(t *testing.T) {
			p := redistest.NewWard(t, cluster)
			m := relock.LocksOn(t, cluster.Client(t)).Mutex(p.Names("k")[0])
			if heldBefore {
				locktest.RequireLocked(t, m)
			}
			p.BeginMove()
			defer p.EndMove()
			if !heldBefore {
				locktest.RequireLocked(t, m)
			}
			locktest.RequireLocked(t, m)
			require.False(t, locktest.NewActor(t).Tries(t, m))
			locktest.RequireUnlocked(t, m)
			locktest.RequireUnlocked(t, m)
			require.ErrorIs(t, m.Unlock(), relock.ErrNotHeld)
			actor := locktest.NewActor(t)
			require.True(t, actor.Tries(t, m), "it is free")
			actor.Unlocks(t, m)
		})
	}
}
