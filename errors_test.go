package relock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/quorum"
	"github.com/relock-go/relock/internal/redistest"
)

func TestErrors_NameTheRequestAndTheLock(t *testing.T) {
	for _, c := range []struct {
		op, name string
		err      error
		text     string
	}{
		{"lock", "orders:42", ErrTimeout, `relock: lock "orders:42": wait timed out`},
		{"unlock", "a,b", fmt.Errorf("%w by goroutine 7", ErrNotHeld), `relock: unlock "a,b": not held by goroutine 7`},
		{"lock", "x", io.EOF, `relock: lock "x": EOF`},
		{"lock", "new\nline \"quoted\"", ErrClosed, `relock: lock "new\nline \"quoted\"": client closed`},
		{"try lock", "", fmt.Errorf("%w: empty", ErrInvalidName), `relock: try lock "": invalid name: empty`},
	} {
		err := lockerr.Wrap(c.op, c.name, c.err)
		require.EqualError(t, err, c.text)
		require.ErrorIs(t, err, c.err)
	}
}

func TestErrors_SentinelsAreDistinct(t *testing.T) {
	sentinels := []error{ErrNotHeld, ErrLost, ErrReleased, ErrTimeout, ErrClosed, ErrReentrant, ErrInvalidName, ErrInvalidOption, ErrUnsupported}
	texts := map[string]bool{}
	for i, a := range sentinels {
		require.Regexp(t, `^relock: [a-z]`, a.Error())
		require.False(t, texts[a.Error()])
		texts[a.Error()] = true
		for j, b := range sentinels {
			require.Equal(t, i == j, errors.Is(lockerr.Wrap("lock", "x", a), b), "%v is %v", a, b)
		}
	}
}

// unusable checks that a handle fails in every method with sentinel and a text that names
// the input.
func unusable(t *testing.T, m *Mutex, sentinel error, text string) {
	t.Helper()
	errs := locktest.ErrorsOf(t.Context(), m)
	errs["Unlock"] = m.Unlock()
	errs["Context"] = context.Cause(m.Context(t.Context()))
	for method, err := range errs {
		require.ErrorIs(t, err, sentinel, method)
		require.ErrorContains(t, err, text, method)
		require.ErrorContains(t, err, fmt.Sprintf("%q", m.Name()), method)
	}
	require.ErrorIs(t, m.Context(t.Context()).Err(), context.Canceled)
	require.Zero(t, m.HoldCount())
	require.Zero(t, m.FencingToken())
}

func TestErrors_BadNameIsReturnedByEveryCallOfTheHandle(t *testing.T) {
	locks := clientOn(t, offline(t))
	unusable(t, locks.Mutex(""), ErrInvalidName, "empty")
	unusable(t, locks.MultiMutex(nil), ErrInvalidName, "no names")
	unusable(t, locks.MultiMutex([]string{}), ErrInvalidName, "no names")
	unusable(t, locks.MultiMutex([]string{"good", ""}), ErrInvalidName, "empty")
	for _, name := range []string{"a{b", "{}x", "a}b", "x{}{t}", "}{"} {
		unusable(t, locks.Mutex(name), ErrInvalidName, fmt.Sprintf("%q", name))
		unusable(t, locks.MultiMutex([]string{"good", name}), ErrInvalidName, fmt.Sprintf("%q", name))
	}
	unusable(t, clientOn(t, offline(t), WithPrefix("app{")).Mutex("orders"), ErrInvalidName, `"app{orders"`)
	require.NoError(t, clientOn(t, offline(t), WithPrefix("{app}:")).Mutex("a{b").err)
}

func TestErrors_MultiMutexOfSeveralSlotsIsRefusedOnACluster(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, Dialer: noDial(t)})
	t.Cleanup(func() { rdb.Close() })
	locks := clientOn(t, rdb)
	unusable(t, locks.MultiMutex([]string{"a", "b"}), ErrInvalidName, `{tag}, as in "{a}:a"`)
	unusable(t, locks.MultiMutex([]string{"{t}a", "{u}a"}), ErrInvalidName, `{tag}, as in "{t}:a"`)
	require.NoError(t, locks.MultiMutex([]string{"{t}a", "{t}b"}).err)
	require.NoError(t, locks.FairMutex("{t}").err)
	require.NoError(t, locks.Mutex("a").err)
	require.NoError(t, clientOn(t, offline(t)).MultiMutex([]string{"a", "b"}).err, "a single server has no slots")
}

// The keys beside it would be the keys of the name without the braces.
func TestErrors_NameThatIsOnlyAHashTagIsRefusedByKindsWithMoreKeys(t *testing.T) {
	locks := clientOn(t, offline(t))
	for _, m := range []*Mutex{&locks.RWMutex("{orders}").write, &locks.RWMutex("{orders}").read} {
		unusable(t, m, ErrInvalidName, `with the lock "orders": remove the braces`)
	}
	for _, name := range []string{"{orders}:1", "1:{orders}", "{a}{b}", "orders"} {
		require.NoError(t, locks.FairMutex(name).err, name)
		require.NoError(t, locks.RWMutex(name).write.err, name)
	}
	require.NoError(t, locks.Mutex("{orders}").err)
	require.NoError(t, locks.FairMutex("{orders}").err)
}

// ownClient is a Redis client of an application's own.
type ownClient struct{ redis.UniversalClient }

func TestNew_RefusesANilRedisClient(t *testing.T) {
	for name, rdb := range map[string]redis.UniversalClient{
		"nil":                nil,
		"nil Client":         (*redis.Client)(nil),
		"nil ClusterClient":  (*redis.ClusterClient)(nil),
		"nil Ring":           (*redis.Ring)(nil),
		"nil client of ours": (*ownClient)(nil),
	} {
		t.Run(name, func(t *testing.T) {
			locks, err := New(rdb)
			require.Nil(t, locks)
			require.ErrorIs(t, err, ErrInvalidOption)
			require.ErrorContains(t, err, "the Redis client is nil")
		})
	}
}

func TestNew_RefusesARing(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, HeartbeatFn: func(context.Context, *redis.Client) bool { return true }})
	t.Cleanup(func() { ring.Close() })
	locks, err := New(ring)
	require.Nil(t, locks)
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "Ring")
}

func TestErrors_NilOptionIsRefused(t *testing.T) {
	locks, err := New(offline(t), nil)
	require.Nil(t, locks)
	require.ErrorIs(t, err, ErrInvalidOption)
	require.ErrorContains(t, err, "a ClientOption is nil")
}

func TestErrors_NilContextIsRefused(t *testing.T) {
	m := clientOn(t, offline(t)).Mutex("orders")
	var none context.Context
	errs := locktest.ErrorsOf(none, m)
	errs["Context"] = context.Cause(m.Context(none))
	for method, err := range errs {
		require.ErrorIs(t, err, ErrInvalidOption, method)
		require.ErrorContains(t, err, "the context is nil", method)
		require.ErrorContains(t, err, `"orders"`, method)
	}
}

func TestErrors_NilFunctionIsRefused(t *testing.T) {
	m := clientOn(t, offline(t)).Mutex("orders")
	err := m.Do(t.Context(), nil)
	require.ErrorIs(t, err, ErrInvalidOption)
	require.EqualError(t, err, `relock: do "orders": invalid option: the function is nil`)
}

func TestLock_EndedContextSendsNothing(t *testing.T) {
	m := clientOn(t, offline(t)).Mutex("orders")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for method, err := range locktest.ErrorsOf(ctx, m) {
		require.ErrorIs(t, err, context.Canceled, method)
		require.ErrorContains(t, err, `"orders"`, method)
	}
	require.ErrorIs(t, context.Cause(m.Context(ctx)), context.Canceled)
}

func TestClose_ClosedClientSendsNothing(t *testing.T) {
	locks := clientOn(t, offline(t))
	m := locks.Mutex("orders")
	require.NoError(t, locks.Close())
	for _, m := range []*Mutex{m, locks.Mutex("orders"), locks.MultiMutex([]string{"a", "b"})} {
		for method, err := range locktest.ErrorsOf(t.Context(), m) {
			require.ErrorIs(t, err, ErrClosed, method)
			require.ErrorContains(t, err, fmt.Sprintf("%q", m.Name()), method)
		}
		require.ErrorIs(t, m.Unlock(), ErrNotHeld)
		require.ErrorIs(t, context.Cause(m.Context(t.Context())), ErrNotHeld)
		require.Zero(t, m.HoldCount())
		require.Zero(t, m.FencingToken())
	}
	require.NoError(t, locks.Close(), "as often as one likes")
}

func TestUnlock_WithoutAHoldSendsNothing(t *testing.T) {
	locks := clientOn(t, offline(t))
	for _, m := range []*Mutex{locks.Mutex("orders"), locks.Mutex("orders", WithOwner("job-17")), locks.MultiMutex([]string{"a", "b"})} {
		err := m.Unlock()
		require.ErrorIs(t, err, ErrNotHeld)
		require.ErrorContains(t, err, fmt.Sprintf("%q", m.Name()))
		require.ErrorContains(t, err, m.owner().String(), "who it is that holds nothing")
		require.ErrorIs(t, context.Cause(m.Context(t.Context())), ErrNotHeld)
		require.ErrorIs(t, m.Context(t.Context()).Err(), context.Canceled)
		require.Zero(t, m.HoldCount())
		require.Zero(t, m.FencingToken())
	}
}

func TestLock_RefusesAKeyThatIsNoLockAndLeavesIt(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	for name, c := range map[string]struct {
		key  redistest.Picture
		text string
	}{
		"a string":                 {redistest.TextOf(redistest.Short, "precious"), "another type"},
		"a list":                   {redistest.ListOf(redistest.Forever), "another type"},
		"a write lock":             {redistest.HashOf(redistest.Short, "mode", "write", "uuid-2:7:write", "1"), "read-write lock"},
		"a read lock":              {redistest.HashOf(redistest.Short, "mode", "read", "uuid-2:7", "1"), "read-write lock"},
		"a read lock without hold": {redistest.HashOf(redistest.Forever, "mode", "read"), "read-write lock"},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
				rdb, target := backend.Client(t), targetOf(t, 2)
				redistest.Paint(t, rdb, target.Keys[1], c.key)
				locks := clientOn(t, rdb)
				for _, m := range []*Mutex{locks.Mutex(target.Keys[1], WithFencing()), locks.MultiMutex(target.Keys)} {
					messages := redistest.MessagesDuring(t, rdb, target.Channels, func() {
						for method, err := range locktest.ErrorsOf(t.Context(), m) {
							require.ErrorIs(t, err, ErrInvalidName, method)
							require.ErrorContains(t, err, fmt.Sprintf("%q", target.Keys[1]), method)
							require.ErrorContains(t, err, c.text, method)
						}
						require.ErrorIs(t, m.Unlock(), ErrNotHeld, "nothing was left behind here either")
					})
					require.Equal(t, [][]string{nil, nil}, messages)
					require.Equal(t, redistest.Absent, redistest.Look(t, rdb, target.Keys[0]))
					require.Equal(t, c.key, redistest.Look(t, rdb, target.Keys[1]))
					require.Equal(t, redistest.Absent, redistest.Look(t, rdb, target.Counters[1]))
				}
			})
		})
	}
}

func TestTokens_RefuseACounterThatIsNoneAndLeaveIt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb, target := backend.Client(t), targetOf(t, 1)
		precious := redistest.HashOf(redistest.Short, "precious", "1")
		redistest.Paint(t, rdb, target.Counters[0], precious)
		m := clientOn(t, rdb).Mutex(target.Keys[0], WithFencing())
		errs := locktest.ErrorsOf(t.Context(), m)
		for _, method := range []string{"Lock", "TryLock", "Do"} {
			require.ErrorIs(t, errs[method], ErrInvalidName, method)
			require.ErrorContains(t, errs[method], fmt.Sprintf("%q", target.Counters[0]), method)
		}
		require.NoError(t, errs["State"])
		require.NoError(t, errs["ForceUnlock"])
		require.Equal(t, redistest.Absent, redistest.Look(t, rdb, target.Keys[0]))
		require.Equal(t, precious, redistest.Look(t, rdb, target.Counters[0]))
	})
}

func TestHold_IsLostIfItsKeyTurnsIntoSomethingElse(t *testing.T) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb, target := backend.Client(t), targetOf(t, 1)
		m := clientOn(t, rdb).Mutex(target.Keys[0])
		require.NoError(t, m.Lock(t.Context()))
		precious := redistest.TextOf(redistest.Short, "precious")
		redistest.Paint(t, rdb, target.Keys[0], precious)
		require.ErrorIs(t, m.Lock(t.Context()), ErrLost)
		require.ErrorIs(t, m.Unlock(), ErrLost)
		require.Equal(t, precious, redistest.Look(t, rdb, target.Keys[0]))
	})
}

// Not even a field without a name, when a grant of unknown outcome is undone.
func TestLock_ForeignHashKeepsAllFields(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		direct, key := b.Client(t), redistest.Key(t)
		require.NoError(t, direct.HSet(t.Context(), key, "", "theirs", "k", "v").Err())
		c := LocksOn(t, rdb)
		relay.LoseReply(locktest.RunsOf(protocol.AcquireScript)).Times(1)
		require.ErrorIs(t, c.Mutex(key).Lock(t.Context()), ErrInvalidName)
		redistest.Eventually(t, "it is undone", func() bool { return Settled(c) })
		require.Equal(t, map[string]string{"": "theirs", "k": "v"}, locktest.OnRedis(t, direct, key))
	})
}

// targetOf returns n keys that no other test uses.
func targetOf(tb testing.TB, n int) *keys.Set {
	tb.Helper()
	prefix := redistest.Key(tb)
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + ":" + string(rune('a'+i))
	}
	t := new(keys.Set)
	require.NoError(tb, t.Init("", names))
	return t
}

func TestQuorum_ErrorReportsEachNodeThatFailed(t *testing.T) {
	err := lockerr.Wrap("lock", "orders:42", quorumError(quorum.Failure{Nodes: 5, Needed: 3, Agreed: 1, Errors: []quorum.NodeError{
		{Node: "node-1", Err: lockerr.ErrNotOnRedis}, {Node: "node-2", Err: lockerr.ErrNoAnswer}, {Node: "node-3", Err: ErrInvalidName},
	}}))
	var q *QuorumError
	require.ErrorAs(t, err, &q)
	require.Len(t, q.Errors, 3)
	require.ErrorIs(t, err, ErrInvalidName)
	require.ErrorIs(t, err, lockerr.ErrNotOnRedis)
	require.ErrorIs(t, err, lockerr.ErrNoAnswer)
	var n *NodeError
	require.ErrorAs(t, err, &n)
	require.Equal(t, "node-1", n.Node)
	require.EqualError(t, err, `relock: lock "orders:42": quorum not reached: 1 of 5 nodes succeeded, 3 required: `+
		`node-1: no longer on Redis (deleted, or another owner has it); node-2: no answer from Redis; node-3: invalid name`)
}
