package relock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

func TestQuorum_InvalidOneIsRefused(t *testing.T) {
	t.Parallel()
	one, two := redistest.Mini(t).Client(t), redistest.Mini(t).Client(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	again := redis.NewClient(&redis.Options{Addr: two.Options().Addr, DB: 1})
	t.Cleanup(func() { _ = again.Close() })
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1", one.Options().Addr}})
	t.Cleanup(func() { _ = cluster.Close() })
	for _, c := range []struct {
		name string
		rdbs []redis.UniversalClient
		opts []relock.ClientOption
		err  error
		says string
	}{
		{"nothing", nil, nil, relock.ErrInvalidOption, "at least one Redis client"},
		{"a nil interface", []redis.UniversalClient{one, nil, two}, nil, relock.ErrInvalidOption, "2 of 3"},
		{"a nil client", []redis.UniversalClient{one, two, (*redis.Client)(nil)}, nil, relock.ErrInvalidOption, "3 of 3"},
		{"a ring", []redis.UniversalClient{ring, one, two}, nil, relock.ErrUnsupported, "1 of 3"},
		{"one twice", []redis.UniversalClient{one, two, one}, nil, relock.ErrInvalidOption, one.Options().Addr},
		{"one address twice", []redis.UniversalClient{one, two, again}, nil, relock.ErrInvalidOption, "clients 2 and 3 of 3 connect to the same server (" + two.Options().Addr},
		{"a Cluster and its node", []redis.UniversalClient{one, two, cluster}, nil, relock.ErrInvalidOption, one.Options().Addr},
		{"a nil option", []redis.UniversalClient{one, two}, []relock.ClientOption{nil}, relock.ErrInvalidOption, "nil"},
		{"a bad option", []redis.UniversalClient{one, two}, []relock.ClientOption{relock.WithTTL(1)}, relock.ErrInvalidOption, "WithTTL"},
		{"replicas", []redis.UniversalClient{one, two}, []relock.ClientOption{relock.WithReplicas(1, time.Second)}, relock.ErrUnsupported, "WithReplicas"},
		{"shards", []redis.UniversalClient{one, two}, []relock.ClientOption{relock.WithShardedPubSub()}, relock.ErrUnsupported, "WithShardedPubSub"},
		{"Java's counter", []redis.UniversalClient{one, two}, []relock.ClientOption{relock.WithSharedFencing()}, relock.ErrUnsupported, "WithSharedFencing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			locks, err := relock.NewQuorum(c.rdbs, c.opts...)
			require.Nil(t, locks)
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestQuorum_UnsupportedFeatureIsAnErrorOfItsHandles(t *testing.T) {
	t.Parallel()
	c := relock.QuorumOn(t, locktest.ClientsOf(t, redistest.Mini(t).Nodes(t, 3)))
	for name, m := range map[string]*relock.Mutex{
		"fair":     c.FairMutex("a"),
		"write":    c.RWMutex("a").Write(),
		"read":     c.RWMutex("a").Read(),
		"replicas": c.Mutex("a", relock.WithReplicas(1, 100*time.Millisecond)),
		"shared":   c.MultiMutex([]string{"a", "b"}, relock.WithSharedFencing()),
	} {
		require.ErrorIs(t, m.Lock(t.Context()), relock.ErrUnsupported, name)
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrUnsupported, name)
		require.ErrorIs(t, m.Unlock(), relock.ErrUnsupported, name)
		require.Zero(t, m.HoldCount())
		require.Zero(t, m.FencingToken())
		require.ErrorIs(t, context.Cause(m.Context(t.Context())), relock.ErrUnsupported, name)
		_, err = m.State(t.Context())
		require.ErrorIs(t, err, relock.ErrUnsupported, name)
		_, err = m.ForceUnlock(t.Context())
		require.ErrorIs(t, err, relock.ErrUnsupported, name)
	}
}

func TestQuorum_MajorityIsMoreThanHalf(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 6; n++ {
		t.Run(fmt.Sprintf("of %d", n), func(t *testing.T) {
			onQuorum(t, n, func(b *quorumBench) {
				b.warm()
				var taken []int // as many as a majority can do without
				for i := range (n - 1) / 2 {
					taken = append(taken, i)
				}
				b.othersOn(taken...)
				b.cycle(b.mutex())
				b.awaitOn(1, taken...)
				b.othersOn(len(taken))
				require.False(b.t, b.me.Tries(b.t, b.mutex()))
				require.False(b.t, b.rivalTries())
			})
		})
	}
}

func TestQuorum_ContendingProcessesAreAllServed(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	for n, processes := range map[int]int{3: 2, 5: 8} {
		t.Run(fmt.Sprintf("%d processes on %d nodes", processes, n), func(t *testing.T) {
			rounds := 40 / processes
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				nodes, key := b.Nodes(t, n), redistest.Key(t)
				var all sync.WaitGroup
				inside, count, last := 0, 0, int64(0)
				for range processes {
					m := relock.QuorumOn(t, locktest.ClientsOf(t, nodes)).Mutex(key, relock.WithFencing())
					all.Go(func() {
						for range rounds {
							if err := m.Lock(t.Context()); err != nil {
								t.Error(err)
								return
							}
							if inside++; inside != 1 {
								t.Error("two holders")
							}
							if token := m.FencingToken(); token <= last {
								t.Errorf("token %d after %d", token, last)
							} else {
								last = token
							}
							count++
							inside--
							if err := m.Unlock(); err != nil {
								t.Error(err)
							}
						}
					})
				}
				all.Wait()
				require.Equal(t, rounds*processes, count)
			})
		})
	}
}

// majorities are the majorities of three nodes, so ordered that each has another node in common with
// the one before.
var majorities = [][]int{{0, 1}, {1, 2}, {2, 0}, {1, 0}, {2, 1}, {0, 2}}

// tokenFrom has the lock acquired by a majority, the other node being taken, and returns
// what take returns.
func (b *quorumBench) tokenFrom(majority []int, take func() int64) int64 {
	b.t.Helper()
	other := 3 - majority[0] - majority[1]
	b.othersOn(other)
	defer b.othersGone(other)
	token := take()
	b.awaitOn(1, other)
	return token
}

// aheadOn has the tokens of a node be ahead of the others', by what its counter says and,
// where it can be set, by its clock.
func (b *quorumBench) aheadOn(node int, d time.Duration) {
	b.t.Helper()
	at := time.Now().Add(d)
	require.NoError(b.t, b.servers[node].Set(b.t.Context(), locktest.CounterOf(b.key), at.UnixMicro(), 0).Err())
	if mini := b.minis[node].Miniredis; mini != nil {
		mini.SetTime(at)
	}
}

func TestQuorum_TokensRiseWhicheverNodesGrant(t *testing.T) {
	t.Parallel()
	takes := map[string]func(b *quorumBench) int64{
		"acquired": func(b *quorumBench) int64 {
			m := b.mutex(relock.WithFencing())
			b.me.Locks(b.t, m)
			defer b.me.Unlocks(b.t, m)
			return b.tokenOf(b.me, m)
		},
		"by re-entry": func(b *quorumBench) int64 {
			m := b.mutex(relock.WithFencing())
			b.me.Locks(b.t, b.mutex())
			b.me.Locks(b.t, m)
			defer b.me.Unlocks(b.t, b.mutex())
			defer b.me.Unlocks(b.t, m)
			return b.tokenOf(b.me, m)
		},
		"handed over": func(b *quorumBench) int64 {
			m := b.mutex(relock.WithFencing())
			b.me.Locks(b.t, b.mutex())
			next := b.you.Lock(b.t.Context(), m)
			relock.AwaitWaiters(b.t, b.locks, b.key, 1)
			b.me.Unlocks(b.t, b.mutex())
			require.NoError(b.t, locktest.OutcomeOf(b.t, next))
			defer b.you.Unlocks(b.t, m)
			return b.tokenOf(b.you, m)
		},
		"of several names": func(b *quorumBench) int64 {
			m := b.locks.MultiMutex([]string{b.key, b.key + "-too"}, relock.WithFencing())
			b.me.Locks(b.t, m)
			defer b.me.Unlocks(b.t, m)
			return b.tokenOf(b.me, m)
		},
	}
	for name, take := range takes {
		t.Run(name, func(t *testing.T) {
			onQuorum(t, 3, func(b *quorumBench) {
				b.aheadOn(0, time.Hour)
				b.aheadOn(2, -time.Hour)
				last := int64(0)
				for _, majority := range majorities {
					token := b.tokenFrom(majority, func() int64 { return take(b) })
					require.Greater(b.t, token, last, "%v", majority)
					last = token
				}
				require.Greater(b.t, last, time.Now().Add(time.Hour-time.Minute).UnixMicro(), "the highest goes on")
			})
		})
	}
}

func (b *quorumBench) tokenOf(a *locktest.Actor, m *relock.Mutex) (token int64) {
	b.t.Helper()
	require.NoError(b.t, a.Call(func() error {
		token = m.FencingToken()
		return nil
	}))
	require.Positive(b.t, token)
	return token
}

func TestQuorum_TokenWithoutAMajorityIsNone(t *testing.T) {
	t.Parallel()
	onQuorum(t, 3, func(b *quorumBench) {
		b.raising()
		rule := b.relays[1].ReplyWith("-OOM command not allowed\r\n", locktest.RunsOf(protocol.RaiseScript)).Always()
		err := b.me.Call(func() error { return b.mutex(relock.WithFencing()).Lock(b.t.Context()) })
		var q *relock.QuorumError
		require.ErrorAs(b.t, err, &q)
		require.ErrorContains(b.t, err, "OOM")
		rule.Remove()
		b.awaitOn(1, 2) // what was got is released
		b.othersGone(2)
		b.cycle(b.mutex(relock.WithFencing()))
	})
}

func TestQuorum_RaisedCounterKeepsItsExpiry(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb, p := backend.Client(t), protocol.NewPlain(redisexec.New(backend.Client(t), clock.System, time.Minute), false)
		t.Cleanup(func() { p.Exec.Close(context.Background()) })
		target := new(keys.Set)
		err := target.Init("", []string{redistest.Key(t), redistest.Key(t)})
		require.NoError(t, err)
		s := &protocol.Terms{TTL: time.Minute, Fencing: true, CounterLife: time.Hour}
		g, out := p.Acquire(t.Context(), relock.TryOptions, target, "me:1", s)
		require.NoError(t, out.Err)
		require.NoError(t, rdb.Persist(t.Context(), target.Counters[0]).Err())
		require.NoError(t, rdb.Set(t.Context(), target.Counters[1], g.Token+1000, 0).Err())

		raise := func(field string, token int64) (bool, error) {
			ours, out := p.Raise(t.Context(), relock.TryOptions, target, field, s, token)
			return ours, out.Err
		}
		counters := func() []string {
			return []string{rdb.Get(t.Context(), target.Counters[0]).Val(), rdb.Get(t.Context(), target.Counters[1]).Val()}
		}

		before := counters()
		ours, err := raise("you:1", g.Token+500)
		require.NoError(t, err)
		require.False(t, ours)
		require.Equal(t, before, counters(), "who does not hold it changes nothing")

		ours, err = raise("me:1", g.Token+500)
		require.NoError(t, err)
		require.True(t, ours)
		require.Equal(t, []string{fmt.Sprint(g.Token + 500), fmt.Sprint(g.Token + 1000)}, counters(), "never lowered")
		require.Negative(t, locktest.TTLOf(rdb, target.Counters[0]), "one without expiry keeps none")

		require.NoError(t, rdb.PExpire(t.Context(), target.Counters[0], time.Minute).Err())
		_, err = raise("me:1", 1<<53-2)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(int64(1<<53-2)), counters()[0], "to the last digit")
		require.Greater(t, locktest.TTLOf(rdb, target.Counters[0]), time.Minute)

		require.NoError(t, rdb.Set(t.Context(), target.Counters[1], "mine", 0).Err())
		_, err = raise("me:1", 1<<53-1)
		require.ErrorIs(t, err, relock.ErrInvalidName)
		require.Equal(t, "mine", counters()[1])
	})
}

func TestQuorum_OperatorsSeeAndForceWhatAMajorityHolds(t *testing.T) {
	t.Parallel()
	for _, f := range minorities {
		t.Run("one node is "+f.name, func(t *testing.T) {
			onQuorum(t, 3, func(b *quorumBench) {
				b.warm()
				f.fail(b, 1)
				m := b.mutex(relock.WithFencing())
				s, err := m.State(b.t.Context())
				require.NoError(b.t, err)
				require.Empty(b.t, s.Owner)
				b.me.Locks(b.t, m)
				ctx := b.me.ContextOf(m)
				s, err = m.State(b.t.Context())
				require.NoError(b.t, err)
				require.Equal(b.t, relock.HoldsOn(b.locks, b.key)[0].Field, s.Owner)
				require.Equal(b.t, 1, s.Count)
				require.Positive(b.t, s.TTL)
				require.GreaterOrEqual(b.t, s.FencingToken, b.tokenOf(b.me, m))
				forced, err := m.ForceUnlock(b.t.Context())
				require.NoError(b.t, err)
				require.True(b.t, forced)
				require.ErrorIs(b.t, context.Cause(ctx), relock.ErrLost)
				require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
				forced, err = m.ForceUnlock(b.t.Context())
				require.NoError(b.t, err)
				require.False(b.t, forced)
			}, relock.WithTTL(2*time.Second))
		})
	}
}

// labelled is a client of an application that cannot be compared with another.
type labelled struct {
	redis.UniversalClient
	labels []string
}

func TestQuorum_OfIncomparableClientsWorks(t *testing.T) {
	t.Parallel()
	var rdbs []redis.UniversalClient
	for _, rdb := range locktest.ClientsOf(t, redistest.Mini(t).Nodes(t, 3)) {
		rdbs = append(rdbs, labelled{rdb, []string{"a"}})
	}
	c, err := relock.NewQuorum(rdbs)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	m := c.Mutex(redistest.Key(t))
	locktest.RequireLocked(t, m)
	locktest.RequireUnlocked(t, m)
}
