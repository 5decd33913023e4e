package protocol

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// fleet is locks that one process holds, behind a relay, and renews when the test says so.
type fleet struct {
	t      *testing.T
	relay  *redistest.Relay
	direct *redis.Client
	clock  *aheadClock
	plain  *Plain
	holds  []hold
}

// hold is one field on the keys of one lock.
type hold struct {
	side  Protocol
	on    *keys.Set
	field string
}

// renewed is how a renewal has ended.
type renewed struct {
	ours bool
	out  redisexec.Outcome
}

const (
	fleetTTL      = 10 * time.Minute
	worn          = time.Minute              // what is left of a lease before it is renewed
	fleetPatience = 4 * redistest.SoonEnough // with a renewal: it is for the test to say what is not answered
)

// aheadClock is a clock that can be put forward.
type aheadClock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *aheadClock) now() clock.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return clock.System().After(c.ahead)
}

func (c *aheadClock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// lockKind makes a lock of a kind whose holds are renewed together.
type lockKind struct {
	name string
	lock func(t *testing.T, plain *Plain, key string) (Protocol, *keys.Set)
	ends string // of its fields
}

var plainKind = lockKind{name: "plain", lock: func(t *testing.T, plain *Plain, key string) (Protocol, *keys.Set) {
	return plain, keysOf(t, key)
}}

var bundled = []lockKind{
	plainKind,
	multiKind(2),
	{name: "fair", lock: func(t *testing.T, plain *Plain, key string) (Protocol, *keys.Set) {
		on := keysOf(t, key)
		return NewLined(plain, "p"), on
	}},
	{name: "write", ends: keys.WriteSuffix, lock: func(t *testing.T, plain *Plain, key string) (Protocol, *keys.Set) {
		on := keysOf(t, key)
		on.ReadWrite()
		_, writes := NewReadWrite(plain)
		return writes, on
	}},
}

// multiKind is a lock of so many keys.
func multiKind(n int) lockKind {
	return lockKind{name: "multi", lock: func(t *testing.T, plain *Plain, key string) (Protocol, *keys.Set) {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("%s-%d", key, i))
		}
		return plain, keysOf(t, names...)
	}}
}

// newFleet has n owners hold one lock of the kind each.
func newFleet(t *testing.T, addr string, direct *redis.Client, user func(*redis.Options), kind lockKind, n int) *fleet {
	t.Helper()
	for _, s := range allScripts { // so that a rule for one meets a run of it
		require.NoError(t, direct.ScriptLoad(t.Context(), s.Source()).Err())
	}
	w := &fleet{t: t, relay: redistest.NewRelay(t, addr), direct: direct, clock: &aheadClock{}}
	rdb := redis.NewClient(redistest.Options(w.relay.Addr, user, func(o *redis.Options) { o.ReadTimeout = fleetPatience }))
	t.Cleanup(func() { _ = rdb.Close() })
	x := executorOn(t, rdb, w.clock.now, fleetTTL)
	x.Patience = fleetPatience
	w.plain = NewBundlingPlain(x, false)
	w.plain.renewals.company = redistest.SoonEnough // what is in a bundle is for the test to say
	key := redistest.Key(t)
	for i := range n {
		h := hold{field: fmt.Sprintf("uuid:job-%d%s", i, kind.ends)}
		h.side, h.on = kind.lock(t, w.plain, fmt.Sprintf("%s-%d", key, i))
		g, out := h.side.Acquire(t.Context(), options, h.on, h.field, termsOf())
		mustDo(t, out)
		require.True(t, g.Held)
		for _, key := range h.on.Keys {
			require.NoError(t, direct.PExpire(t.Context(), key, worn).Err())
		}
		w.holds = append(w.holds, h)
	}
	return w
}

// onFleetOf runs test with n holds of a kind on each backend.
func onFleetOf(t *testing.T, kind lockKind, n int, test func(t *testing.T, w *fleet)) {
	t.Helper()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		test(t, newFleet(t, b.Addr, b.Client(t), func(*redis.Options) {}, kind, n))
	})
}

// onFleet runs test with n holds of plain locks: for what does not depend on the kind.
func onFleet(t *testing.T, n int, test func(t *testing.T, w *fleet)) {
	t.Helper()
	t.Parallel()
	onFleetOf(t, plainKind, n, test)
}

// eachFleet runs test with n holds of each kind that is renewed together.
func eachFleet(t *testing.T, n int, test func(t *testing.T, w *fleet)) {
	t.Helper()
	for _, kind := range bundled {
		t.Run(kind.name, func(t *testing.T) { onFleet(t, n, test) })
	}
}

// renew renews hold i, for as long as ctx lasts, and no longer than patience.
func (w *fleet) renew(ctx context.Context, i int, patience time.Duration) renewed {
	h := w.holds[i]
	e := redisexec.CallOptions{Attempts: 1, Patience: patience, Bundled: true}
	ours, out := h.side.Renew(ctx, e, h.on, h.field, fleetTTL)
	return renewed{ours, out}
}

// begin begins to renew hold i, and returns where the result will be.
func (w *fleet) begin(ctx context.Context, i int, patience time.Duration) <-chan renewed {
	result := make(chan renewed, 1)
	go func() { result <- w.renew(ctx, i, patience) }()
	return result
}

// renewals begins to renew holds, and returns where the results will be.
func (w *fleet) renewals(holds ...int) []<-chan renewed {
	var all []<-chan renewed
	for _, i := range holds {
		all = append(all, w.begin(w.t.Context(), i, fleetPatience))
	}
	return all
}

// upTo returns the numbers from one to another, which is not among them.
func upTo(from, to int) (numbers []int) {
	for i := from; i < to; i++ {
		numbers = append(numbers, i)
	}
	return numbers
}

// blockFirst has hold 0 renewed alone, and its command kept back until release is called, as are
// renewals after it.
func (w *fleet) blockFirst() (release func(), result <-chan renewed) {
	w.t.Helper()
	rule := w.relay.Block(func(c redistest.Command) bool { return runsOfRenew(c) || runsOfRenewMany(c) }).Always()
	result = w.begin(w.t.Context(), 0, fleetPatience)
	rule.Wait(w.t)
	return rule.Release, result
}

// gather has all holds renewed: the first alone, for whose answer the others wait. It returns
// when they do; then proceed lets the answer come.
func (w *fleet) gather() (proceed func(), all []<-chan renewed) {
	w.t.Helper()
	proceed, first := w.blockFirst()
	all = append([]<-chan renewed{first}, w.renewals(upTo(1, len(w.holds))...)...)
	w.awaitGathered(len(w.holds) - 1)
	return proceed, all
}

// together has all holds renewed, all but the first in a bundle.
func (w *fleet) together() []renewed {
	w.t.Helper()
	proceed, all := w.gather()
	proceed()
	return w.results(all)
}

func (w *fleet) results(all []<-chan renewed) (results []renewed) {
	w.t.Helper()
	for _, result := range all {
		results = append(results, redistest.Receive(w.t, result))
	}
	return results
}

// gathered is how many renewals wait for a bundle to be sent.
func (w *fleet) gathered() int {
	r := w.plain.renewals
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, l := range r.lanes {
		if l.next != nil {
			n += len(l.next.members)
		}
	}
	return n
}

func (w *fleet) awaitGathered(n int) {
	w.t.Helper()
	redistest.Eventually(w.t, fmt.Sprintf("%d in a bundle", n), func() bool { return w.gathered() == n })
}

// underWay is how many commands there are that are not answered.
func (w *fleet) underWay() int {
	r := w.plain.renewals
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, l := range r.lanes {
		n += l.underWay
	}
	return n
}

// awaitNothingKept waits until nothing is left of renewals.
func (w *fleet) awaitNothingKept() {
	w.t.Helper()
	r := w.plain.renewals
	redistest.Eventually(w.t, "no lane to be kept", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.lanes) == 0
	})
}

// requireRenewed requires of the results that exactly these holds are held, without any doubt, and
// of Redis that they have their lease.
func (w *fleet) requireRenewed(results []renewed, holds ...int) {
	w.t.Helper()
	want, got := map[int]bool{}, map[int]bool{}
	for _, i := range holds {
		want[i] = true
	}
	for i, r := range results {
		mustDo(w.t, r.out)
		if r.ours {
			got[i] = true
			w.requireLonger(i)
		}
	}
	require.Equal(w.t, want, got)
}

// requireLonger requires that hold i has its lease on Redis.
func (w *fleet) requireLonger(i int) {
	w.t.Helper()
	for _, key := range w.holds[i].on.Keys {
		require.Greater(w.t, w.ttl(key), fleetTTL-worn, "hold %d", i)
	}
}

// ttl is what is left of the life of key.
func (w *fleet) ttl(key string) time.Duration { return w.direct.PTTL(w.t.Context(), key).Val() }

// requireSent requires so many commands for one renewal, and for several.
func (w *fleet) requireSent(alone, bundles int) {
	w.t.Helper()
	sent := [2]int{w.relay.Count(runsOfRenew), w.relay.Count(runsOfRenewMany)}
	require.Equal(w.t, [2]int{alone, bundles}, sent, "commands for one renewal, and for several")
}
