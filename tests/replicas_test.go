package tests

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// replicaBench is a lock client whose way to a master with replicas leads through a relay.
type replicaBench struct {
	*redistest.Replicated
	t      *testing.T
	relay  *redistest.Relay
	rdb    *redis.Client // through the relay
	master *redis.Client // past it
	locks  *relock.Client
	key    string
	events *chronicle
}

func newReplicaBench(t *testing.T, replicas int, opts ...relock.ClientOption) *replicaBench {
	t.Helper()
	t.Parallel()
	set := redistest.NewReplicated(t, replicas)
	b := &replicaBench{Replicated: set, t: t, key: redistest.Key(t), events: &chronicle{}}
	b.master = set.Master.Client(t)
	b.relay, b.rdb = locktest.RelayedTo(t, &redistest.Backend{Addr: set.Master.Addr})
	b.locks = locksOn(t, b.rdb, append([]relock.ClientOption{relock.WithHooks(b.events.Hooks())}, opts...)...)
	return b
}

func (b *replicaBench) pause() {
	b.t.Helper()
	for _, replica := range b.Replicas {
		require.NoError(b.t, replica.Pause())
	}
}

func (b *replicaBench) resume() {
	b.t.Helper()
	for _, replica := range b.Replicas {
		require.NoError(b.t, replica.Resume())
	}
}

// awaitEvent waits until a hook was called n times.
func (b *replicaBench) awaitEvent(hook string, n int) {
	b.t.Helper()
	b.events.Await(b.t, hook, n)
}

// awaitFree waits until nothing is left of keys.
func (b *replicaBench) awaitFree(keys ...string) {
	b.t.Helper()
	redistest.Eventually(b.t, "free", func() bool { return b.master.Exists(context.Background(), keys...).Val() == 0 })
}

// locked locks m, however long a loaded machine takes to replicate.
func (b *replicaBench) locked(m *relock.Mutex) {
	b.t.Helper()
	redistest.Eventually(b.t, "locked", func() bool { return m.Lock(b.t.Context()) == nil })
}

var waits = redistest.Named("WAIT")

// waitsFor lists, for every run of s on the bench's key in order, what number of replicas
// the next command of its connection waits for; "" where that is no WAIT.
func (b *replicaBench) waitsFor(s *redisexec.Script) []string {
	var found []string
	log := b.relay.Log()
	for i, entry := range log {
		if !locktest.RunsOf(s)(entry.Command) || !entry.Command.Has(b.key) {
			continue
		}
		n := ""
		for _, next := range log[i+1:] {
			if next.Conn == entry.Conn {
				if waits(next.Command) {
					n = next.Command.Arg(1)
				}
				break
			}
		}
		found = append(found, n)
	}
	return found
}

func TestReplicas_EveryLeaseIsFollowedByAWaitAndNoReleaseIs(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithReplicas(1, 3*time.Second), relock.WithRenewInterval(50*time.Millisecond))
	m, other := b.locks.Mutex(b.key), locktest.NewActor(t)
	locktest.RequireLocked(t, m)
	locktest.RequireLocked(t, m)
	b.awaitEvent("renewed", 2)
	locktest.RequireUnlocked(t, m)
	passed := other.Lock(t.Context(), m)
	b.awaitEvent("contended", 1)
	locktest.RequireUnlocked(t, m) // handed over
	require.NoError(t, locktest.OutcomeOf(t, passed))
	other.Unlocks(t, m)
	locktest.RequireFree(t, b.master, b.key)

	all := 0
	for _, s := range []*redisexec.Script{protocol.AcquireScript, protocol.ReenterScript, protocol.RenewScript, protocol.RenameScript} {
		found := b.waitsFor(s)
		require.NotEmpty(t, found)
		for _, n := range found {
			require.Equal(t, "1", n)
		}
		all += len(found)
	}
	require.Equal(t, all, b.relay.Count(waits))
	require.Len(t, b.waitsFor(protocol.AcquireScript), 1)
	require.Len(t, b.waitsFor(protocol.RenameScript), 1)
	require.Equal(t, []string{"", ""}, b.waitsFor(protocol.ReleaseScript))
}

// The WAIT does not wait for the answer to the script.
func TestReplicas_LockCostsOneRoundTrip(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithReplicas(1, 3*time.Second))
	together := make(chan bool, 1)
	b.relay.After(locktest.RunsOf(protocol.AcquireScript), func(redistest.Command, string) {
		for end := time.Now().Add(locktest.SoonEnough / 2); b.relay.Count(waits) == 0 && time.Now().Before(end); {
			time.Sleep(locktest.LookEvery)
		}
		together <- b.relay.Count(waits) == 1
	})
	ctx, cancel := context.WithTimeout(t.Context(), locktest.SoonEnough)
	defer cancel()
	_ = b.locks.Mutex(b.key).Lock(ctx)
	require.True(t, redistest.Receive(t, together))
}

func TestReplicas_NothingWaitsWithoutTheOption(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithRenewInterval(20*time.Millisecond))
	b.pause()
	m := b.locks.Mutex(b.key)
	locktest.RequireLocked(t, m)
	locktest.RequireLocked(t, m)
	b.awaitEvent("renewed", 1)
	locktest.RequireUnlocked(t, m)
	locktest.RequireUnlocked(t, m)
	require.Zero(t, b.relay.Count(waits))
}

func TestReplicas_UnconfirmedLockIsRefusedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	const within = 100 * time.Millisecond
	second := func(b *replicaBench) string { return b.key + "-2" }
	for name, attempt := range map[string]func(b *replicaBench) error{
		"Lock": func(b *replicaBench) error { return b.locks.Mutex(b.key).Lock(b.t.Context()) },
		"a fixed owner": func(b *replicaBench) error {
			return b.locks.Mutex(b.key, relock.WithOwner("job-7")).Lock(b.t.Context())
		},
		"TryLock": func(b *replicaBench) error {
			held, err := b.locks.Mutex(b.key).TryLock(b.t.Context())
			require.False(b.t, held)
			return err
		},
		"MultiMutex": func(b *replicaBench) error {
			return b.locks.MultiMutex([]string{b.key, second(b)}).Lock(b.t.Context())
		},
		"Do": func(b *replicaBench) error {
			return b.locks.Mutex(b.key).Do(b.t.Context(), func(context.Context) error {
				b.t.Error("it ran without the lock")
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newReplicaBench(t, 1, relock.WithReplicas(1, within))
			b.pause()
			id, began := b.locks.ID(), time.Now()
			err := attempt(b)
			require.ErrorIs(t, err, relock.ErrNotReplicated)
			require.ErrorContains(t, err, b.key)
			require.ErrorContains(t, err, "0 of 1 replicas confirmed the write within 100ms")
			require.GreaterOrEqual(t, time.Since(began), within)
			require.NotEqual(t, id, b.locks.ID(), "what undoes it may be repeated")
			require.Equal(t, 1, b.relay.Count(locktest.RunsOf(protocol.AcquireScript)), "the answer is not asked for again")
			b.awaitFree(b.key, second(b))
			require.Zero(t, b.locks.Mutex(b.key).HoldCount())
			require.Empty(t, b.events.Of("acquired"))

			b.resume()
			require.NoError(t, b.locks.Mutex(b.key, relock.WithReplicas(1, 4*time.Second)).Lock(t.Context()))
		})
	}
}

func TestReplicas_EnoughSuffice(t *testing.T) {
	b := newReplicaBench(t, 2)
	require.NoError(t, b.Replicas[0].Pause())
	one := b.locks.Mutex(b.key, relock.WithReplicas(1, 4*time.Second))
	locktest.RequireLocked(t, one)
	locktest.RequireUnlocked(t, one)
	// Longer than a script without replicas is waited for.
	err := b.locks.Mutex(b.key, relock.WithReplicas(2, 1500*time.Millisecond)).Lock(t.Context())
	require.ErrorIs(t, err, relock.ErrNotReplicated)
	require.ErrorContains(t, err, "1 of 2 replicas")
	require.Equal(t, []string{"1", "2"}, b.waitsFor(protocol.AcquireScript))
}

func TestReplicas_MultiMutexIsConfirmedOnce(t *testing.T) {
	b := newReplicaBench(t, 1, relock.WithReplicas(1, 4*time.Second))
	m := b.locks.MultiMutex([]string{b.key, b.key + "-2"})
	locktest.RequireLocked(t, m)
	require.Equal(t, []string{"1"}, b.waitsFor(protocol.AcquireScript))
	require.Equal(t, 1, b.relay.Count(waits))
	locktest.RequireUnlocked(t, m)
}

func TestReplicas_MiniredisHasNone(t *testing.T) {
	b := redistest.Mini(t)
	c := locksOn(t, b.Client(t), relock.WithReplicas(1, 100*time.Millisecond))
	m := c.Mutex(redistest.Key(t))
	require.ErrorIs(t, m.Lock(t.Context()), relock.ErrNotReplicated)
	redistest.Eventually(t, "undone", func() bool { return !b.Miniredis.Exists(m.Name()) })
}

func TestReplicas_UnknownClientIsUnsupported(t *testing.T) {
	wrapped := struct{ redis.UniversalClient }{redistest.Mini(t).Client(t)}
	_, err := relock.New(wrapped, relock.WithReplicas(1, time.Second))
	require.ErrorIs(t, err, relock.ErrUnsupported)
	m := locksOn(t, wrapped).Mutex("name", relock.WithReplicas(1, time.Second))
	err = m.Lock(t.Context())
	require.ErrorIs(t, err, relock.ErrUnsupported)
	require.ErrorContains(t, err, "WithReplicas needs a *redis.Client")
	require.ErrorContains(t, err, strconv.Quote("name"))
	require.False(t, strings.Contains(err.Error(), "relock: not"), "the package is named once")
}
