package protocol

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// permitBench is the protocol of a semaphore on its own.
type permitBench struct {
	*bench
	permits *Permits
	on      *keys.Set
	tickets uint64
}

func newPermitBench(b *bench) *permitBench {
	on := b.target(1)
	on.Semaphore()
	return &permitBench{bench: b, permits: NewPermits(b.Plain, "p"), on: on}
}

func eachPermitBench(t *testing.T, fn func(b *permitBench)) {
	eachBench(t, func(t *testing.T, b *bench) { fn(newPermitBench(b)) })
}

// of has fn act as another process.
func (b *permitBench) of(process string, fn func()) {
	before := b.permits
	defer func() { b.permits = before }()
	b.permits = NewPermits(b.Plain, process)
	fn()
}

func limited(limit int) *Terms { return termsOf(func(s *Terms) { s.Limit = limit }) }

// permit is the name of the nth permit.
func permit(n, weight int) string { return fmt.Sprintf("%s:%d:%d", aUUID, n, weight) }

const aUUID = "5ab1f2c0-71f4-4a7e-9d0b-3c6b5f1c2d3e"

// try asks for a permit without waiting.
func (b *permitBench) try(field string, limit int) Grant {
	b.t.Helper()
	g, out := b.permits.Acquire(b.t.Context(), once, b.on, field, limited(limit))
	require.NoError(b.t, out.Err)
	return g
}

// take has field take a permit, for which there is room.
func (b *permitBench) take(field string, limit int) {
	b.t.Helper()
	require.True(b.t, b.try(field, limit).Held, field)
}

// enqueue has field ask, and requires that it waits.
func (b *permitBench) enqueue(field string, limit int) Grant {
	b.t.Helper()
	b.tickets++
	g, out := b.permits.Enqueue(b.t.Context(), once, b.on, field, limited(limit), b.tickets)
	require.NoError(b.t, out.Err)
	require.False(b.t, g.Held, field)
	require.True(b.t, g.Waits, field)
	return g
}

func (b *permitBench) release(field string) Released {
	b.t.Helper()
	r, out := b.permits.Release(b.t.Context(), once, b.on, field, []int{0})
	require.NoError(b.t, out.Err)
	return r
}

func (b *permitBench) poll(limit int, fields ...string) []EntryState {
	b.t.Helper()
	var waiters []Waiter
	for _, field := range fields {
		waiters = append(waiters, Waiter{Field: field, Terms: limited(limit)})
	}
	all, _, out := b.permits.Poll(b.t.Context(), once, b.on, waiters)
	require.NoError(b.t, out.Err)
	var states []EntryState
	for _, s := range all {
		states = append(states, s.State)
	}
	return states
}

func (b *permitBench) renew(fields ...string) []int {
	b.t.Helper()
	var names, words []any
	for _, field := range fields {
		names, words = append(names, b.on.Keys[0]), append(words, field)
	}
	lost, out := b.permits.renewMany(b.t.Context(), once, names, words, asked)
	require.NoError(b.t, out.Err)
	return lost
}

// holders are the permits in use, in the order of their names. It requires that each has as many members as its weight.
func (b *permitBench) holders() []string {
	b.t.Helper()
	members, err := b.rdb.ZRange(b.t.Context(), b.on.Keys[0], 0, -1).Result()
	require.NoError(b.t, err)
	slices.Sort(members)
	var holders []string
	for i := 0; i < len(members); i++ {
		holders = append(holders, members[i])
		for n := 2; n <= keys.WeightOf(holders[len(holders)-1]); n++ {
			i++
			require.Less(b.t, i, len(members))
			require.Equal(b.t, fmt.Sprint(holders[len(holders)-1], ":", n), members[i])
		}
	}
	return holders
}

// queue are those who wait, in order.
func (b *permitBench) queue() []string {
	b.t.Helper()
	fields, err := b.rdb.ZRange(b.t.Context(), b.on.Line[2].(string), 0, -1).Result()
	require.NoError(b.t, err)
	return fields
}

// requireNothing requires that no key is left.
func (b *permitBench) requireNothing() {
	b.t.Helper()
	require.Zero(b.t, b.rdb.Exists(b.t.Context(), b.on.Keys[0], b.on.Line[2].(string), b.on.Line[3].(string)).Val())
}

// endsIn sets the end of a permit's lease, by the server's clock.
func (b *permitBench) endsIn(field string, d time.Duration) {
	b.t.Helper()
	till := float64(b.rdb.Time(b.t.Context()).Val().Add(d).UnixMilli())
	for n := 1; n <= keys.WeightOf(field); n++ {
		member := field
		if n > 1 {
			member = fmt.Sprint(field, ":", n)
		}
		require.NoError(b.t, b.rdb.ZAdd(b.t.Context(), b.on.Keys[0], redis.Z{Score: till, Member: member}).Err())
	}
}

// end is the end of a permit's lease.
func (b *permitBench) end(field string) float64 {
	b.t.Helper()
	return b.rdb.ZScore(b.t.Context(), b.on.Keys[0], field).Val()
}

func TestSemaphore_GrantsUpToTheLimitOfTheRequest(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 2), 4)
		b.take(permit(2, 1), 4)
		require.False(b.t, b.try(permit(3, 2), 4).Held, "3 of 4 are in use")
		b.take(permit(3, 2), 5)
		b.take(permit(4, 3), 8)
		g := b.try(permit(5, 1), 4)
		require.False(b.t, g.Held)
		require.Equal(b.t, permit(1, 2), g.Holder, "that ends first")
		require.InDelta(b.t, asked, g.TTL, float64(time.Minute))
		require.InDelta(b.t, asked, b.ttl(b.on.Keys[0]), float64(time.Minute))
		require.Equal(b.t, []string{permit(1, 2), permit(2, 1), permit(3, 2), permit(4, 3)}, b.holders())
		for n, weight := range []int{2, 1, 2, 3} {
			require.True(b.t, b.release(permit(n+1, weight)).Ours)
		}
		b.requireNothing()
	})
}

func TestSemaphore_RepeatedCommandsChangeNothing(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 2), 3)
		b.take(permit(1, 2), 3)
		require.Equal(b.t, []string{permit(1, 2)}, b.holders())
		b.take(permit(2, 1), 3)
		b.enqueue(permit(3, 1), 3)
		b.enqueue(permit(4, 1), 3)
		b.enqueue(permit(3, 1), 3)
		require.Equal(b.t, []string{permit(3, 1), permit(4, 1)}, b.queue(), "it keeps its place")
		require.Equal(b.t, Released{Ours: true, Granted: true}, b.release(permit(2, 1)))
		require.Equal(b.t, Released{}, b.release(permit(2, 1)), "nothing is released for it again")
		require.Equal(b.t, []string{permit(1, 2), permit(3, 1)}, b.holders())
		require.Equal(b.t, []EntryState{EntryGranted}, b.poll(3, permit(3, 1)))
		require.Equal(b.t, []EntryState{EntryGranted}, b.poll(3, permit(3, 1)))
		g, out := b.permits.Enqueue(b.t.Context(), once, b.on, permit(3, 1), limited(3), 9)
		mustDo(b.t, out)
		require.True(b.t, g.Held, "a delayed copy of its request finds the permit")
		require.Equal(b.t, []string{permit(4, 1)}, b.queue())
	})
}

func TestSemaphore_ReleaseServesAsManyHeadsAsFitWithOneMessageToEachProcess(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		p := b.rdb.Subscribe(b.t.Context(), keys.GrantsPrefix(b.on.Keys[0])+"p")
		defer p.Close()
		q := b.rdb.Subscribe(b.t.Context(), keys.GrantsPrefix(b.on.Keys[0])+"q")
		defer q.Close()
		for _, s := range []*redis.PubSub{p, q} {
			_, err := s.Receive(b.t.Context())
			require.NoError(b.t, err)
		}
		b.take(permit(1, 4), 4)
		b.enqueue(permit(2, 1), 4)
		b.of("q", func() { b.enqueue(permit(3, 1), 4) })
		b.enqueue(permit(4, 1), 4)
		b.enqueue(permit(5, 3), 4)
		b.enqueue(permit(6, 1), 4) // would fit, but is behind a large one
		messages := redistest.MessagesDuring(b.t, b.rdb, b.on.Channels, func() {
			require.Equal(b.t, Released{Ours: true, Granted: true, Receivers: 1}, b.release(permit(1, 4)))
		})
		require.Equal(b.t, [][]string{nil}, messages, "no one else is woken")
		require.Equal(b.t, []string{permit(2, 1), permit(3, 1), permit(4, 1)}, b.holders())
		require.Equal(b.t, "1 0 3 0", redistest.Receive(b.t, p.Channel()).Payload)
		require.Equal(b.t, "2 0", redistest.Receive(b.t, q.Channel()).Payload)
		require.Equal(b.t, []string{permit(5, 3), permit(6, 1)}, b.queue())

		require.False(b.t, b.try(permit(7, 1), 4).Held, "a try does not overtake")
		b.release(permit(2, 1))
		require.Equal(b.t, []string{permit(5, 3), permit(6, 1)}, b.queue(), "two are free, the first needs three")
		b.release(permit(3, 1))
		require.Equal(b.t, []string{permit(4, 1), permit(5, 3)}, b.holders())
		require.Equal(b.t, []string{permit(6, 1)}, b.queue())
		b.release(permit(5, 3))
		b.release(permit(4, 1))
		b.release(permit(6, 1))
		b.requireNothing()
	})
}

func TestSemaphore_WaiterThatGivesUpLetsThoseBehindItPass(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 1), 4)
		b.enqueue(permit(2, 4), 4)
		b.enqueue(permit(3, 3), 4)
		require.False(b.t, b.release(permit(2, 4)).Ours)
		require.Equal(b.t, []string{permit(1, 1), permit(3, 3)}, b.holders())
		require.Empty(b.t, b.queue())
	})
}

// While two versions of a service run, each keeps to its own limit, and no one overtakes.
func TestSemaphore_OlderLimitKeepsItsOrder(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		for n := range 4 {
			b.take(permit(n, 1), 4)
		}
		b.enqueue(permit(4, 1), 4)
		b.enqueue(permit(5, 1), 8)
		b.enqueue(permit(6, 1), 2)
		b.release(permit(0, 1))
		require.Len(b.t, b.holders(), 5, "the fourth for the limit 4, and the fifth for the limit 8")
		require.Equal(b.t, []string{permit(6, 1)}, b.queue())
		for n := 1; n < 4; n++ {
			require.False(b.t, b.release(permit(n, 1)).Granted)
		}
		require.True(b.t, b.release(permit(4, 1)).Granted, "one is left")
		require.Equal(b.t, []string{permit(5, 1), permit(6, 1)}, b.holders())
	})
}

func TestSemaphore_ExpiredPermitIsNobodys(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 1), 2)
		b.take(permit(2, 1), 2)
		b.endsIn(permit(1, 1), -time.Millisecond)
		require.Equal(b.t, []int{1}, b.renew(permit(1, 1), permit(2, 1)), "a renewal does not bring it back")
		require.Equal(b.t, []string{permit(2, 1)}, b.holders())
		require.Equal(b.t, []int{1, 3}, b.renew(permit(1, 1), permit(2, 1), permit(9, 1)))
		require.Nil(b.t, b.renew(permit(2, 1)))

		b.endsIn(permit(2, 1), -time.Hour)
		require.Equal(b.t, Released{}, b.release(permit(2, 1)), "it was not ours any more")
		b.take(permit(3, 2), 2)
		b.endsIn(permit(3, 2), -time.Millisecond)
		s, out := b.permits.State(b.t.Context(), once, b.on, 0)
		mustDo(b.t, out)
		require.Empty(b.t, s.Fields)
		b.take(permit(4, 2), 2)
		require.Equal(b.t, []string{permit(4, 2)}, b.holders(), "it does not count")

		b.enqueue(permit(5, 1), 2)
		b.enqueue(permit(6, 1), 2)
		b.endsIn(permit(4, 2), -time.Millisecond)
		require.Equal(b.t, []EntryState{EntryGranted, EntryGone}, b.poll(2, permit(5, 1), permit(7, 1)), "the poll serves the line")
		require.Equal(b.t, []string{permit(5, 1), permit(6, 1)}, b.holders())
	})
}

func TestSemaphore_RenewalOnlyLengthens(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 1), 2)
		b.endsIn(permit(1, 1), short)
		require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.on.Keys[0], short).Err())
		before := b.end(permit(1, 1))
		require.Nil(b.t, b.renew(permit(1, 1)))
		require.InDelta(b.t, before+float64((asked-short).Milliseconds()), b.end(permit(1, 1)), 60_000)
		require.InDelta(b.t, asked, b.ttl(b.on.Keys[0]), float64(time.Minute))

		b.endsIn(permit(1, 1), long)
		require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.on.Keys[0], long).Err())
		before = b.end(permit(1, 1))
		require.Nil(b.t, b.renew(permit(1, 1)))
		require.Equal(b.t, before, b.end(permit(1, 1)))
		require.InDelta(b.t, long, b.ttl(b.on.Keys[0]), float64(time.Minute))

		require.NoError(b.t, b.rdb.Persist(b.t.Context(), b.on.Keys[0]).Err())
		require.Nil(b.t, b.renew(permit(1, 1)))
		require.InDelta(b.t, long, b.ttl(b.on.Keys[0]), float64(time.Minute), "it gets an expiry again, the end of the permit")
	})
}

func TestSemaphore_PlaceholderKeepsTheShare(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 2), 2)
		b.enqueue(permit(2, 1), 2)
		for range 2 {
			r, out := b.permits.LeavePlaceholder(b.t.Context(), once, b.on, permit(1, 2), clock.Instant{}, short)
			mustDo(b.t, out)
			require.Equal(b.t, Released{Ours: true}, r)
			require.Equal(b.t, []string{aUUID + ":1.kept:2"}, b.holders())
		}
		require.Equal(b.t, []int{1}, b.renew(permit(1, 2)), "a delayed renewal does not find it")
		require.False(b.t, b.release(permit(1, 2)).Ours, "nor does a release")
		require.Equal(b.t, []string{aUUID + ":1.kept:2"}, b.holders())
		b.endsIn(aUUID+":1.kept:2", -time.Millisecond)
		require.Equal(b.t, []EntryState{EntryGranted}, b.poll(2, permit(2, 1)))
		require.Equal(b.t, []string{permit(2, 1)}, b.holders())

		r, out := b.permits.LeavePlaceholder(b.t.Context(), once, b.on, permit(9, 1), clock.Instant{}, short)
		mustDo(b.t, out)
		require.False(b.t, r.Ours, "a permit that was lost leaves none")
		require.Equal(b.t, []string{permit(2, 1)}, b.holders())
	})
}

func TestSemaphore_SkippedWaiterKeepsItsPlace(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		grants := b.rdb.Subscribe(b.t.Context(), keys.GrantsPrefix(b.on.Keys[0])+"dead")
		_, err := grants.Receive(b.t.Context())
		require.NoError(b.t, err)
		b.take(permit(1, 3), 3)
		b.of("dead", func() { b.enqueue(permit(2, 3), 3); b.enqueue(permit(3, 1), 3) })
		require.NoError(b.t, grants.Close())
		redistest.Eventually(b.t, "no one is subscribed", func() bool {
			for _, n := range b.rdb.PubSubNumSub(b.t.Context(), keys.GrantsPrefix(b.on.Keys[0])+"dead").Val() {
				if n > 0 {
					return false
				}
			}
			return true
		})
		b.enqueue(permit(4, 1), 3)
		b.release(permit(1, 3))
		require.Equal(b.t, []string{permit(4, 1)}, b.holders(), "the dead process keeps no one waiting")
		require.Empty(b.t, b.queue())

		b.enqueue(permit(5, 3), 3)
		b.of("dead", func() { require.Equal(b.t, []EntryState{EntryWaiting}, b.poll(3, permit(2, 3))) })
		require.Equal(b.t, []string{permit(2, 3), permit(5, 3)}, b.queue())
		b.release(permit(4, 1))
		require.Equal(b.t, []string{permit(2, 3)}, b.holders())
	})
}

// An entry of the process is served, so the process lives, and its skipped entry comes first.
func TestSemaphore_SkippedWaiterComesBeforeALaterOneOfItsProcess(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 2), 2)
		b.enqueue(permit(2, 1), 2)
		entry := b.rdb.HGet(b.t.Context(), b.on.Line[3].(string), permit(2, 1)).Val()
		var till int64
		_, err := fmt.Sscan(entry, &till)
		require.NoError(b.t, err)
		// As if it had been subscribed at its last request, and were not now.
		require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.on.Line[3].(string), permit(2, 1), fmt.Sprintf("%d 5000 2 1 0 %s", till, keys.GrantsPrefix(b.on.Keys[0])+"p")).Err())
		require.False(b.t, b.try(permit(8, 1), 2).Held) // sets it aside
		require.Empty(b.t, b.queue())
		b.enqueue(permit(3, 2), 2)
		require.Equal(b.t, []string{permit(3, 2)}, b.queue())
		b.release(permit(1, 2))
		require.Equal(b.t, []string{permit(2, 1)}, b.holders())
		require.Equal(b.t, []string{permit(3, 2)}, b.queue())
	})
}

// If the server's clock is set back, leases last longer, as the keys of locks do. If it is set ahead, they end.
func TestSemaphore_FollowsTheClockOfTheServer(t *testing.T) {
	backend := redistest.Mini(t)
	b := newPermitBench(newBench(t, backend.Client(t)))
	now := time.Now()
	backend.Miniredis.SetTime(now)
	b.take(permit(1, 1), 2)
	end := b.end(permit(1, 1))

	backend.Miniredis.SetTime(now.Add(-time.Hour))
	require.Nil(t, b.renew(permit(1, 1)))
	require.Equal(t, end, b.end(permit(1, 1)), "no lease gets shorter")
	b.take(permit(2, 1), 2)
	b.enqueue(permit(3, 1), 2)
	require.Equal(t, permit(2, 1), b.try(permit(4, 1), 2).Holder)

	backend.Miniredis.SetTime(now.Add(day))
	require.Equal(t, []int{1, 2}, b.renew(permit(1, 1), permit(2, 1)))
	b.take(permit(5, 2), 2)
	require.Equal(t, []string{permit(5, 2)}, b.holders())
}

func TestSemaphore_PermitCountsUntilTheEndOfItsLease(t *testing.T) {
	backend := redistest.Mini(t)
	backend.Miniredis.ClockTTL(false) // the key outlives the lease
	b := newPermitBench(newBench(t, backend.Client(t)))
	now := time.Now().Truncate(time.Second)
	backend.Miniredis.SetTime(now)
	b.take(permit(1, 2), 2)
	backend.Miniredis.SetTime(now.Add(asked - time.Millisecond))
	g := b.try(permit(2, 1), 2)
	require.False(t, g.Held)
	require.Equal(t, time.Millisecond, g.TTL)
	require.Equal(t, []string{permit(1, 2)}, b.holders())
	backend.Miniredis.SetTime(now.Add(asked))
	b.take(permit(2, 1), 2)
	require.Equal(t, []string{permit(2, 1)}, b.holders())
}

func TestSemaphore_StateHasPermitsAndWaiters(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 2), 4)
		b.take(permit(2, 1), 4)
		b.endsIn(permit(2, 1), short)
		b.enqueue(permit(3, 2), 4)
		s, out := b.permits.State(b.t.Context(), once, b.on, 0)
		mustDo(b.t, out)
		require.Equal(b.t, []string{permit(2, 1), permit(1, 2)}, s.Fields, "that ends first comes first")
		require.InDelta(b.t, short, s.Leases[0], float64(time.Minute))
		require.InDelta(b.t, asked, s.Leases[1], float64(time.Minute))
		require.Equal(b.t, 1, s.Waiting)
		done, out := b.permits.Force(b.t.Context(), once, b.on, 0, []string{permit(1, 2)})
		mustDo(b.t, out)
		require.True(b.t, done)
		require.Equal(b.t, []string{permit(2, 1), permit(3, 2)}, b.holders())
	})
}

// The ID of a waiter is no permit in use.
func TestSemaphore_ForceOfAWaiterLeavesItInItsPlace(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 1), 1)
		b.enqueue(permit(2, 1), 1)
		b.enqueue(permit(3, 1), 1)
		force := func(field string) bool {
			done, out := b.permits.Force(b.t.Context(), once, b.on, 0, []string{field})
			mustDo(b.t, out)
			return done
		}
		require.False(b.t, force(permit(2, 1)))
		require.Equal(b.t, []string{permit(2, 1), permit(3, 1)}, b.queue())
		// A delayed copy of the request of a holder has added an entry.
		require.NoError(b.t, b.rdb.ZAdd(b.t.Context(), b.on.Line[2].(string), redis.Z{Score: 1, Member: permit(1, 1)}).Err())
		require.True(b.t, force(permit(1, 1)))
		require.Equal(b.t, []string{permit(2, 1)}, b.holders())
		require.Equal(b.t, []string{permit(3, 1)}, b.queue())
	})
}
