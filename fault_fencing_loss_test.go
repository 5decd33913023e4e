package relock_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// fenceTTL is a lease that no fencing test outlives.
const fenceTTL = time.Minute

// newFence returns a lock with fencing, with two clients that share rdb.
func newFence(t *testing.T, rdb redis.UniversalClient, key string) *tokenFence {
	t.Helper()
	b := &faultBench{
		t: t, ctx: t.Context(), key: key,
		me: newFaultOwner(t), other: newFaultOwner(t), contended: make(chan relock.Event, 1024),
	}
	b.locks = relock.LocksOn(t, rdb, relock.WithTTL(fenceTTL), relock.WithFencing())
	b.m = b.locks.Mutex(key, relock.WithHooks(relock.Hooks{Contended: func(e relock.Event) { b.contended <- e }}))
	b.rival = relock.LocksOn(t, rdb, relock.WithTTL(fenceTTL), relock.WithFencing()).Mutex(key)
	return &tokenFence{faultBench: b}
}

// pass has the lock go through the hands of many: by an acquisition, a hand-over and from
// another process, alone and together with another name. Each new holder has a token above
// all before it; a re-entry has its holder's.
func (f *tokenFence) pass() {
	f.t.Helper()
	several := f.locks.MultiMutex([]string{f.key, f.key + ":too"})
	require.NoError(f.t, f.me.lock(f.ctx, f.m))
	f.requireRise(f.me, f.m)
	require.NoError(f.t, f.me.lock(f.ctx, f.m))
	require.Equal(f.t, f.last, f.me.token(f.m), "re-entry keeps the token")
	require.NoError(f.t, f.me.unlock(f.m))
	waiting := f.other.start(func() error { return f.m.Lock(f.ctx) })
	f.awaitContended()
	require.NoError(f.t, f.me.unlock(f.m))
	require.NoError(f.t, faultError(f.t, waiting))
	f.requireRise(f.other, f.m)
	require.NoError(f.t, f.other.unlock(f.m))
	for _, m := range []*relock.Mutex{f.rival, several, f.locks.Mutex(f.key + ":too"), several, f.m} {
		require.NoError(f.t, f.me.lock(f.ctx, m))
		f.requireRise(f.me, m)
		require.NoError(f.t, f.me.unlock(m))
	}
}

// replaced asserts that the owner that takes the lock over after its loss has a higher token than
// the holder, who learns of it.
func (f *tokenFence) replaced() {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.other.lock(f.ctx, f.rival) == nil }, faultPatience, faultPoll)
	require.Equal(f.t, f.last, f.me.token(f.m), "the token of the hold that was lost, for the resource to refuse")
	f.requireRise(f.other, f.rival)
	require.Eventually(f.t, func() bool { return errors.Is(f.me.lock(f.ctx, f.m), relock.ErrLost) }, faultPatience, faultPoll)
	require.ErrorIs(f.t, f.me.unlock(f.m), relock.ErrLost)
	require.NoError(f.t, f.other.unlock(f.rival))
}

// losses of data, by name, each with whether it spares the lock.
var losses = map[string]struct {
	args   []string // of the server
	strike func(f *tokenFence, server *redistest.Server, rdb *redis.Client)
	spares bool
}{
	"everything is flushed": {strike: func(f *tokenFence, _ *redistest.Server, rdb *redis.Client) {
		require.NoError(f.t, rdb.FlushAll(f.ctx).Err())
	}},
	"the server is killed and keeps nothing": {strike: func(f *tokenFence, server *redistest.Server, _ *redis.Client) {
		require.NoError(f.t, server.Restart())
	}},
	"the server is killed and keeps all": {
		args: []string{"--appendonly", "yes", "--appendfsync", "always"}, spares: true,
		strike: func(f *tokenFence, server *redistest.Server, _ *redis.Client) { require.NoError(f.t, server.Restart()) },
	},
	"the counters are deleted": {spares: true, strike: func(f *tokenFence, _ *redistest.Server, rdb *redis.Client) {
		require.EqualValues(f.t, 2, rdb.Del(f.ctx, f.counters()...).Val())
	}},
	"a counter is deleted": {spares: true, strike: func(f *tokenFence, _ *redistest.Server, rdb *redis.Client) {
		require.EqualValues(f.t, 1, rdb.Del(f.ctx, f.counters()[0]).Val())
	}},
	"the counters come from a backup": {spares: true, strike: func(f *tokenFence, _ *redistest.Server, rdb *redis.Client) {
		f.setCounters(rdb, f.last-int64(time.Hour/time.Microsecond))
	}},
	"the counters are ahead of the clock": {spares: true, strike: func(f *tokenFence, _ *redistest.Server, rdb *redis.Client) {
		f.setCounters(rdb, f.last+int64(1000*time.Hour/time.Microsecond))
		f.last += int64(1000 * time.Hour / time.Microsecond)
	}},
}

func (f *tokenFence) counters() []string {
	return f.locks.MultiMutex([]string{f.key, f.key + ":too"}).Keys().Counters
}

func (f *tokenFence) setCounters(rdb *redis.Client, token int64) {
	for _, counter := range f.counters() {
		require.NoError(f.t, rdb.Set(f.ctx, counter, token, time.Hour).Err())
	}
}

func TestTokens_RiseOverALossOfData(t *testing.T) {
	t.Parallel()
	for name, l := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.NewServer(t, l.args...)
			rdb := server.Client(t)
			f := newFence(t, rdb, redistest.Key(t))
			for range 2 {
				f.pass()
				require.NoError(t, f.me.lock(f.ctx, f.m))
				f.requireRise(f.me, f.m)
				token := f.last
				l.strike(f, server, rdb)
				if l.spares {
					require.Equal(t, 1, f.me.levels(f.m))
					require.Equal(t, token, f.me.token(f.m))
					require.Eventually(t, func() bool { return rdb.Ping(f.ctx).Err() == nil }, faultPatience, faultPoll)
					require.NoError(t, f.me.unlock(f.m))
				} else {
					f.replaced()
				}
			}
			f.pass()
		})
	}
}

// A failover that both sides agree on loses neither the lock nor the counter. One to a
// replica that was cut off loses what came last: of one lock the counter is old then, of
// the other there is none.
func TestTokens_RiseOverAFailoverThatLosesWrites(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	rdb := cluster.Client(t)
	tag := "{" + redistest.Key(t) + "}"
	old, fresh := newFence(t, rdb, tag+"old"), newFence(t, rdb, tag+"fresh")
	old.pass()
	require.NoError(t, old.me.lock(old.ctx, old.m))
	old.requireRise(old.me, old.m)
	_, err := cluster.Failover(t.Context(), tag)
	require.NoError(t, err)
	require.Equal(t, 1, old.me.levels(old.m))
	require.NoError(t, old.me.unlock(old.m))
	old.pass()
	require.NoError(t, cluster.AwaitReady(t.Context()))

	master, err := cluster.Master(t.Context(), tag)
	require.NoError(t, err)
	replica, err := cluster.Replica(t.Context(), tag)
	require.NoError(t, err)
	require.NoError(t, replica.Pause())
	require.NoError(t, master.Client(t).ClientKillByFilter(t.Context(), "TYPE", "replica").Err())
	for _, f := range []*tokenFence{old, fresh} {
		f.pass()
		require.NoError(t, f.me.lock(f.ctx, f.m))
		f.requireRise(f.me, f.m)
	}
	master.Kill()
	require.NoError(t, replica.Resume())
	require.NoError(t, cluster.AwaitMaster(t.Context(), tag, replica))

	left := func(f *tokenFence) string {
		return replica.Client(t).Get(t.Context(), f.m.Keys().Counters[0]).Val()
	}
	require.Empty(t, left(fresh), "the counter was lost")
	counter, err := strconv.ParseInt(left(old), 10, 64)
	require.NoError(t, err)
	require.Less(t, counter, old.last, "the counter is old")
	for _, f := range []*tokenFence{old, fresh} {
		f.replaced()
		f.pass()
	}
}
