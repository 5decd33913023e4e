package relock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// kindBench is a lock of one kind, on a fresh name.
type kindBench struct {
	t      *testing.T
	nodes  []*redistest.Backend    // every server that the locks live on
	rdbs   []redis.UniversalClient // of each of them
	relays []*redistest.Relay      // to each of them, if the client goes through relays
	faults []*redistest.Rule       // of those
	key    string
	kind   lockKind
	c      *Client
	others *Client // another process, where the client goes through relays
	me     *actor
	you    *actor
}

func newKindBench(t *testing.T, backend *redistest.Backend, k lockKind) *kindBench {
	t.Helper()
	nodes := backend.Nodes(t, max(k.nodes, 1))
	b := newKindBenchOn(t, clientsOf(t, nodes), k)
	b.nodes = nodes
	return b
}

// newKindBenchOn is newKindBench on servers of which no more is to be known.
func newKindBenchOn(t *testing.T, rdbs []redis.UniversalClient, k lockKind) *kindBench {
	t.Helper()
	return &kindBench{
		t: t, rdbs: rdbs, key: redistest.Key(t), kind: k,
		c: k.client(t, rdbs), me: newActor(t), you: newActor(t),
	}
}

// relay gives the bench a new client, which goes through a relay to each server, and another that
// does not.
func (b *kindBench) relay() {
	b.t.Helper()
	redistest.Slow(b.t)
	var rdbs []redis.UniversalClient
	for _, node := range b.nodes {
		relay, rdb := relayedTo(b.t, node)
		b.relays, rdbs = append(b.relays, relay), append(rdbs, rdb)
	}
	b.c, b.others = b.kind.client(b.t, rdbs), b.kind.client(b.t, b.rdbs)
}

// runs chooses the runs of what the kind has in the place of s on the bench's lock.
func (b *kindBench) runs(s *redisexec.Script) redistest.Match {
	return b.kind.runs(s).And(redistest.With(b.key))
}

func (b *kindBench) mutex(opts ...MutexOption) *Mutex { return b.kind.mutex(b.c, b.key, opts...) }

// rival returns a handle that mutex excludes.
func (b *kindBench) rival(opts ...MutexOption) *Mutex { return b.kind.rival(b.c, b.key, opts...) }

// another returns a rival in another client, as in another process.
func (b *kindBench) another(opts ...ClientOption) *Mutex {
	return b.kind.rival(b.kind.client(b.t, b.rdbs, opts...), b.key)
}

// free requires that nothing is left, here or on Redis. What is under way here comes first, since it
// may take the lock yet: a try at a quorum is over when most nodes have refused it, and the last one
// may grant it after the lock was given back.
func (b *kindBench) free() {
	b.t.Helper()
	for _, c := range []*Client{b.c, b.others} {
		eventually(b.t, "nothing left here", func() bool {
			return c == nil || gatesOf(c) == 0 && (c.session.isClosed() || settledOn(c))
		})
	}
	b.gone()
}

// gone waits until nothing is left on Redis.
func (b *kindBench) gone() {
	b.t.Helper()
	eventually(b.t, "nothing left on Redis", func() bool { return len(b.keys()) == 0 })
}

// keys returns all that the lock has on any server, but for the counters of tokens, which stay.
func (b *kindBench) keys() []string {
	b.t.Helper()
	var all []string
	for _, rdb := range b.rdbs {
		keys, err := rdb.Keys(b.t.Context(), "*"+b.key+"*").Result()
		require.NoError(b.t, err)
		all = append(all, keys...)
	}
	return slices.DeleteFunc(all, func(key string) bool { return strings.HasPrefix(key, "redisson_lock_token:") })
}

// vainly waits for a lock until that is known to be taken, and returns what Lock says then.
func (b *kindBench) vainly(c *Client, opts ...MutexOption) error {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	opts = append(opts, WithHooks(Hooks{Contended: func(Event) { cancel() }}))
	m := b.kind.rival(c, b.key, opts...)
	return outcomeOf(b.t, b.you.begin(func() error { return m.Lock(ctx) }))
}

// lastSent is when the last run of what the kind has in the place of s came through a relay, on
// the clock of deadlines: no earlier than it was sent.
func (b *kindBench) lastSent(s *redisexec.Script) (at time.Duration) {
	runs := b.runs(s)
	for _, relay := range b.relays {
		for _, e := range relay.Log() {
			if runs(e.Command) {
				at = max(at, clock.At(e.Time).Mono)
			}
		}
	}
	return at
}

// deadline is until when the only hold is valid, on the same clock.
func (b *kindBench) deadline() time.Duration {
	b.t.Helper()
	holds := holdsOn(b.c.session, b.key)
	require.Len(b.t, holds, 1)
	holds[0].mu.Lock()
	defer holds[0].mu.Unlock()
	return holds[0].lease.Deadline().Mono
}

// requireNothingSent requires that no server has heard of the client.
func (b *kindBench) requireNothingSent() {
	b.t.Helper()
	for _, relay := range b.relays {
		require.Empty(b.t, relay.Log())
	}
}

// on returns on how many of the servers f is true.
func (b *kindBench) on(f func(rdb redis.UniversalClient) bool) int {
	n := 0
	for _, rdb := range b.rdbs {
		if f(rdb) {
			n++
		}
	}
	return n
}

// leased reports whether the lock is there: on most servers of a quorum.
func (b *kindBench) leased() bool {
	return b.on(func(rdb redis.UniversalClient) bool { return ttlOf(rdb, b.key) > 0 }) > len(b.rdbs)/2
}

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
			b.me.locks(b.t, b.mutex())
			require.Equal(b.t, fmt.Sprint(n), fieldsOn(b)[0].count)
		}
		require.False(b.t, b.you.tries(b.t, b.rival()))
		for range 5 {
			b.me.unlocks(b.t, m)
		}
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrNotHeld)
	}},
	{"an owner without reentrancy is told", func(b *kindBench) {
		m := b.mutex(WithoutReentrancy())
		b.me.locks(b.t, m)
		require.ErrorIs(b.t, b.me.call(func() error { return m.Lock(b.t.Context()) }), ErrReentrant)
		b.me.unlocks(b.t, m)
	}},
	{"a fixed owner is the same in every goroutine", func(b *kindBench) {
		m := b.mutex(WithOwner("job-17"))
		b.me.locks(b.t, m)
		b.you.locks(b.t, m)
		require.Equal(b.t, 2, m.HoldCount())
		require.False(b.t, b.me.tries(b.t, b.rival()))
		b.me.unlocks(b.t, m)
		b.you.unlocks(b.t, m)
	}},
	{"callers of one fixed owner join its acquisition", func(b *kindBench) {
		m := b.mutex(WithOwner("job-17"))
		b.me.locks(b.t, b.rival())
		first, second := newActor(b.t).lock(b.t.Context(), m), newActor(b.t).lock(b.t.Context(), m)
		awaitWaiters(b.t, b.c.session, b.key, 1)
		goesOn(b.t, first)
		b.me.unlocks(b.t, b.rival())
		require.NoError(b.t, outcomeOf(b.t, first))
		require.NoError(b.t, outcomeOf(b.t, second))
		require.Equal(b.t, 2, m.HoldCount())
		b.me.unlocks(b.t, m)
		b.me.unlocks(b.t, m)
	}},
	{"another process waits, and is woken", func(b *kindBench) {
		m := b.another()
		b.me.locks(b.t, b.mutex())
		require.False(b.t, b.you.tries(b.t, m))
		waiting := b.you.lock(b.t.Context(), m)
		goesOn(b.t, waiting)
		b.me.unlocks(b.t, b.mutex())
		began := time.Now()
		require.NoError(b.t, outcomeOf(b.t, waiting))
		require.Less(b.t, time.Since(began), 2*time.Second, "no message has woken it")
		b.you.unlocks(b.t, m)
	}},
	{"many owners of several processes never hold it together", func(b *kindBench) {
		handles := []*Mutex{b.mutex(), b.another(), b.another()}
		weights := []int64{1000, 1000, 1000}
		if b.kind.against != nil {
			weights[0] = 1 // of those of its kind, not of the others
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
		b.me.locks(b.t, b.rival())
		s, err := b.rival().State(b.t.Context())
		require.NoError(b.t, err)
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(b.t.Context())
		m := b.mutex(WithHooks(Hooks{Contended: func(Event) { cancel(cause) }}))
		err = outcomeOf(b.t, b.you.lock(ctx, m))
		require.ErrorIs(b.t, err, cause)
		require.ErrorIs(b.t, err, context.Canceled)
		require.ErrorContains(b.t, err, "still held by "+s.Owner)
		b.me.unlocks(b.t, b.rival())
	}},
	{"a wait timeout is no cancellation", func(b *kindBench) {
		b.me.locks(b.t, b.rival())
		err := b.you.call(func() error { return b.mutex(WithWaitTimeout(aWhile)).Lock(b.t.Context()) })
		require.ErrorIs(b.t, err, ErrTimeout)
		require.NotErrorIs(b.t, err, context.DeadlineExceeded)
		b.me.unlocks(b.t, b.rival())
	}},
	{"a context that has ended sends nothing", func(b *kindBench) {
		b.relay()
		ctx, cancel := context.WithCancelCause(b.t.Context())
		cancel(errGaveUp)
		for method, err := range errorsOf(ctx, b.mutex()) {
			require.ErrorIs(b.t, err, errGaveUp, method)
		}
		b.requireNothingSent()
	}},
	{"who gave up keeps nobody waiting", func(b *kindBench) {
		m, third := b.another(), newActor(b.t)
		b.me.locks(b.t, b.rival())
		ctx, cancel := context.WithCancel(b.t.Context())
		gone := b.you.lock(ctx, b.mutex())
		awaitWaiters(b.t, b.c.session, b.key, 1)
		waiting := third.lock(b.t.Context(), m)
		awaitWaiters(b.t, m.session, b.key, 1)
		cancel()
		require.Error(b.t, outcomeOf(b.t, gone))
		b.me.unlocks(b.t, b.rival())
		began := time.Now()
		require.NoError(b.t, outcomeOf(b.t, waiting))
		require.Less(b.t, time.Since(began), 2*time.Second)
		third.unlocks(b.t, m)
	}},
	{"a key that is deleted is a lost lock, known by its context", func(b *kindBench) {
		m := b.mutex(WithTTL(time.Second), WithRenewInterval(50*time.Millisecond))
		b.me.locks(b.t, m)
		ctx := contextOf(b.me, m)
		fieldsOn(b) // all have it
		b.on(func(rdb redis.UniversalClient) bool { return rdb.Del(b.t.Context(), b.key).Val() == 1 })
		receives(b.t, ctx.Done())
		require.ErrorIs(b.t, context.Cause(ctx), ErrLost)
		require.ErrorIs(b.t, b.me.call(func() error { return m.Lock(b.t.Context()) }), ErrLost)
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrLost)
		b.me.locks(b.t, m)
		b.me.unlocks(b.t, m)
	}},
	{"a fixed lease runs out, here first", func(b *kindBench) {
		const ttl = 800 * time.Millisecond
		b.relay()
		m := b.mutex(WithTTL(ttl), WithoutRenewal())
		b.me.locks(b.t, m)
		require.LessOrEqual(b.t, b.deadline(), b.lastSent(protocol.AcquireScript)+ttl-clock.Margin(ttl))
		ctx := contextOf(b.me, m)
		receives(b.t, ctx.Done())
		require.ErrorIs(b.t, context.Cause(ctx), ErrLost)
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrLost)
	}},
	{"forced open, it goes to who waits", func(b *kindBench) {
		b.me.locks(b.t, b.mutex())
		m := b.another()
		waiting := b.you.lock(b.t.Context(), m)
		goesOn(b.t, waiting)
		forced, err := b.mutex().ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		began := time.Now()
		require.NoError(b.t, outcomeOf(b.t, waiting))
		require.Less(b.t, time.Since(began), 2*time.Second)
		require.ErrorIs(b.t, b.me.call(b.mutex().Unlock), ErrLost)
		b.you.unlocks(b.t, m)
	}},
	{"its state is what Redis says", func(b *kindBench) {
		b.me.locks(b.t, b.mutex(WithFencing()))
		s, err := b.mutex().State(b.t.Context())
		require.NoError(b.t, err)
		require.Equal(b.t, 1, s.Count)
		require.Positive(b.t, s.TTL)
		if b.kind.name != "read" { // which has no tokens
			require.Positive(b.t, s.FencingToken)
		}
		require.Equal(b.t, fieldsOn(b)[0].field, s.Owner)
		b.me.unlocks(b.t, b.mutex())
	}},
	{"Close fails who waits, and gives back what is held", func(b *kindBench) {
		other := b.kind.client(b.t, b.rdbs)
		b.me.locks(b.t, b.mutex())
		waiting := b.you.lock(b.t.Context(), b.kind.rival(other, b.key))
		awaitWaiters(b.t, other.session, b.key, 1)
		require.NoError(b.t, other.Close())
		require.ErrorIs(b.t, outcomeOf(b.t, waiting), ErrClosed)
		ctx := contextOf(b.me, b.mutex())
		require.NoError(b.t, b.c.Close())
		require.ErrorIs(b.t, context.Cause(ctx), ErrClosed)
		require.ErrorIs(b.t, b.me.call(b.mutex().Unlock), ErrClosed)
		require.ErrorIs(b.t, b.me.call(func() error { return b.mutex().Lock(b.t.Context()) }), ErrClosed)
	}},
	{"whoever has waited in vain is told who has it, in this process or another", func(b *kindBench) {
		m := b.mutex()
		b.me.locks(b.t, m)
		s, err := m.State(b.t.Context())
		require.NoError(b.t, err)
		require.NotEmpty(b.t, s.Owner)
		for where, c := range map[string]*Client{"here": b.c, "elsewhere": b.kind.client(b.t, b.rdbs)} {
			for who, opts := range map[string][]MutexOption{"a goroutine": nil, "an owner": {WithOwner("job")}} {
				err := b.vainly(c, opts...)
				require.ErrorIs(b.t, err, context.Canceled)
				require.ErrorContains(b.t, err, "still held by "+s.Owner, "%s, %s", who, where)
				require.ErrorContains(b.t, err, "left", "%s, %s", who, where)
			}
		}
		b.me.unlocks(b.t, m)
	}},
	{"a key of another type is an error and left alone", func(b *kindBench) {
		b.on(func(rdb redis.UniversalClient) bool { return rdb.Set(b.t.Context(), b.key, "mine", 0).Err() == nil })
		require.ErrorIs(b.t, b.me.call(func() error { return b.mutex().Lock(b.t.Context()) }), ErrInvalidName)
		require.Equal(b.t, len(b.rdbs), b.on(func(rdb redis.UniversalClient) bool {
			return rdb.GetDel(b.t.Context(), b.key).Val() == "mine"
		}))
	}},
	{"a hash of somebody else's is an error and left alone", func(b *kindBench) {
		theirs := map[string]string{"name": "Bob", "mail": "bob@example.com"}
		b.on(func(rdb redis.UniversalClient) bool { return rdb.HSet(b.t.Context(), b.key, theirs).Err() == nil })
		for method, err := range errorsOf(b.t.Context(), b.mutex()) {
			require.ErrorIs(b.t, err, ErrInvalidName, method)
			require.ErrorContains(b.t, err, b.key, method)
		}
		require.Equal(b.t, len(b.rdbs), b.on(func(rdb redis.UniversalClient) bool {
			found := rdb.HGetAll(b.t.Context(), b.key).Val()
			return maps.Equal(theirs, found) && rdb.Del(b.t.Context(), b.key).Val() == 1
		}))
	}},
	{"a bad name or option is an error, and nothing is sent", func(b *kindBench) {
		b.relay()
		require.ErrorIs(b.t, b.kind.mutex(b.c, "a{b").Lock(b.t.Context()), ErrInvalidName)
		require.ErrorIs(b.t, b.mutex(WithTTL(0)).Lock(b.t.Context()), ErrInvalidOption)
		_, err := b.mutex(nil).TryLock(b.t.Context())
		require.ErrorIs(b.t, err, ErrInvalidOption)
		b.requireNothingSent()
	}},
	{"hooks are told", func(b *kindBench) {
		var r chronicle
		m := b.mutex(WithHooks(r.hooks()))
		b.me.locks(b.t, b.rival())
		waiting := b.you.lock(b.t.Context(), m)
		awaitWaiters(b.t, b.c.session, b.key, 1)
		b.me.unlocks(b.t, b.rival())
		require.NoError(b.t, outcomeOf(b.t, waiting))
		b.you.unlocks(b.t, m)
		// A fair lock raises its lease soon after it was granted.
		names := slices.DeleteFunc(r.names(), func(name string) bool { return name == "renewed" })
		require.Equal(b.t, []string{"contended", "acquired", "released"}, names)
	}},
	{"a hook that panics leaves nothing behind", func(b *kindBench) {
		panics := func(Event) { panic("in a hook") }
		lock := func(hooks Hooks) {
			_ = b.you.call(func() error {
				defer func() { _ = recover() }()
				return b.mutex(WithHooks(hooks)).Lock(b.t.Context())
			})
		}
		b.me.locks(b.t, b.rival())
		lock(Hooks{Contended: panics})
		b.me.unlocks(b.t, b.rival())
		lock(Hooks{Acquired: panics})
		require.ErrorIs(b.t, b.you.call(b.mutex().Unlock), ErrNotHeld)
		b.you.locks(b.t, b.rival())
		b.you.unlocks(b.t, b.rival())
	}},
}

// ownerOn is a field of the lock's hash.
type ownerOn struct{ field, count string }

// fieldsOn returns the owners of the lock, when all servers name the same.
func fieldsOn(b *kindBench) []ownerOn {
	b.t.Helper()
	var owners []ownerOn
	eventually(b.t, "one picture on all servers", func() bool {
		first := onRedis(b.t, b.rdbs[0], b.key)
		owners = nil
		for field, count := range first {
			if field != "mode" {
				owners = append(owners, ownerOn{field, count})
			}
		}
		return b.on(func(rdb redis.UniversalClient) bool { return maps.Equal(onRedis(b.t, rdb, b.key), first) }) == len(b.rdbs)
	})
	require.Len(b.t, owners, 1)
	return owners
}

// contextOf returns the context of the actor's hold.
func contextOf(a *actor, m *Mutex) (ctx context.Context) {
	_ = a.call(func() error {
		ctx = m.Context(context.Background())
		return nil
	})
	return ctx
}

func TestWhatIsPromisedOfLocksHoldsForEveryKind(t *testing.T) {
	t.Parallel()
	testKinds(t, slices.Concat(properties, levelProperties), allKinds)
	testKindsInTime(t, leaseProperties, allKinds)
	for _, e := range exchanges {
		testKinds(t, []property{{"a lost reply to " + e.name + " changes nothing", e.test}}, named(allKinds, e.kinds))
	}
}

func TestWhatIsPromisedOfExclusiveLocksHoldsForEveryKind(t *testing.T) {
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
		for _, k := range kinds {
			test := func(t *testing.T, rdbs []redis.UniversalClient) {
				b := newKindBenchOn(t, rdbs, k)
				p.test(b)
				b.free()
			}
			t.Run(p.name+"/"+k.name, func(t *testing.T) {
				t.Parallel()
				t.Run("miniredis", func(t *testing.T) { inBubbleOf(t, max(k.nodes, 1), test) })
				t.Run("redis", func(t *testing.T) {
					redistest.Slow(t)
					test(t, clientsOf(t, redistest.Redis(t).Nodes(t, max(k.nodes, 1))))
				})
			})
		}
	}
}
