package relock

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/redistest"
)

// documentedRules are those of the line in README that has a user's permissions.
func documentedRules(t *testing.T) []string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^ACL SETUSER .*>secret resetkeys resetchannels -@all (.*)$`).FindSubmatch(readme)
	require.NotNil(t, line, "README has no such line")
	return strings.Fields(string(line[1]))
}

// rulesOf leaves out what a kind of lock needs none of, as README says below that line.
func rulesOf(kind string, all []string) []string {
	common := slices.Index(all, "+publish") + 1
	return slices.DeleteFunc(slices.Clone(all), func(rule string) bool {
		special := slices.Index(all, rule) >= common
		inOrder := strings.Contains(rule, "relock_fair_") || strings.HasPrefix(rule, "+z")
		sides := !strings.HasPrefix(rule, "+") && strings.Contains(rule, "rw") || strings.HasPrefix(rule, "~{")
		switch kind {
		case "fair":
			return sides || special && !inOrder && rule != "+hget" && rule != "+exists"
		case "read", "write":
			return inOrder
		default:
			return special || inOrder || sides
		}
	})
}

func TestTheDocumentedPermissionsAreEnoughForEachKindAndNoneIsTooMuch(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.RequireServer(t) // what no kind has used is not compared
	rules := documentedRules(t)
	used := make(map[string]bool)
	t.Run("kinds", func(t *testing.T) {
		for _, k := range lockKinds {
			t.Run(k.name, func(t *testing.T) {
				limited, full := asUserOf(t, redistest.NewServer(t), rulesOf(k.name, rules)...)
				for _, name := range []string{"plain", "{tag}ged"} {
					useKind(t, k, limited.rdb, name)
				}
				require.Empty(t, full.denials())
				for _, command := range full.commandsRun() {
					used[command] = true
				}
			})
		}
	})
	used["hscan"] = true       // before Redis 6.2: TestReadersNeedNoCommandThatRedis5LacksToLiveAsLong
	used["unsubscribe"] = true // a second after the last waiter has gone: TestTheDocumentedPermissionsAreEnoughAndNoneIsTooMuch waits for it
	require.Equal(t, allowedCommands(rules), slices.Sorted(maps.Keys(used)))
}

// useKind uses locks of a kind in all the ways that make a difference to Redis, with two
// clients that share rdb.
func useKind(t *testing.T, k lockKind, rdb *redis.Client, name string) {
	t.Helper()
	for _, opts := range [][]ClientOption{nil, {WithFencing()}} {
		opts = append(opts, WithPrefix("orders:"), WithTTL(20*time.Second))
		here, there := locksOn(t, rdb, opts...), locksOn(t, rdb, opts...)
		useTogether(t, k, here, there, name)
		_ = join(here.Close(), there.Close()) // one of them has lost the hold that was forced
	}
}

func useTogether(t *testing.T, k lockKind, here, there *Client, name string) {
	t.Helper()
	renewed := make(chan struct{}, 1)
	m := k.mutex(here, name, WithOwner("a"), WithRenewInterval(lease.MinRenewInterval), WithHooks(Hooks{Renewed: signal(renewed)}))
	rival := k.rival(there, name, WithOwner("b"))
	ctx := t.Context()
	require.NoError(t, m.Lock(ctx))
	require.NoError(t, m.Lock(ctx))
	require.NoError(t, await(ctx, renewed))
	require.NoError(t, second(m.State(ctx)))
	require.NoError(t, m.Unlock())
	held, err := rival.TryLock(ctx)
	require.NoError(t, err)
	require.False(t, held)

	// One of the same client, and one of another; and one that gives up.
	var errs []<-chan error
	for _, waiter := range []*Mutex{k.rival(here, name, WithOwner("c")), rival} {
		errs = append(errs, newActor(t).begin(func() error { return waiter.Do(ctx, func(context.Context) error { return nil }) }))
		awaitWaiters(t, waiter.session, waiter.target.Keys[0], 1)
	}
	impatient, stop := context.WithCancel(ctx)
	leaving := newActor(t).lock(impatient, k.rival(there, name, WithOwner("d")))
	awaitWaiters(t, there.session, rival.target.Keys[0], 2)
	eventually(t, "listening", func() bool {
		g := there.session.registry.Gate(gateOf(rival.target, 0))
		return g != nil && rival.kind.stand(g).messages.Listening()
	})
	stop()
	require.ErrorIs(t, outcomeOf(t, leaving), context.Canceled)
	require.NoError(t, m.Unlock())
	for _, done := range errs {
		require.NoError(t, outcomeOf(t, done))
	}

	require.NoError(t, m.Lock(ctx))
	forced, err := rival.ForceUnlock(ctx)
	require.NoError(t, err)
	require.True(t, forced)
}

func TestAUserWithoutPexpireLeavesNoReadWriteLockWithoutExpiry(t *testing.T) {
	rules := slices.DeleteFunc(documentedRules(t), func(rule string) bool { return rule == "+pexpire" })
	limited, full := asUser(t, rules...)
	for _, opts := range [][]MutexOption{nil, {WithFencing()}} {
		m := locksOn(t, limited.rdb, WithPrefix("orders:")).RWMutex("17", opts...)
		for _, lock := range []func(context.Context) error{m.Lock, m.RLock} {
			require.Regexp(t, refusedByACL, lock(t.Context()))
			require.Zero(t, full.rdb.Exists(t.Context(), m.write.target.Keys[0]).Val())
		}
	}
}
