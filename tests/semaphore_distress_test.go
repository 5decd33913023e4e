package tests

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// Servers that refuse, lose or replace what a semaphore has on them.

// awaitLoss waits until the permit of ctx is lost.
func awaitLoss(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
		require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
	case <-time.After(redistest.SoonEnough):
		t.Fatal("the loss is not reported")
	}
}

// A permit in use survives, a new request returns the reason, and a waiter is served afterwards.
func TestSemaphore_RefusalsOfAServerPassWithTheirReason(t *testing.T) {
	t.Parallel()
	for name, d := range redistest.Distresses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.RequireVersion(t, d.Since)
			p := d.Admit(t)
			c := locksOn(t, p.Rdb, relock.WithRenewInterval(50*time.Millisecond))
			used, free := c.Semaphore(p.Names("used")[0], 2), c.Semaphore(p.Names("free")[0], 2)
			kept := acquired(t, used, 2)
			waiting := acquiring(t.Context(), used, 1)
			awaitWaiting(t, used, 1)
			d.Strike(p)
			redistest.Eventually(t, d.Contains, func() bool {
				_, err := free.Acquire(t.Context())
				require.Error(t, err)
				require.ErrorContains(t, err, free.Name())
				return regexp.MustCompile(d.Contains).MatchString(err.Error()) // a command under way may fail otherwise
			})
			d.Heal(p)
			if p.Ill != nil {
				redistest.Receive(t, p.Ill)
			}
			redistest.Eventually(t, "well", func() bool { return p.Admin.ZCard(t.Context(), used.Name()).Err() == nil })
			requireNoKeys(t, p.Admin, free.Name())
			require.NoError(t, kept.Context(t.Context()).Err())
			redistest.Eventually(t, "a permit", func() bool {
				q, err := free.Acquire(t.Context())
				return err == nil && q.Release() == nil
			})
			require.Empty(t, waiting)
			require.NoError(t, kept.Release())
			g := redistest.Receive(t, waiting)
			require.NoError(t, g.err)
			require.NoError(t, g.permit.Release())
			requireNoKeys(t, p.Admin, used.Name())
			requireNoKeys(t, p.Admin, free.Name())
		})
	}
}

// While a slot moves, Redis executes no script with several keys of which one is missing, or elsewhere. A renewal and a
// release have only one.
func TestSemaphore_PermitsSurviveTheMoveOfTheirSlot(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	for name, moved := range map[string]bool{"the permits still at the source": false, "the permits already at the target": true} {
		t.Run(name, func(t *testing.T) {
			p := redistest.NewWard(t, cluster)
			events := &chronicle{}
			s := locksOn(t, cluster.Client(t), relock.WithRenewInterval(50*time.Millisecond), relock.WithHooks(events.Hooks())).Semaphore(p.Names("s")[0], 2)
			other := locksOn(t, cluster.Client(t), relock.WithSafetyPoll(300*time.Millisecond)).Semaphore(s.Name(), 2)
			kept, released := acquired(t, s, 1), acquired(t, s, 1)
			served := make(chan granted, 2) // in any order: on a slow machine the entry of the first may expire during the move
			acquire := func() {
				q, err := other.Acquire(t.Context())
				served <- granted{q, err}
			}
			go acquire()
			awaitWaiting(t, s, 1)
			p.BeginMove()
			if moved {
				p.Move(s.Name())
			}
			renewed := len(events.Of("renewed"))
			redistest.Eventually(t, "renewed", func() bool { return len(events.Of("renewed")) > renewed+1 })
			require.NoError(t, released.Release())
			go acquire()
			p.EndMove()
			g := redistest.Receive(t, served)
			require.NoError(t, g.err, "a waiter is served by its poll")
			require.NoError(t, kept.Context(t.Context()).Err())
			require.Empty(t, events.Of("lost"))
			requirePermits(t, s, 2, 1)
			require.NoError(t, kept.Release())
			require.NoError(t, g.permit.Release())
			g = redistest.Receive(t, served)
			require.NoError(t, g.err, "so is one that came during the move")
			require.NoError(t, g.permit.Release())
			requireNoKeys(t, p.Admin, s.Name())
		})
	}
}

// What a server forgets is lost, and reported. Those who wait are served.
func TestSemaphore_ForgottenPermitsAreLost(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (client func() *redis.Client, forget func()){
		"a restart": func(t *testing.T) (func() *redis.Client, func()) {
			s := redistest.NewServer(t)
			return func() *redis.Client { return s.Client(t) }, func() { require.NoError(t, s.Restart()) }
		},
		"a failover": func(t *testing.T) (func() *redis.Client, func()) {
			s := redistest.NewTwoServers(t)
			return s.Client, func() { s.Failover(false) }
		},
		"a failover that the master does not notice": func(t *testing.T) (func() *redis.Client, func()) {
			s := redistest.NewTwoServers(t)
			return s.Client, func() { s.Failover(true) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, forget := start(t)
			events := &chronicle{}
			s := locksOn(t, client(), relock.WithTTL(4*time.Second), relock.WithHooks(events.Hooks())).Semaphore("s", 2)
			other := locksOn(t, client(), relock.WithTTL(4*time.Second)).Semaphore("s", 2)
			p := acquired(t, s, 2)
			ctx := p.Context(t.Context())
			served := make(chan error, 3)
			for range cap(served) { // their order is forgotten, too
				go func() {
					q, err := other.AcquireN(context.Background(), 2)
					if err == nil {
						err = q.Release()
					}
					served <- err
				}()
			}
			awaitWaiting(t, s, cap(served))
			forget()
			for range cap(served) {
				require.NoError(t, redistest.Receive(t, served))
			}
			awaitLoss(t, ctx)
			require.ErrorIs(t, p.Release(), relock.ErrLost)
			events.Await(t, "lost", 1)
			requireNoKeys(t, client(), "s")
		})
	}
}

// Another program may overwrite the name: holders lose their permits, waiters get the reason, and what the program wrote stays.
func TestSemaphore_OverwrittenKeyIsALossAndIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, overwrite := range map[string]func(rdb redis.UniversalClient, key string) error{
		"a string": func(rdb redis.UniversalClient, key string) error {
			return rdb.Set(context.Background(), key, "x", 0).Err()
		},
		"a lock": func(rdb redis.UniversalClient, key string) error {
			return errors.Join(rdb.Del(context.Background(), key).Err(), rdb.HSet(context.Background(), key, "another:1", 1).Err())
		},
		"a leaderboard": func(rdb redis.UniversalClient, key string) error {
			return errors.Join(rdb.Del(context.Background(), key).Err(),
				rdb.ZAdd(context.Background(), key, redis.Z{Score: 9e12 + 1, Member: "ann"}).Err())
		},
		"too many members": func(rdb redis.UniversalClient, key string) error {
			all := make([]redis.Z, 10_001)
			for i := range all {
				all[i] = redis.Z{Score: 9e12 + 1, Member: "uuid:" + strconv.Itoa(i) + ":1"}
			}
			return errors.Join(rdb.Del(context.Background(), key).Err(), rdb.ZAdd(context.Background(), key, all...).Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				rdb := b.Client(t)
				s := locksOn(t, b.Client(t)).Semaphore("s", 2)
				p := acquired(t, s, 2)
				ctx := p.Context(t.Context())
				waiting := acquiring(t.Context(), s, 1)
				awaitWaiting(t, s, 1)
				require.NoError(t, overwrite(rdb, "s"))
				before := contentOf(t, rdb, "s")
				require.ErrorIs(t, redistest.Receive(t, waiting).err, relock.ErrInvalidName)
				for call, err := range callsOf(t, s) {
					require.ErrorIs(t, err, relock.ErrInvalidName, call)
				}
				awaitLoss(t, ctx)
				require.ErrorIs(t, p.Release(), relock.ErrLost)
				require.True(t, before == contentOf(t, rdb, "s"), "it is as it was")
				require.NoError(t, rdb.Del(t.Context(), "s").Err())
				q := acquired(t, s, 2)
				require.NoError(t, q.Release())
				requireNoKeys(t, rdb, "s")
			})
		})
	}
}

// contentOf returns what is at key.
func contentOf(t *testing.T, rdb redis.UniversalClient, key string) string {
	t.Helper()
	return fmt.Sprint(rdb.Type(t.Context(), key).Val(), rdb.Get(t.Context(), key).Val(), rdb.HGetAll(t.Context(), key).Val(),
		rdb.ZRangeWithScores(t.Context(), key, 0, -1).Val())
}

// withServerClock returns a function that sets the clock of b ahead of the real one.
func withServerClock(b *redistest.Backend) (set func(ahead time.Duration)) {
	var ahead atomic.Int64
	b.Miniredis.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		if strings.HasPrefix(command, "EVAL") { // during a script it is locked
			b.Miniredis.SetTime(time.Now().Add(time.Duration(ahead.Load())))
		}
		return false
	})
	return func(d time.Duration) { ahead.Store(int64(d)) }
}

// On a server whose clock is set ahead all leases are over. The waiters are served, and those who lost their permits find that at
// their next renewal.
func TestSemaphore_ServerClockSetAheadIsALoss(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		set := withServerClock(b)
		s := locksOn(t, b.Client(t)).Semaphore("s", 2)
		p := acquired(t, s, 2)
		ctx := p.Context(t.Context())
		waiting := acquiring(t.Context(), locksOn(t, b.Client(t)).Semaphore("s", 2), 2)
		awaitWaiting(t, s, 1)
		began := time.Now()
		set(time.Hour)
		g := redistest.Receive(t, waiting)
		require.NoError(t, g.err)
		require.Less(t, time.Since(began), 2*time.Second, "it is served by its poll")
		awaitLoss(t, ctx)
		require.Less(t, time.Since(began), 11*time.Second)
		require.ErrorIs(t, p.Release(), relock.ErrLost)
		requirePermits(t, s, 2, 0)
		time.Sleep(5 * time.Minute)
		require.NoError(t, g.permit.Context(t.Context()).Err(), "its lease is of the new time")
		require.NoError(t, g.permit.Release())
		requireNoKeys(t, b.Client(t), "s")
	})
}

func TestSemaphore_ServerClockSetBackChangesNothing(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		set := withServerClock(b)
		s := locksOn(t, b.Client(t)).Semaphore("s", 2)
		p := acquired(t, s, 2)
		ctx := p.Context(t.Context())
		first := acquiring(t.Context(), locksOn(t, b.Client(t)).Semaphore("s", 2), 2)
		awaitWaiting(t, s, 1)
		set(-time.Hour)
		second := acquiring(t.Context(), locksOn(t, b.Client(t)).Semaphore("s", 2), 2)
		awaitWaiting(t, s, 2)
		time.Sleep(5 * time.Minute)
		require.NoError(t, ctx.Err())
		require.Empty(t, first)
		for _, waiting := range []<-chan granted{first, second} {
			began := time.Now()
			require.NoError(t, p.Release())
			g := redistest.Receive(t, waiting)
			require.NoError(t, g.err, "in the order of arrival")
			require.Less(t, time.Since(began), 100*time.Millisecond)
			p = g.permit
		}
		require.NoError(t, p.Release())
		requireNoKeys(t, b.Client(t), "s")
	})
}
