package relock

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// Where the line cannot be used a Mutex is locked by its own key, and waited for as a stranger waits.

// withoutLine returns the rules that suited users before there was a line.
func withoutLine(rules []string) []string {
	return slices.DeleteFunc(slices.Clone(rules), func(rule string) bool {
		return strings.Contains(rule, "relock_line") || slices.Contains([]string{"+exists", "+hget"}, rule) || strings.HasPrefix(rule, "+z")
	})
}

func TestAUserWithoutPermissionsForTheLineLocksAMutexAllTheSame(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string][]string{
		"neither keys nor channels": withoutLine(leastRules),
		"no commands":               append(withoutLine(leastRules), "~*", "&*"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.NewServer(t)
			limited, admin := server.User(t, rules...), server.Client(t)
			here, there, full := prefixed(t, limited), prefixed(t, limited), prefixed(t, admin)
			key := here.Mutex("17").target.Keys[0]

			requireLocked(t, here.Mutex("17"))
			requireLocked(t, here.Mutex("17"))
			requireOnRedis(t, admin, key, fieldOf(here), 2)
			require.False(t, newActor(t).tries(t, there.Mutex("17")))
			requireUnlocked(t, here.Mutex("17"))
			requireUnlocked(t, here.Mutex("17"))
			requireFree(t, admin, key)

			// One waits for another process, which may not use the line either, or may.
			for _, other := range []*Client{there, full} {
				holder, waiter := newActor(t), newActor(t)
				holder.locks(t, other.Mutex("17"))
				waiting := waiter.lock(t.Context(), here.Mutex("17"))
				awaitWaiters(t, here.session, key, 1)
				goesOn(t, waiting)
				holder.unlocks(t, other.Mutex("17"))
				began := time.Now()
				require.NoError(t, outcomeOf(t, waiting))
				require.Less(t, time.Since(began), time.Second)
				waiter.unlocks(t, here.Mutex("17"))
			}

			refused := here.FairMutex("17").Lock(t.Context())
			require.Error(t, refused)
			require.Regexp(t, "NOPERM|"+redistest.RefusedByACL, refused.Error())
			requireFree(t, admin, key)
		})
	}
}

// prefixed returns a client for the names that leastRules are for.
func prefixed(t *testing.T, rdb *redis.Client) *Client {
	t.Helper()
	return locksOn(t, rdb, WithPrefix("app:"))
}

// Redis refuses what needs several keys of which some may have moved.
func TestAMutexIsLockedByItsOwnKeyWhileTheSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	for name, heldBefore := range map[string]bool{"held before": true, "free": false} {
		t.Run(name, func(t *testing.T) {
			p := redistest.NewWard(t, cluster)
			m := locksOn(t, cluster.Client(t)).Mutex(p.Names("k")[0])
			if heldBefore {
				requireLocked(t, m)
			}
			p.BeginMove()
			defer p.EndMove()
			if !heldBefore {
				requireLocked(t, m)
			}
			requireLocked(t, m)
			require.False(t, newActor(t).tries(t, m))
			requireUnlocked(t, m)
			requireUnlocked(t, m)
			require.ErrorIs(t, m.Unlock(), ErrNotHeld)
			actor := newActor(t)
			require.True(t, actor.tries(t, m), "it is free")
			actor.unlocks(t, m)
		})
	}
}
