package relock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// fleet is locks of one client, behind a relay, whose holds are renewed only when the test says so.
type fleet struct {
	t      *testing.T
	relay  *redistest.Relay
	direct *redis.Client
	c      *Client
	clocks *twoClocks
	events *chronicle
	locks  []*Mutex
	holds  []*hold
}

const (
	fleetTTL      = 10 * time.Minute
	worn          = time.Minute    // what is left of a lease before it is renewed
	fleetPatience = 4 * soonEnough // with a renewal: it is for the test to say what is not answered
)

// newFleet has n owners lock one lock of the kind each.
func newFleet(t *testing.T, b *redistest.Backend, kind lockKind, n int) *fleet {
	t.Helper()
	relay, _ := relayedTo(t, b)
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr, ReadTimeout: fleetPatience})
	t.Cleanup(func() { _ = rdb.Close() })
	return newFleetOn(t, rdb, relay, b.Client(t), kind, n)
}

func newFleetOn(t *testing.T, rdb redis.UniversalClient, relay *redistest.Relay, direct *redis.Client, kind lockKind, n int) *fleet {
	t.Helper()
	w := &fleet{t: t, relay: relay, direct: direct, events: &chronicle{}}
	w.c, w.clocks = locksWithClock(t, rdb, WithHooks(w.events.hooks()))
	w.c.session.patience, w.c.session.execs[0].Patience = fleetPatience, fleetPatience
	w.renewals().Company = soonEnough // what is in a batch is for the test to say
	key := redistest.Key(t)
	for i := range n {
		m := kind.mutex(w.c, fmt.Sprintf("%s-%d", key, i), WithOwner(fmt.Sprintf("job-%d", i)), WithTTL(fleetTTL))
		requireLocked(t, m)
		h := holdsOn(w.c.session, m.target.Keys[0])[0]
		w.locks, w.holds = append(w.locks, m), append(w.holds, h)
		for _, key := range m.target.Keys {
			require.NoError(t, w.direct.PExpire(t.Context(), key, worn).Err())
		}
	}
	return w
}

func (w *fleet) renewals() *protocol.Renewals { return w.c.plain.protocol.(*protocol.Plain).Renewals }

// gathered is how many holds wait for a batch to be sent.
func (w *fleet) gathered() int {
	r := w.renewals()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	n := 0
	for _, l := range r.Lanes {
		if l.Next != nil {
			n += len(l.Next.Members)
		}
	}
	return n
}

// UnderWay is how many commands there are that are not answered.
func (w *fleet) underWay() int {
	r := w.renewals()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	n := 0
	for _, l := range r.Lanes {
		n += l.UnderWay
	}
	return n
}

// awaitNothingKept waits until nothing is left of renewals.
func (w *fleet) awaitNothingKept() {
	w.t.Helper()
	r := w.renewals()
	eventually(w.t, "no lane to be kept", func() bool {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		return len(r.Lanes) == 0
	})
}

// gather has all holds renewed: the first alone, for whose answer the others wait. It returns
// when they do; then go lets the answer come. The channel is closed when all have been renewed.
func (w *fleet) gather() (proceed func(), renewed <-chan struct{}) {
	w.t.Helper()
	first := w.relay.Block(runsOf(protocol.RenewScript))
	var all sync.WaitGroup
	all.Go(w.holds[0].renew)
	first.Wait(w.t)
	for _, h := range w.holds[1:] {
		all.Go(h.renew)
	}
	eventually(w.t, "all others in a batch", func() bool { return w.gathered() == len(w.holds)-1 })
	done := make(chan struct{})
	go func() {
		defer close(done)
		all.Wait()
	}()
	return first.Release, done
}

// together has all holds renewed, all but the first in a batch.
func (w *fleet) together() {
	w.t.Helper()
	proceed, renewed := w.gather()
	proceed()
	receives(w.t, renewed)
}

// requireRenewed requires that exactly these holds are held, and have their lease.
func (w *fleet) requireRenewed(locks ...int) {
	w.t.Helper()
	want, got := map[int]bool{}, map[int]bool{}
	for _, i := range locks {
		want[i] = true
	}
	for i, m := range w.locks {
		if m.HoldCount() != 1 {
			continue
		}
		got[i] = true
		for _, key := range m.target.Keys {
			require.Greater(w.t, ttlOf(w.direct, key), fleetTTL-worn, "key %d", i)
		}
	}
	require.Equal(w.t, want, got)
}

// sent returns how many commands there were for one renewal, and for several.
func (w *fleet) sent() (alone, batches int) {
	return w.relay.Count(runsOf(protocol.RenewScript)), w.relay.Count(runsOf(protocol.RenewManyScript))
}

func (w *fleet) requireSent(alone, batches int) {
	w.t.Helper()
	a, b := w.sent()
	require.Equal(w.t, [2]int{alone, batches}, [2]int{a, b}, "commands for one renewal, and for several")
}

// batchable are the kinds whose holds are renewed together.
var batchable = named(lockKinds, []string{"plain", "multi", "fair", "write"})

// eachFleet runs test with n holds of each kind that is renewed together.
func eachFleet(t *testing.T, n int, test func(t *testing.T, w *fleet)) {
	t.Helper()
	t.Parallel()
	eachOf(t, batchable, func(t *testing.T, b *redistest.Backend, kind lockKind) { test(t, newFleet(t, b, kind, n)) })
}

// onFleet runs test with n holds of plain locks: for what does not depend on the kind.
func onFleet(t *testing.T, n int, test func(t *testing.T, w *fleet)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		test(t, newFleet(t, b, kindNamed("plain"), n))
	})
}

func TestRenewalsThatAreDueTogetherAreOneCommand(t *testing.T) {
	eachFleet(t, 7, func(t *testing.T, w *fleet) {
		w.together()
		w.requireSent(1, 1)
		w.requireRenewed(0, 1, 2, 3, 4, 5, 6)
		owners := map[string]int{}
		for _, e := range w.events.of("renewed") {
			owners[e.Owner]++
		}
		require.Len(t, owners, 7)
		require.Len(t, w.events.of("renewed"), 7, "the hook tells of each")
		require.Empty(t, w.events.of("renew failed"))
		w.awaitNothingKept()
		for _, m := range w.locks {
			requireUnlocked(t, m)
		}
	})
}

func TestARenewalThatIsAloneDoesNotWait(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		for _, h := range w.holds {
			h.renew()
		}
		w.requireSent(3, 0)
		w.requireRenewed(0, 1, 2)
	})
}

func TestARenewalThatHasNoTimeToLoseDoesNotWait(t *testing.T) {
	onFleet(t, 2, func(t *testing.T, w *fleet) {
		rule := w.relay.Block(runsOf(protocol.RenewScript))
		renewed := make(chan struct{}, 2)
		renew := func(h *hold) {
			h.renew()
			renewed <- struct{}{}
		}
		go renew(w.holds[0])
		rule.Wait(t)
		urgent := w.holds[1]
		urgent.mu.Lock()
		urgent.lease.Shorten(w.clocks.now().After(10 * protocol.CompanyTime)) // it is waited for for half of that
		urgent.mu.Unlock()
		go renew(urgent)
		receives(t, renewed)
		rule.Release()
		receives(t, renewed)
		eventually(t, "both sent", func() bool { alone, _ := w.sent(); return alone == 2 })
	})
}

// The first may be stuck for as long as it is waited for.
func TestARenewalWaitsForCompanyForAMomentOnly(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		w.renewals().Company = protocol.CompanyTime
		rule := w.relay.Block(runsOf(protocol.RenewScript))
		stuck := make(chan struct{})
		go func() {
			defer close(stuck)
			w.holds[0].renew()
		}()
		rule.Wait(t)
		var others sync.WaitGroup
		for _, h := range w.holds[1:] {
			others.Go(h.renew)
		}
		eventually(t, "a batch under way", func() bool { return w.underWay() > 1 })
		rule.Release()
		others.Wait()
		receives(t, stuck)
	})
}

func TestABatchHasABoundedNumberOfKeys(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		for keys, of := range map[int]struct{ holds, alone, batches int }{1: {121, 1, 2}, 3: {70, 1, 3}, 50: {6, 1, 3}, 51: {4, 4, 0}} {
			t.Run(fmt.Sprint(keys), func(t *testing.T) {
				kind := lockKind{mutex: func(c *Client, key string, opts ...MutexOption) *Mutex {
					var names []string
					for i := range keys {
						names = append(names, fmt.Sprintf("%s-%d", key, i))
					}
					return c.MultiMutex(names, opts...)
				}}
				w := newFleet(t, b, kind, of.holds)
				first := w.relay.Block(runsOf(protocol.RenewScript))
				var all sync.WaitGroup
				all.Go(w.holds[0].renew)
				first.Wait(t)
				for _, h := range w.holds[1:] {
					all.Go(h.renew)
				}
				if of.batches > 0 {
					eventually(t, "the rest to wait", func() bool {
						return w.underWay() == of.batches && w.gathered() == (of.holds-1)%(protocol.BatchKeys/keys)
					})
				}
				first.Release()
				all.Wait()
				w.requireSent(of.alone, of.batches)
				for _, e := range w.relay.Log() {
					if runsOf(protocol.RenewManyScript)(e.Command) {
						n, err := strconv.Atoi(e.Command.Arg(2))
						require.NoError(t, err)
						require.LessOrEqual(t, n, 100)
						require.Zero(t, n%keys, "whole holds")
					}
				}
				require.Len(t, w.events.of("renewed"), of.holds)
			})
		}
	})
}

func TestOneLostHoldOfABatchIsLostAloneAndNoneOfItsKeysIsLengthened(t *testing.T) {
	t.Parallel()
	taken := map[string]func(ctx context.Context, rdb *redis.Client, key string) error{
		"gone": func(ctx context.Context, rdb *redis.Client, key string) error { return rdb.Del(ctx, key).Err() },
		"another owner's": func(ctx context.Context, rdb *redis.Client, key string) error {
			return errors.Join(rdb.Del(ctx, key).Err(), rdb.HSet(ctx, key, "stranger:1", 1).Err(), rdb.PExpire(ctx, key, worn).Err())
		},
		"of another type": func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.Set(ctx, key, "x", worn).Err()
		},
	}
	for name, take := range taken {
		t.Run(name, func(t *testing.T) {
			eachFleet(t, 4, func(t *testing.T, w *fleet) {
				keys := w.locks[2].target.Keys
				require.NoError(t, take(t.Context(), w.direct, keys[len(keys)-1]))
				var left []time.Duration // before what is left of it is released in the background
				w.relay.After(runsOf(protocol.RenewManyScript), func(redistest.Command, string) {
					for _, key := range keys {
						left = append(left, ttlOf(w.direct, key))
					}
				})
				w.together()
				w.requireSent(1, 1)
				w.requireRenewed(0, 1, 3)
				for _, d := range left {
					require.LessOrEqual(t, d, worn)
				}
				require.ErrorIs(t, w.locks[2].Unlock(), ErrLost)
				require.Len(t, w.events.of("lost"), 1)
				require.ErrorIs(t, w.events.of("lost")[0].Err, lockerr.ErrNotOnRedis)
				require.Empty(t, w.events.of("renew failed"))
			})
		})
	}
}
