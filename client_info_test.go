package relock_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// registered is what Redis has of a client, and for how long.
func registered(t *testing.T, rdb redis.UniversalClient, id string) (map[string]string, time.Duration) {
	t.Helper()
	return locktest.OnRedis(t, rdb, keys.OfClient(id)), locktest.TTLOf(rdb, keys.OfClient(id))
}

// awaitRegistered waits until Redis has the client by that name, and returns what it has.
func awaitRegistered(t *testing.T, rdb redis.UniversalClient, id string) map[string]string {
	t.Helper()
	var info map[string]string
	redistest.Eventually(t, "registered", func() bool {
		info, _ = registered(t, rdb, id)
		return len(info) > 0
	})
	return info
}

func TestClientInfo_IsRegisteredDuringHoldsAndGoesWithClose(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb := backend.Client(t)
		c := relock.LocksOn(t, rdb, relock.WithClientInfo(), relock.WithPrefix("orders:"))
		m := c.Mutex(redistest.Key(t))
		locktest.RequireFree(t, rdb, keys.OfClient(c.ID()))
		before := time.Now().Add(-2 * time.Second)
		locktest.RequireLocked(t, m)
		info := awaitRegistered(t, rdb, c.ID())
		host, err := os.Hostname()
		require.NoError(t, err)
		since, err := time.Parse(time.RFC3339, info["since"])
		require.NoError(t, err)
		require.WithinRange(t, since, before, time.Now())
		delete(info, "since")
		require.Equal(t, map[string]string{"host": host, "pid": strconv.Itoa(os.Getpid()), "program": filepath.Base(os.Args[0])}, info)
		_, left := registered(t, rdb, c.ID())
		require.Greater(t, left, relock.RegistrationLease-time.Minute)
		require.LessOrEqual(t, left, relock.RegistrationLease)
		locktest.RequireUnlocked(t, m)
		require.NoError(t, c.Close())
		locktest.RequireFree(t, rdb, keys.OfClient(c.ID()))
	})
}

func TestClientInfo_IsNotRegisteredByDefault(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	c := relock.LocksOn(t, rdb)
	m := c.Mutex(redistest.Key(t))
	locktest.RequireLocked(t, m)
	require.True(t, relock.Settled(c), "it has a goroutine for it")
	locktest.RequireUnlocked(t, m)
	require.NoError(t, c.Close())
	require.Empty(t, keysAbout(t, rdb, "relock_client"))
}

// A minute is the shortest time between two commands, however many holds begin; and the longest while there
// are holds or waiters.
func TestClientInfo_IsRenewedOnceAMinuteDuringHoldsAndWaits(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for name, use := range map[string]func(t *testing.T, rdb *redis.Client, c *relock.Client) (end func()){
		"holds": func(t *testing.T, _ *redis.Client, c *relock.Client) func() {
			m := c.Mutex("job")
			locktest.RequireLocked(t, m)
			return func() { locktest.RequireUnlocked(t, m) }
		},
		"waits": func(t *testing.T, rdb *redis.Client, c *relock.Client) func() {
			locktest.HeldByAnother(t, rdb, "job", 0)
			ctx, stop := context.WithCancel(t.Context())
			waiting := locktest.NewActor(t).Lock(ctx, c.Mutex("job"))
			return func() {
				stop()
				require.Error(t, locktest.OutcomeOf(t, waiting))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
				c := relock.LocksOn(t, rdb, relock.WithClientInfo())
				id := c.ID()
				end := use(t, rdb, c)
				left := func() time.Duration {
					synctest.Wait()
					_, left := registered(t, rdb, id)
					return left.Round(time.Second)
				}
				require.Equal(t, relock.RegistrationLease, left())
				for range 5 {
					time.Sleep(relock.RegistrationInterval - 2*time.Second)
					brief := c.Mutex("brief")
					locktest.RequireLocked(t, brief)
					locktest.RequireUnlocked(t, brief)
					require.Equal(t, relock.RegistrationLease-relock.RegistrationInterval+2*time.Second, left(), "more than once a minute")
					time.Sleep(2 * time.Second)
					require.Equal(t, relock.RegistrationLease, left(), "not once a minute")
				}
				end()
				time.Sleep(relock.RegistrationInterval)
				require.Equal(t, relock.RegistrationLease-relock.RegistrationInterval, left(), "it does not hold or wait any more")
				require.True(t, relock.Settled(c))
				time.Sleep(relock.RegistrationLease)
				require.Empty(t, keysAbout(t, rdb, "relock_client"))
				locktest.RequireLocked(t, c.Mutex("again"))
				redistest.Eventually(t, "registered again", func() bool {
					info, _ := registered(t, rdb, c.ID())
					return len(info) > 0
				})
				locktest.RequireUnlocked(t, c.Mutex("again"))
				require.NoError(t, c.Close())
				require.Empty(t, keysAbout(t, rdb, "relock_client"))
			})
		})
	}
}

// A hold keeps the name that it began with, and the client's next holds have another.
func TestClientInfo_EachNameOfHoldsIsRegistered(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		c := relock.LocksOn(t, rdb, relock.WithClientInfo())
		first := c.ID()
		m := c.Mutex("job")
		locktest.RequireLocked(t, m)
		relock.Retire(c)
		second := c.ID()
		require.NotEqual(t, first, second)
		time.Sleep(relock.RegistrationInterval + time.Second)
		awaitRegistered(t, rdb, second)
		for range 5 {
			time.Sleep(relock.RegistrationInterval)
			awaitRegistered(t, rdb, first)
			awaitRegistered(t, rdb, second)
		}
		locktest.RequireUnlocked(t, m)
		locktest.RequireLocked(t, m)
		time.Sleep(relock.RegistrationLease + relock.RegistrationInterval)
		awaitRegistered(t, rdb, second)
		info, _ := registered(t, rdb, first)
		require.Empty(t, info, "no one has that name any more")
		locktest.RequireUnlocked(t, m)
	})
}

func TestClientInfo_IsRegisteredOnAllNodesOfAQuorum(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdbs := locktest.ClientsOf(t, backend.Nodes(t, 3))
		c := relock.QuorumOn(t, rdbs, relock.WithClientInfo())
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		s, err := m.State(t.Context())
		require.NoError(t, err)
		id := keys.ClientOf(s.Owner) // the current one is another if a node was slow
		for _, rdb := range rdbs {
			awaitRegistered(t, rdb, id)
		}
		locktest.RequireUnlocked(t, m)
		require.NoError(t, c.Close())
		for _, rdb := range rdbs {
			locktest.RequireFree(t, rdb, keys.OfClient(id))
		}
	})
}

// Its key is in any slot.
func TestClientInfo_IsRegisteredOnACluster(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	rdb := redistest.NewCluster(t).Client(t)
	for range 5 {
		c := relock.LocksOn(t, rdb, relock.WithClientInfo())
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		awaitRegistered(t, rdb, c.ID())
		locktest.RequireUnlocked(t, m)
		require.NoError(t, c.Close())
		locktest.RequireFree(t, rdb, keys.OfClient(c.ID()))
	}
}

// A user without the permissions has locks all the same, and is refused once in a minute.
func TestClientInfo_WithoutPermissionLocksWork(t *testing.T) {
	t.Parallel()
	redistest.RequireServer(t)
	for name, test := range map[string]struct {
		rules []string
		there bool
	}{
		"refused":        {[]string{}, false},
		"the documented": {[]string{"~relock_client:*"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.NewServer(t)
			limited, admin := server.User(t, append(test.rules, locktest.LeastRules...)...), server.Client(t)
			c := relock.LocksOn(t, limited, relock.WithPrefix("app:"), relock.WithClientInfo())
			m := c.Mutex("job")
			for range 100 {
				locktest.RequireLocked(t, m)
				locktest.RequireUnlocked(t, m)
			}
			locktest.RequireLocked(t, m)
			if test.there {
				awaitRegistered(t, admin, c.ID())
				require.Empty(t, denials(t, admin))
				return
			}
			refusals := func() (n int64) { // the log has one entry for equal ones
				entries, err := admin.Do(t.Context(), "acl", "log").Slice()
				require.NoError(t, err)
				for _, entry := range entries {
					if fields := entry.(map[any]any); fields["object"] == keys.OfClient(c.ID()) {
						n += fields["count"].(int64)
					}
				}
				return n
			}
			redistest.Eventually(t, "refused", func() bool { return refusals() > 0 })
			locktest.Throughout(t, locktest.AWhile, func() bool { return refusals() == 1 }, "it tries again and again")
			locktest.RequireFree(t, admin, keys.OfClient(c.ID()))
			locktest.RequireUnlocked(t, m)
		})
	}
}

// Close does not wait for a Redis that is gone for longer than it does without the option.
func TestClientInfo_CloseIsBounded(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, backend *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, backend)
		c := relock.LocksOn(t, rdb, relock.WithClientInfo())
		m := c.Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		awaitRegistered(t, rdb, c.ID())
		locktest.RequireUnlocked(t, m)
		relay.BlackHole(true)
		began := time.Now()
		require.NoError(t, c.Close())
		require.LessOrEqual(t, time.Since(began), closeTimeout)
	})
}

// A command to the frozen node is still under way when the client is closed.
func TestClientInfo_GoesFromTheNodesOfAQuorumThatAnswer(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.relays[2].BlackHole(true)
		id := b.locks.ID()
		b.me.Locks(b.t, b.mutex())
		for _, rdb := range b.servers[:2] {
			awaitRegistered(b.t, rdb, id)
		}
		b.me.Unlocks(b.t, b.mutex())
		require.NoError(b.t, b.locks.Close())
		for _, rdb := range b.servers[:2] {
			locktest.RequireFree(b.t, rdb, keys.OfClient(id))
		}
	}, relock.WithClientInfo())
}
