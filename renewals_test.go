package relock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
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
	begun  atomic.Int64 // renewals
}

// countedRenewals is a protocol that counts how many renewals have begun.
type countedRenewals struct {
	protocol.Protocol
	begun *atomic.Int64
}

func (p *countedRenewals) Renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	p.begun.Add(1)
	return p.Protocol.Renew(ctx, e, t, field, lease)
}

const (
	fleetTTL      = 10 * time.Minute
	worn          = time.Minute    // what is left of a lease before it is renewed
	fleetPatience = 4 * soonEnough // with a renewal: it is for the test to say what is not answered

	joining    = 50 * time.Millisecond // a renewal that has begun is in a batch, which has been sent
	batchPause = time.Minute           // after a batch that failed renewals are sent alone
)

const (
	// noCompany is what is left of a lease that is renewed alone: half of it is too short to wait for others.
	noCompany = 50 * time.Millisecond
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
	for _, p := range []*protocol.Protocol{&w.c.plain.protocol, &w.c.multi.protocol, &w.c.fair.protocol, &w.c.write.protocol} {
		*p = &countedRenewals{Protocol: *p, begun: &w.begun}
	}
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

// gather has these holds renewed, or all: the first alone, and the others in a batch, or several
// in a row, that are sent while its answer is kept back. Then it returns, and proceed lets the
// answer come. The channel is closed when all have been renewed.
func (w *fleet) gather(holds ...*hold) (proceed func(), renewed <-chan struct{}) {
	w.t.Helper()
	if holds == nil {
		holds = w.holds
	}
	begun := w.begun.Load()
	first := w.relay.Block(runsOf(protocol.RenewScript))
	var all sync.WaitGroup
	all.Go(holds[0].renew)
	first.Wait(w.t)
	for _, h := range holds[1:] {
		all.Go(h.renew)
	}
	eventually(w.t, "all others to begin", func() bool { return w.begun.Load() == begun+int64(len(holds)) })
	time.Sleep(joining)
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

// requireBatches requires that holds have been renewed together.
func (w *fleet) requireBatches() {
	w.t.Helper()
	_, batches := w.sent()
	require.Positive(w.t, batches)
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

func TestTheHookTellsOfEachRenewalOfABatch(t *testing.T) {
	eachFleet(t, 7, func(t *testing.T, w *fleet) {
		w.together()
		w.requireBatches()
		w.requireRenewed(0, 1, 2, 3, 4, 5, 6)
		owners := map[string]int{}
		for _, e := range w.events.of("renewed") {
			owners[e.Owner]++
		}
		require.Len(t, owners, 7)
		require.Len(t, w.events.of("renewed"), 7, "the hook tells of each")
		require.Empty(t, w.events.of("renew failed"))
		for _, m := range w.locks {
			requireUnlocked(t, m)
		}
	})
}

func TestHoldsThatAreNotRenewedAtTheSameTimeAreRenewedAlone(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		for _, h := range w.holds {
			h.renew()
		}
		alone, batches := w.sent()
		require.Equal(t, [2]int{3, 0}, [2]int{alone, batches})
		w.requireRenewed(0, 1, 2)
	})
}

func TestAHoldThatHasNoTimeToLoseIsRenewedAlone(t *testing.T) {
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
		urgent.lease.Shorten(w.clocks.now().After(noCompany))
		urgent.mu.Unlock()
		go renew(urgent)
		receives(t, renewed)
		rule.Release()
		receives(t, renewed)
		eventually(t, "both sent", func() bool { alone, _ := w.sent(); return alone == 2 })
		_, batches := w.sent()
		require.Zero(t, batches)
	})
}

func TestOneLostHoldOfABatchIsLostAloneAndNoneOfItsKeysIsLengthened(t *testing.T) {
	t.Parallel()
	for name, take := range redistest.Takings {
		t.Run(name, func(t *testing.T) {
			eachFleet(t, 4, func(t *testing.T, w *fleet) {
				keys := w.locks[2].target.Keys
				require.NoError(t, take(t.Context(), w.direct, keys[len(keys)-1], worn))
				var mu sync.Mutex
				var left []time.Duration // before what is left of it is released in the background
				w.relay.After(runsOf(protocol.RenewManyScript), func(redistest.Command, string) {
					mu.Lock()
					defer mu.Unlock()
					for _, key := range keys {
						left = append(left, ttlOf(w.direct, key))
					}
				}).Always()
				w.together()
				w.requireBatches()
				mu.Lock()
				defer mu.Unlock()
				require.NotEmpty(t, left)
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
