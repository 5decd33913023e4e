package relock_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// documentedRules are the rules in the line of docs/operations.md that has a user's permissions.
func documentedRules(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("docs/operations.md")
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^ACL SETUSER .*>secret resetkeys resetchannels -@all (.*)$`).FindSubmatch(page)
	require.NotNil(t, line, "docs/operations.md has no such line")
	return strings.Fields(string(line[1]))
}

// rulesOf leaves out what a kind of lock needs none of, as the page says below that line.
func rulesOf(kind string, all []string) []string {
	common := slices.Index(all, "+publish") + 1
	return slices.DeleteFunc(slices.Clone(all), func(rule string) bool {
		special := slices.Index(all, rule) >= common
		inOrder := strings.Contains(rule, "relock_line") || strings.HasPrefix(rule, "+z")
		sides := !strings.HasPrefix(rule, "+") && strings.Contains(rule, "rw") || strings.HasPrefix(rule, "~{")
		switch kind {
		case "plain", "multi", "fair":
			return sides || special && !inOrder && rule != "+hget" && rule != "+exists"
		case "read", "write":
			return inOrder
		default:
			return special || inOrder || sides
		}
	})
}

func TestPermissions_DocumentedOnesSufficeForEachKindAndNoneIsTooMuch(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	redistest.RequireServer(t) // what no kind has used is not compared
	rules := documentedRules(t)
	used := make(map[string]bool)
	t.Run("kinds", func(t *testing.T) {
		for _, k := range lockKinds {
			t.Run(k.name, func(t *testing.T) {
				server := redistest.NewServer(t)
				limited, admin := server.User(t, rulesOf(k.name, rules)...), server.Client(t)
				for _, name := range []string{"plain", "{tag}ged"} {
					useKind(t, k, limited, name)
				}
				require.Empty(t, denials(t, admin))
				for _, command := range commandsRun(t, admin) {
					used[command] = true
				}
			})
		}
	})
	used["hscan"] = true       // before Redis 6.2: TestRWMutex_LongReadersNeedNoCommandThatRedis5Lacks
	used["unsubscribe"] = true // a second after the last waiter has gone: TestPermissions_DocumentedOnesSufficeAndNoneIsTooMuch waits for it
	require.Equal(t, allowedCommands(rules), slices.Sorted(maps.Keys(used)))
}

// useKind uses locks of a kind in all the ways that make a difference to Redis, with two
// clients that share rdb.
func useKind(t *testing.T, k lockKind, rdb *redis.Client, name string) {
	t.Helper()
	for _, opts := range [][]relock.ClientOption{nil, {relock.WithFencing()}} {
		opts = append(opts, relock.WithPrefix("orders:"), relock.WithTTL(20*time.Second))
		here, there := relock.LocksOn(t, rdb, opts...), relock.LocksOn(t, rdb, opts...)
		useTogether(t, k, here, there, name)
		_ = errors.Join(here.Close(), there.Close()) // one of them has lost the hold that was forced
	}
}

func useTogether(t *testing.T, k lockKind, here, there *relock.Client, name string) {
	t.Helper()
	renewed := make(chan struct{}, 1)
	m := k.mutex(here, name, relock.WithOwner("a"), relock.WithRenewInterval(lease.MinRenewInterval), relock.WithHooks(relock.Hooks{Renewed: signal(renewed)}))
	rival := k.rival(there, name, relock.WithOwner("b"))
	ctx := t.Context()
	require.NoError(t, m.Lock(ctx))
	require.NoError(t, m.Lock(ctx))
	require.NoError(t, awaitSignal(ctx, renewed))
	require.NoError(t, second(m.State(ctx)))
	require.NoError(t, m.Unlock())
	held, err := rival.TryLock(ctx)
	require.NoError(t, err)
	require.False(t, held)

	// One of the same client, and one of another; and one that gives up.
	var errs []<-chan error
	for _, waiter := range []*relock.Mutex{k.rival(here, name, relock.WithOwner("c")), rival} {
		errs = append(errs, locktest.NewActor(t).Begin(func() error { return waiter.Do(ctx, func(context.Context) error { return nil }) }))
		relock.AwaitWaiters(t, waiter, waiter.Keys().Keys[0], 1)
	}
	impatient, stop := context.WithCancel(ctx)
	leaving := locktest.NewActor(t).Lock(impatient, k.rival(there, name, relock.WithOwner("d")))
	relock.AwaitWaiters(t, there, rival.Keys().Keys[0], 2)
	redistest.Eventually(t, "listening", func() bool {
		return relock.Listening(there, rival.Keys().Keys[0])
	})
	stop()
	require.ErrorIs(t, locktest.OutcomeOf(t, leaving), context.Canceled)
	require.NoError(t, m.Unlock())
	for _, done := range errs {
		require.NoError(t, locktest.OutcomeOf(t, done))
	}

	require.NoError(t, m.Lock(ctx))
	forced, err := rival.ForceUnlock(ctx)
	require.NoError(t, err)
	require.True(t, forced)

	brief := k.mutex(here, name, relock.WithOwner("e"), relock.WithMinHold(time.Hour))
	require.NoError(t, brief.Lock(ctx))
	require.NoError(t, brief.Unlock())
	forced, err = rival.ForceUnlock(ctx)
	require.NoError(t, err)
	require.True(t, forced)
}

// A semaphore needs no more than a FairMutex.
func TestPermissions_DocumentedOnesSufficeToFindADeadlock(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	server := redistest.NewServer(t)
	limited := server.User(t, rulesOf("plain", documentedRules(t))...)
	pair(t, relock.LocksOn(t, limited, relock.WithPrefix("orders:"), relock.WithDeadlockCheck(time.Second)), time.Minute)
	require.Empty(t, denials(t, server.Client(t)))
}

func TestPermissions_DocumentedOnesSufficeForASemaphore(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	server := redistest.NewServer(t)
	limited, admin := server.User(t, rulesOf("fair", documentedRules(t))...), server.Client(t)
	for _, name := range []string{"plain", "{tag}ged"} {
		renewed := make(chan struct{}, 1)
		c := relock.LocksOn(t, limited, relock.WithPrefix("orders:"), relock.WithTTL(20*time.Second))
		s := c.Semaphore(name, 2, relock.WithRenewInterval(lease.MinRenewInterval), relock.WithHooks(relock.Hooks{Renewed: signal(renewed)}))
		first, err := s.AcquireN(t.Context(), 2)
		require.NoError(t, err)
		require.NoError(t, awaitSignal(t.Context(), renewed))
		_, ok, err := s.TryAcquire(t.Context())
		require.NoError(t, err)
		require.False(t, ok)
		done := locktest.NewActor(t).Begin(func() error { return s.Do(t.Context(), func(context.Context) error { return nil }) })
		redistest.Eventually(t, "it waits", func() bool {
			state, err := s.State(t.Context())
			return err == nil && state.Waiting == 1
		})
		require.NoError(t, first.Release())
		require.NoError(t, locktest.OutcomeOf(t, done))
		brief, err := c.Semaphore(name, 2, relock.WithMinHold(time.Hour)).Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, brief.Release())
		state, err := s.State(t.Context())
		require.NoError(t, err)
		require.Len(t, state.Permits, 1)
		forced, err := s.ForceRelease(t.Context(), state.Permits[0].ID)
		require.NoError(t, err)
		require.True(t, forced)
	}
	require.Empty(t, denials(t, admin))
}

// Without permission for the line a permit is released, but none is acquired.
func TestPermissions_WithoutTheLineASemaphoreIsRefused(t *testing.T) {
	redistest.Timed(t)
	server := redistest.NewServer(t)
	rules := slices.DeleteFunc(documentedRules(t), func(rule string) bool { return strings.HasPrefix(rule, "~relock_line") })
	s := relock.LocksOn(t, server.User(t, rules...), relock.WithPrefix("orders:")).Semaphore("s", 1)
	_, err := s.Acquire(t.Context())
	require.ErrorContains(t, err, "NOPERM")
	require.Zero(t, server.Client(t).Exists(t.Context(), "orders:s").Val())
}

func TestPermissions_WithoutPexpireNoRWMutexStaysForever(t *testing.T) {
	rules := slices.DeleteFunc(documentedRules(t), func(rule string) bool { return rule == "+pexpire" })
	server := redistest.NewServer(t)
	limited, admin := server.User(t, rules...), server.Client(t)
	for _, opts := range [][]relock.MutexOption{nil, {relock.WithFencing()}} {
		m := relock.LocksOn(t, limited, relock.WithPrefix("orders:")).RWMutex("17", opts...)
		for _, lock := range []func(context.Context) error{m.Lock, m.RLock} {
			require.Regexp(t, redistest.RefusedByACL, lock(t.Context()))
			require.Zero(t, admin.Exists(t.Context(), m.Write().Keys().Keys[0]).Val())
		}
	}
}

func TestPermissions_DocumentedOnesSufficeAndNoneIsTooMuch(t *testing.T) {
	t.Parallel() // it takes a second until an unused channel is unsubscribed
	server := redistest.NewServer(t)
	limited, admin := server.User(t, locktest.LeastRules...), server.Client(t)
	require.NoError(t, useAllOf(t.Context(), limited, admin, "plain", "{tag}ged"))
	require.Empty(t, denials(t, admin))
	require.Equal(t, allowedCommands(locktest.LeastRules), commandsRun(t, admin))
}

func TestPermissions_ClusterNeedsItsSlotsToBeReadable(t *testing.T) {
	t.Parallel() // a new Cluster is down for two seconds
	server := redistest.NewServer(t, "--cluster-enabled", "yes")
	limited, admin := server.User(t, append(locktest.LeastRules, "+cluster|slots")...), server.Client(t)
	require.NoError(t, admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool {
		return strings.Contains(admin.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	}, 20*time.Second, 5*time.Millisecond)
	options := limited.Options()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{options.Addr}, Username: options.Username, Password: options.Password,
	})
	t.Cleanup(func() { rdb.Close() })
	require.NoError(t, useAllOf(t.Context(), rdb, admin, "{tag}ged"))
	require.Empty(t, denials(t, admin))
	if redistest.Version() < 7 {
		require.Contains(t, commandsRun(t, admin), "cluster") // it is not said which part of it
	} else {
		require.Contains(t, commandsRun(t, admin), "cluster|slots")
	}
}

// allowedCommands are the commands that ACL rules allow.
func allowedCommands(rules []string) []string {
	var commands []string
	for _, rule := range rules {
		if command, ok := strings.CutPrefix(rule, "+"); ok && command != countsListeners {
			commands = append(commands, command)
		}
	}
	slices.Sort(commands)
	return commands
}

// countsListeners is a command that tests run, too: TestDocs_NoPermissionIsTooMuch takes into account that scripts
// need it.
const countsListeners = "pubsub|numsub"

// commandsRun returns the commands that a server has run, except the commands of the tests and
// of go-redis itself.
func commandsRun(t *testing.T, admin *redis.Client) []string {
	t.Helper()
	info, err := admin.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	var commands []string
	for line := range strings.Lines(info) {
		name, _, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		family, _, _ := strings.Cut(name, "|")
		if ok && !slices.Contains([]string{"hello", "auth", "client", "acl", "info", "pubsub", "config", "quit"}, family) {
			commands = append(commands, name)
		}
	}
	slices.Sort(commands)
	return commands
}

// denials returns what a server has refused to its users, but for the commands by which
// go-redis introduces itself and learns of commands: it lives on without.
func denials(t *testing.T, admin *redis.Client) []string {
	t.Helper()
	entries, err := admin.Do(t.Context(), "acl", "log").Slice()
	require.NoError(t, err)
	var denials []string
	for _, entry := range entries {
		fields, ok := entry.(map[any]any)
		require.True(t, ok, "an entry of the log is %T", entry)
		object, _ := fields["object"].(string)
		family, _, _ := strings.Cut(object, "|") // before version 7 it is all that is named
		if family != "command" && family != "client" {
			denials = append(denials, object)
		}
	}
	return denials
}

// useAllOf uses locks in all the ways that make a difference to Redis, with two clients
// that share rdb. It ends when the server, which admin asks, has no subscriber left.
func useAllOf(ctx context.Context, rdb redis.UniversalClient, admin *redis.Client, names ...string) error {
	clients := [2]*relock.Client{}
	opts := locktest.Options(relock.WithoutPipelining(), []relock.ClientOption{relock.WithPrefix("app:"), relock.WithFencing(), relock.WithTTL(20 * time.Second)})
	for i := range clients {
		var err error
		if clients[i], err = relock.New(rdb, opts...); err != nil {
			return err
		}
		defer clients[i].Close()
	}
	here, there := clients[0], clients[1]
	// A connection without a channel is closed: keep one, to see the other unsubscribed.
	for _, c := range clients {
		defer c.Subscribe(c.Mutex("kept").Keys().Channels[0], func() {}).Close()
	}
	for _, name := range names {
		if err := useName(ctx, here, there, name); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := awaitNoSubscriber(ctx, admin, here.Mutex(name).Keys().Channels[0]); err != nil {
			return err
		}
	}
	return nil
}

func useName(ctx context.Context, here, there *relock.Client, name string) error {
	renewed := make(chan struct{}, 1)
	m := here.Mutex(name, relock.WithOwner("a"), relock.WithRenewInterval(lease.MinRenewInterval), relock.WithHooks(relock.Hooks{Renewed: signal(renewed)}))
	both := here.MultiMutex([]string{name, name + "2"}, relock.WithOwner("a"))
	other := there.Mutex(name)

	for _, step := range []func() error{
		func() error { return m.Lock(ctx) },
		func() error { return m.Lock(ctx) },
		func() error { return awaitSignal(ctx, renewed) },
		func() error { return second(m.State(ctx)) },
		m.Unlock,
		func() error { return passOnAndWake(ctx, m, here, there) },
		func() error { return both.Do(ctx, func(context.Context) error { return nil }) },
		func() error { return m.Lock(ctx) },
		func() error { return second(other.TryLock(ctx)) },
		func() error { return second(other.ForceUnlock(ctx)) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// passOnAndWake unlocks m while a waiter of its own client and one of another wait: the one
// gets the lock handed over, the other is woken by a message.
func passOnAndWake(ctx context.Context, m *relock.Mutex, here, there *relock.Client) error {
	contended := make(chan struct{}, 1)
	errs := make(chan error, 2)
	for _, waiter := range []*relock.Mutex{
		here.Mutex(m.Name(), relock.WithOwner("b"), relock.WithHooks(relock.Hooks{Contended: signal(contended)})),
		there.Mutex(m.Name(), relock.WithOwner("c"), relock.WithHooks(relock.Hooks{Contended: signal(contended)}), relock.WithSafetyPoll(time.Hour)),
	} {
		go func() { errs <- waiter.Do(ctx, func(context.Context) error { return nil }) }()
		if err := awaitSignal(ctx, contended); err != nil {
			return err
		}
	}
	if err := awaitSubscriber(ctx, there, m.Keys()); err != nil {
		return err
	}
	there.Suspect(m.Keys().Channels[0])
	return errors.Join(m.Unlock(), <-errs, <-errs)
}

// signal returns a hook that says that it was called.
func signal(to chan<- struct{}) func(relock.Event) {
	return func(relock.Event) {
		select {
		case to <- struct{}{}:
		default:
		}
	}
}

func awaitSignal(ctx context.Context, signalled <-chan struct{}) error {
	select {
	case <-signalled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func second[T any](_ T, err error) error { return err }

// awaitSubscriber waits until c listens to the messages about t.
func awaitSubscriber(ctx context.Context, c *relock.Client, t *keys.Set) error {
	return poll(ctx, func() bool {
		return relock.Listening(c, t.Keys[0])
	})
}

// awaitNoSubscriber waits until no one listens to a channel any more.
func awaitNoSubscriber(ctx context.Context, admin *redis.Client, channel string) error {
	return poll(ctx, func() bool { return admin.PubSubNumSub(ctx, channel).Val()[channel] == 0 })
}

func poll(ctx context.Context, cond func() bool) error {
	for !cond() {
		clock.Pause(ctx, 2*time.Millisecond)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
