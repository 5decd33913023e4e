package relock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// property is something that every kind of lock promises.
type property struct {
	name string
	test func(b *kindBench)
}

// properties are of Lock and Unlock, and of what comes in between; levelProperties are of holds. That
// no reply is missed that is lost is tested for each of the exchanges.
var properties = []property{
	{"levels are counted, and as many unlocks give it back", func(b *kindBench) {
		m := b.mutex()
		for n := 1; n <= 5; n++ {
			b.me.Locks(b.t, b.mutex())
			require.Equal(b.t, fmt.Sprint(n), fieldsOn(b)[0].count)
		}
		require.False(b.t, b.you.Tries(b.t, b.rival()))
		for range 5 {
			b.me.Unlocks(b.t, m)
		}
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrNotHeld)
	}},
	{"an owner without reentrancy gets an error", func(b *kindBench) {
		m := b.mutex(relock.WithoutReentrancy())
		b.me.Locks(b.t, m)
		require.ErrorIs(b.t, b.me.Call(func() error { return m.Lock(b.t.Context()) }), relock.ErrReentrant)
		b.me.Unlocks(b.t, m)
	}},
	{"a fixed owner is the same in every goroutine", func(b *kindBench) {
		m := b.mutex(relock.WithOwner("job-17"))
		b.me.Locks(b.t, m)
		b.you.Locks(b.t, m)
		require.Equal(b.t, 2, m.HoldCount())
		require.False(b.t, b.me.Tries(b.t, b.rival()))
		b.me.Unlocks(b.t, m)
		b.you.Unlocks(b.t, m)
	}},
	{"callers of one fixed owner join its acquisition", func(b *kindBench) {
		m := b.mutex(relock.WithOwner("job-17"))
		b.me.Locks(b.t, b.rival())
		first, second := locktest.NewActor(b.t).Lock(b.t.Context(), m), locktest.NewActor(b.t).Lock(b.t.Context(), m)
		relock.AwaitWaiters(b.t, b.c, b.key, 1)
		locktest.GoesOn(b.t, first)
		b.me.Unlocks(b.t, b.rival())
		require.NoError(b.t, locktest.OutcomeOf(b.t, first))
		require.NoError(b.t, locktest.OutcomeOf(b.t, second))
		require.Equal(b.t, 2, m.HoldCount())
		b.me.Unlocks(b.t, m)
		b.me.Unlocks(b.t, m)
	}},
	{"another process waits, and is woken", func(b *kindBench) {
		m := b.another()
		b.me.Locks(b.t, b.mutex())
		require.False(b.t, b.you.Tries(b.t, m))
		waiting := b.you.Lock(b.t.Context(), m)
		locktest.GoesOn(b.t, waiting)
		b.me.Unlocks(b.t, b.mutex())
		began := time.Now()
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		require.Less(b.t, time.Since(began), b.promptly(), "no message has woken it")
		b.you.Unlocks(b.t, m)
	}},
	{"many owners of several processes never hold it together", func(b *kindBench) {
		handles := []*relock.Mutex{b.mutex(), b.another(), b.another()}
		weights := []int64{1000, 1000, 1000}
		if b.kind.against != nil {
			weights[0] = 1 // its holds exclude the other handles' holds, but not one another
		}
		var inside, counter atomic.Int64
		var all sync.WaitGroup
		for i := range 9 {
			all.Go(func() {
				for range 6 {
					err := handles[i%3].Do(context.Background(), func(context.Context) error {
						weight := weights[i%3]
						now := inside.Add(weight)
						time.Sleep(time.Millisecond) // long enough for another to come in
						if now = max(now, inside.Load()); now != weight && now >= 1000 {
							b.t.Error("two holders")
						}
						counter.Add(1)
						inside.Add(-weight)
						return nil
					})
					if err != nil {
						b.t.Error(err)
					}
				}
			})
		}
		all.Wait()
		require.EqualValues(b.t, 54, counter.Load())
	}},
	{"a wait ends with its context, and says who holds the lock", func(b *kindBench) {
		b.me.Locks(b.t, b.rival())
		s, err := b.rival().State(b.t.Context())
		require.NoError(b.t, err)
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(b.t.Context())
		m := b.mutex(relock.WithHooks(relock.Hooks{Contended: func(relock.Event) { cancel(cause) }}))
		err = locktest.OutcomeOf(b.t, b.you.Lock(ctx, m))
		require.ErrorIs(b.t, err, cause)
		require.ErrorIs(b.t, err, context.Canceled)
		require.ErrorContains(b.t, err, "still held by "+s.Owner)
		b.me.Unlocks(b.t, b.rival())
	}},
	{"a wait timeout is no cancellation", func(b *kindBench) {
		b.me.Locks(b.t, b.rival())
		err := b.you.Call(func() error { return b.mutex(relock.WithWaitTimeout(locktest.AWhile)).Lock(b.t.Context()) })
		require.ErrorIs(b.t, err, relock.ErrTimeout)
		require.NotErrorIs(b.t, err, context.DeadlineExceeded)
		b.me.Unlocks(b.t, b.rival())
	}},
	{"a context that has ended sends nothing", func(b *kindBench) {
		b.relay()
		ctx, cancel := context.WithCancelCause(b.t.Context())
		cancel(errGaveUp)
		for method, err := range locktest.ErrorsOf(ctx, b.mutex()) {
			require.ErrorIs(b.t, err, errGaveUp, method)
		}
		b.requireNothingSent()
	}},
	{"who gave up keeps nobody waiting", func(b *kindBench) {
		m, third := b.another(), locktest.NewActor(b.t)
		b.me.Locks(b.t, b.rival())
		ctx, cancel := context.WithCancel(b.t.Context())
		gone := b.you.Lock(ctx, b.mutex())
		relock.AwaitWaiters(b.t, b.c, b.key, 1)
		waiting := third.Lock(b.t.Context(), m)
		relock.AwaitWaiters(b.t, m, b.key, 1)
		cancel()
		require.Error(b.t, locktest.OutcomeOf(b.t, gone))
		b.me.Unlocks(b.t, b.rival())
		began := time.Now()
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		require.Less(b.t, time.Since(began), b.promptly())
		third.Unlocks(b.t, m)
	}},
	{"a key that is deleted is a lost lock, known by its context", func(b *kindBench) {
		m := b.mutex(relock.WithTTL(time.Second), relock.WithRenewInterval(50*time.Millisecond))
		b.me.Locks(b.t, m)
		ctx := b.me.ContextOf(m)
		fieldsOn(b) // all have it
		b.on(func(rdb redis.UniversalClient) bool { return rdb.Del(b.t.Context(), b.key).Val() == 1 })
		redistest.Receive(b.t, ctx.Done())
		require.ErrorIs(b.t, context.Cause(ctx), relock.ErrLost)
		require.ErrorIs(b.t, b.me.Call(func() error { return m.Lock(b.t.Context()) }), relock.ErrLost)
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
	}},
	{"a fixed lease runs out, here first", func(b *kindBench) {
		const ttl = 800 * time.Millisecond
		b.relay()
		m := b.mutex(relock.WithTTL(ttl), relock.WithoutRenewal())
		b.me.Locks(b.t, m)
		require.LessOrEqual(b.t, b.deadline(), b.lastSent(protocol.AcquireScript)+ttl-clock.Margin(ttl))
		ctx := b.me.ContextOf(m)
		redistest.Receive(b.t, ctx.Done())
		require.ErrorIs(b.t, context.Cause(ctx), relock.ErrLost)
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
	}},
	{"forced open, it goes to who waits", func(b *kindBench) {
		b.me.Locks(b.t, b.mutex())
		m := b.another()
		waiting := b.you.Lock(b.t.Context(), m)
		locktest.GoesOn(b.t, waiting)
		forced, err := b.mutex().ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		began := time.Now()
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		require.Less(b.t, time.Since(began), b.promptly())
		require.ErrorIs(b.t, b.me.Call(b.mutex().Unlock), relock.ErrLost)
		b.you.Unlocks(b.t, m)
	}},
	{"its state is what Redis says", func(b *kindBench) {
		b.me.Locks(b.t, b.mutex(relock.WithFencing()))
		s, err := b.mutex().State(b.t.Context())
		require.NoError(b.t, err)
		require.Equal(b.t, 1, s.Count)
		require.Positive(b.t, s.TTL)
		if b.kind.name != "read" { // which has no tokens
			require.Positive(b.t, s.FencingToken)
		}
		require.Equal(b.t, fieldsOn(b)[0].field, s.Owner)
		b.me.Unlocks(b.t, b.mutex())
	}},
	{"Close fails who waits, and gives back what is held", func(b *kindBench) {
		other := b.kind.client(b.t, b.rdbs)
		b.me.Locks(b.t, b.mutex())
		waiting := b.you.Lock(b.t.Context(), b.kind.rival(other, b.key))
		relock.AwaitWaiters(b.t, other, b.key, 1)
		require.NoError(b.t, other.Close())
		require.ErrorIs(b.t, locktest.OutcomeOf(b.t, waiting), relock.ErrClosed)
		ctx := b.me.ContextOf(b.mutex())
		require.NoError(b.t, b.c.Close())
		require.ErrorIs(b.t, context.Cause(ctx), relock.ErrClosed)
		require.ErrorIs(b.t, b.me.Call(b.mutex().Unlock), relock.ErrClosed)
		require.ErrorIs(b.t, b.me.Call(func() error { return b.mutex().Lock(b.t.Context()) }), relock.ErrClosed)
	}},
	{"a wait without success reports who has it, in this process or another", func(b *kindBench) {
		m := b.mutex()
		b.me.Locks(b.t, m)
		s, err := m.State(b.t.Context())
		require.NoError(b.t, err)
		require.NotEmpty(b.t, s.Owner)
		for where, c := range map[string]*relock.Client{"here": b.c, "elsewhere": b.kind.client(b.t, b.rdbs)} {
			for who, opts := range map[string][]relock.MutexOption{"a goroutine": nil, "an owner": {relock.WithOwner("job")}} {
				err := b.waitUntilTaken(c, opts...)
				require.ErrorIs(b.t, err, context.Canceled)
				require.ErrorContains(b.t, err, "still held by "+s.Owner, "%s, %s", who, where)
				require.ErrorContains(b.t, err, "lease ends in", "%s, %s", who, where)
			}
		}
		b.me.Unlocks(b.t, m)
	}},
	{"a key of another type is an error and left alone", func(b *kindBench) {
		b.on(func(rdb redis.UniversalClient) bool { return rdb.Set(b.t.Context(), b.key, "mine", 0).Err() == nil })
		require.ErrorIs(b.t, b.me.Call(func() error { return b.mutex().Lock(b.t.Context()) }), relock.ErrInvalidName)
		require.Equal(b.t, len(b.rdbs), b.on(func(rdb redis.UniversalClient) bool {
			return rdb.GetDel(b.t.Context(), b.key).Val() == "mine"
		}))
	}},
	{"a hash of somebody else's is an error and left alone", func(b *kindBench) {
		theirs := map[string]string{"name": "Bob", "mail": "bob@example.com"}
		b.on(func(rdb redis.UniversalClient) bool { return rdb.HSet(b.t.Context(), b.key, theirs).Err() == nil })
		for method, err := range locktest.ErrorsOf(b.t.Context(), b.mutex()) {
			require.ErrorIs(b.t, err, relock.ErrInvalidName, method)
			require.ErrorContains(b.t, err, b.key, method)
		}
		require.Equal(b.t, len(b.rdbs), b.on(func(rdb redis.UniversalClient) bool {
			found := rdb.HGetAll(b.t.Context(), b.key).Val()
			return maps.Equal(theirs, found) && rdb.Del(b.t.Context(), b.key).Val() == 1
		}))
	}},
	{"a bad name or option is an error, and nothing is sent", func(b *kindBench) {
		b.relay()
		require.ErrorIs(b.t, b.kind.mutex(b.c, "a{b").Lock(b.t.Context()), relock.ErrInvalidName)
		require.ErrorIs(b.t, b.mutex(relock.WithTTL(0)).Lock(b.t.Context()), relock.ErrInvalidOption)
		_, err := b.mutex(nil).TryLock(b.t.Context())
		require.ErrorIs(b.t, err, relock.ErrInvalidOption)
		b.requireNothingSent()
	}},
	{"hooks are called", func(b *kindBench) {
		var r chronicle
		m := b.mutex(relock.WithHooks(r.Hooks()))
		b.me.Locks(b.t, b.rival())
		waiting := b.you.Lock(b.t.Context(), m)
		relock.AwaitWaiters(b.t, b.c, b.key, 1)
		b.me.Unlocks(b.t, b.rival())
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		b.you.Unlocks(b.t, m)
		// A fair lock raises its lease soon after it was granted.
		names := slices.DeleteFunc(r.Names(), func(name string) bool { return name == "renewed" })
		require.Equal(b.t, []string{"contended", "acquired", "released"}, names)
	}},
}

// ownerOn is a field of the lock's hash.
type ownerOn struct{ field, count string }

// fieldsOn returns the owners of the lock, when all servers name the same.
func fieldsOn(b *kindBench) []ownerOn {
	b.t.Helper()
	var owners []ownerOn
	redistest.Eventually(b.t, "one picture on all servers", func() bool {
		first := locktest.OnRedis(b.t, b.rdbs[0], b.key)
		owners = nil
		for field, count := range first {
			if field != "mode" {
				owners = append(owners, ownerOn{field, count})
			}
		}
		return b.on(func(rdb redis.UniversalClient) bool { return maps.Equal(locktest.OnRedis(b.t, rdb, b.key), first) }) == len(b.rdbs)
	})
	require.Len(b.t, owners, 1)
	return owners
}

func TestKinds_KeepThePromisesOfAllLocks(t *testing.T) {
	t.Parallel()
	testKinds(t, slices.Concat(properties, levelProperties), allKinds)
	testKindsInTime(t, leaseProperties, allKinds)
	for _, e := range exchanges {
		testKinds(t, []property{{"a lost reply to " + e.name + " changes nothing", e.test}}, named(allKinds, e.kinds))
	}
}

func TestKinds_ExclusiveOnesKeepTheirPromises(t *testing.T) {
	t.Parallel()
	testKinds(t, exclusiveProperties, exclusiveKinds)
}

// testKinds tests properties of kinds of locks.
func testKinds(t *testing.T, properties []property, kinds []lockKind) {
	t.Helper()
	for _, p := range properties {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			eachOf(t, kinds, func(t *testing.T, backend *redistest.Backend, k lockKind) {
				b := newKindBench(t, backend, k)
				p.test(b)
				b.free()
			})
		})
	}
}

// testKindsInTime is testKinds for what has to wait for leases: on miniredis it does so in a bubble.
func testKindsInTime(t *testing.T, properties []property, kinds []lockKind) {
	t.Helper()
	for _, p := range properties {
		for _, k := range tested(kinds) {
			test := func(t *testing.T, rdbs []redis.UniversalClient) {
				b := newKindBenchOn(t, rdbs, k)
				p.test(b)
				b.free()
			}
			t.Run(p.name+"/"+k.name, func(t *testing.T) {
				t.Parallel()
				t.Run("miniredis", func(t *testing.T) { locktest.InBubbleOf(t, max(k.nodes, 1), test) })
				t.Run("redis", func(t *testing.T) {
					redistest.Timed(t)
					test(t, locktest.ClientsOf(t, redistest.Redis(t).Nodes(t, max(k.nodes, 1))))
				})
			})
		}
	}
}
