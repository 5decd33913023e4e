package relock

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/redistest"
)

// leastRules are what the whole library needs for names under the prefix "app:".
var leastRules = []string{
	"~app:*",
	"~redisson_lock_token:{app:*", "&redisson_lock__channel:{app:*",
	"~redisson_lock_token:app:*", "&redisson_lock__channel:app:*", // for names with a {tag}
	"~redisson_lock_queue:{app:*", "~redisson_lock_queue:app:*",
	"+eval", "+evalsha", "+subscribe", "+unsubscribe", "+ping",
	"+hlen", "+hexists", "+hgetall", "+hset", "+hdel", "+pttl", "+pexpire",
	"+time", "+get", "+set", "+lindex", "+publish",
}

// refusedByACL is what a command of a script fails with that its user may not run: before
// Redis 7.2, and since.
const refusedByACL = "can't run this command|ACL failure in script: .* no permissions to run"

func TestTheDocumentedPermissionsAreEnoughAndNoneIsTooMuch(t *testing.T) {
	t.Parallel() // it takes a second until an unused channel is unsubscribed
	limited, full := asUser(t, leastRules...)
	require.NoError(t, useEverything(t.Context(), limited.rdb, full.rdb, "plain", "{tag}ged"))
	require.Empty(t, full.denials())
	require.Equal(t, allowedCommands(leastRules), full.commandsRun())
}

func TestAClusterNeedsItsSlotsToBeReadableBesides(t *testing.T) {
	t.Parallel() // a new Cluster is down for two seconds
	limited, full := asUserOf(t, redistest.NewServer(t, "--cluster-enabled", "yes"), append(leastRules, "+cluster|slots")...)
	require.NoError(t, full.rdb.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool {
		return strings.Contains(full.rdb.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	}, 20*time.Second, 5*time.Millisecond)
	options := limited.rdb.Options()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{options.Addr}, Username: options.Username, Password: options.Password,
	})
	t.Cleanup(func() { rdb.Close() })
	require.NoError(t, useEverything(t.Context(), rdb, full.rdb, "{tag}ged"))
	require.Empty(t, full.denials())
	if redistest.Version() < 7 {
		require.Contains(t, full.commandsRun(), "cluster") // it is not said which part of it
	} else {
		require.Contains(t, full.commandsRun(), "cluster|slots")
	}
}

// allowedCommands are those that ACL rules allow.
func allowedCommands(rules []string) []string {
	var commands []string
	for _, rule := range rules {
		if command, ok := strings.CutPrefix(rule, "+"); ok {
			commands = append(commands, command)
		}
	}
	slices.Sort(commands)
	return commands
}

// commandsRun returns the commands that the server of b has run, but for those of the
// tests and of go-redis' own.
func (b *bench) commandsRun() []string {
	b.t.Helper()
	info, err := b.rdb.Info(b.t.Context(), "commandstats").Result()
	require.NoError(b.t, err)
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

// denials returns what the server of b has refused to its users, but for the commands by
// which go-redis introduces itself and learns of commands: it lives on without.
func (b *bench) denials() []string {
	b.t.Helper()
	entries, err := b.rdb.Do(b.t.Context(), "acl", "log").Slice()
	require.NoError(b.t, err)
	var denials []string
	for _, entry := range entries {
		fields, ok := entry.(map[any]any)
		require.True(b.t, ok, "an entry of the log is %T", entry)
		object, _ := fields["object"].(string)
		family, _, _ := strings.Cut(object, "|") // before version 7 it is all that is named
		if family != "command" && family != "client" {
			denials = append(denials, object)
		}
	}
	return denials
}

// useEverything uses locks in all the ways that make a difference to Redis, with two clients
// that share rdb. It ends when the server, which admin asks, has no subscriber left.
func useEverything(ctx context.Context, rdb redis.UniversalClient, admin *redis.Client, names ...string) error {
	clients := [2]*Client{}
	for i := range clients {
		var err error
		if clients[i], err = New(rdb, WithPrefix("app:"), WithFencing(), WithTTL(20*time.Second)); err != nil {
			return err
		}
		defer clients[i].Close()
	}
	here, there := clients[0], clients[1]
	// A connection without a channel is closed: keep one, to see the other unsubscribed.
	for _, c := range clients {
		defer c.session.hub.Subscribe(c.Mutex("kept").target.Channels[0], func() {}).Close()
	}
	for _, name := range names {
		if err := useName(ctx, here, there, name); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := awaitNoSubscriber(ctx, admin, here.Mutex(name).target.Channels[0]); err != nil {
			return err
		}
	}
	return nil
}

func useName(ctx context.Context, here, there *Client, name string) error {
	renewed := make(chan struct{}, 1)
	m := here.Mutex(name, WithOwner("a"), WithRenewInterval(lease.MinRenewInterval), WithHooks(Hooks{Renewed: signal(renewed)}))
	both := here.MultiMutex([]string{name, name + "2"}, WithOwner("a"))
	other := there.Mutex(name)

	for _, step := range []func() error{
		func() error { return m.Lock(ctx) },
		func() error { return m.Lock(ctx) },
		func() error { return await(ctx, renewed) },
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
func passOnAndWake(ctx context.Context, m *Mutex, here, there *Client) error {
	contended := make(chan struct{}, 1)
	errs := make(chan error, 2)
	for _, waiter := range []*Mutex{
		here.Mutex(m.Name(), WithOwner("b"), WithHooks(Hooks{Contended: signal(contended)})),
		there.Mutex(m.Name(), WithOwner("c"), WithHooks(Hooks{Contended: signal(contended)}), WithSafetyPoll(time.Hour)),
	} {
		go func() { errs <- waiter.Do(ctx, func(context.Context) error { return nil }) }()
		if err := await(ctx, contended); err != nil {
			return err
		}
	}
	if err := awaitSubscriber(ctx, there, m.target); err != nil {
		return err
	}
	there.session.hub.Suspect(m.target.Channels[0])
	return join(m.Unlock(), <-errs, <-errs)
}

// signal returns a hook that says that it was called.
func signal(to chan<- struct{}) func(Event) {
	return func(Event) {
		select {
		case to <- struct{}{}:
		default:
		}
	}
}

func await(ctx context.Context, signalled <-chan struct{}) error {
	select {
	case <-signalled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func second[T any](_ T, err error) error { return err }

// awaitSubscriber waits until c listens to the messages about t.
func awaitSubscriber(ctx context.Context, c *Client, t *keys.Set) error {
	return poll(ctx, func() bool {
		g := c.session.registry.Enter(gateOf(t, 0), t.Channels[0])
		defer c.session.registry.Exit(g)
		return g.Listening()
	})
}

// awaitNoSubscriber waits until nobody listens to a channel any more.
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
