package relock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/locktest"
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
	clocks *locktest.TwoClocks
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
	worn          = time.Minute             // what is left of a lease before it is renewed
	fleetPatience = 4 * locktest.SoonEnough // with a renewal: it is for the test to say what is not answered

	joining     = 50 * time.Millisecond // a renewal that has begun is in a bundle, which has been sent
	bundlePause = time.Minute           // after a bundle that failed renewals are sent alone
	// noCompany is what is left of a lease that is renewed alone: half of it is too short to wait for others.
	noCompany = 50 * time.Millisecond
)

// newFleet has n owners lock one lock of the kind each.
func newFleet(t *testing.T, b *redistest.Backend, kind fleetKind, n int) *fleet {
	t.Helper()
	relay, _ := locktest.RelayedTo(t, b)
	rdb := redis.NewClient(redistest.Options(relay.Addr, func(o *redis.Options) { o.ReadTimeout = fleetPatience }))
	t.Cleanup(func() { _ = rdb.Close() })
	return newFleetOn(t, rdb, relay, b.Client(t), kind, n)
}

func newFleetOn(t *testing.T, rdb redis.UniversalClient, relay *redistest.Relay, direct *redis.Client, kind fleetKind, n int) *fleet {
	t.Helper()
	w := &fleet{t: t, relay: relay, direct: direct, events: &chronicle{}}
	w.c, w.clocks = LocksWithClock(t, rdb, WithHooks(w.events.Hooks()))
	w.c.session.patience, w.c.session.execs[0].Patience = fleetPatience, fleetPatience
	for _, p := range []*protocol.Protocol{&w.c.plain.protocol, &w.c.multi.protocol, &w.c.fair.protocol, &w.c.write.protocol} {
		*p = &countedRenewals{Protocol: *p, begun: &w.begun}
	}
	key := redistest.Key(t)
	for i := range n {
		m := kind(w.c, fmt.Sprintf("%s-%d", key, i), WithOwner(fmt.Sprintf("job-%d", i)), WithTTL(fleetTTL))
		locktest.RequireLocked(t, m)
		h := holdsOn(w.c.session, m.target.Keys[0])[0]
		w.locks, w.holds = append(w.locks, m), append(w.holds, h)
		for _, key := range m.target.Keys {
			require.NoError(t, w.direct.PExpire(t.Context(), key, worn).Err())
		}
	}
	return w
}

// gather has these holds renewed, or all: the first alone, and the others in a bundle, or several
// in a row, that are sent while its answer is kept back. Then it returns, and proceed lets the
// answer come. The channel is closed when all have been renewed.
func (w *fleet) gather(holds ...*hold) (proceed func(), renewed <-chan struct{}) {
	w.t.Helper()
	if holds == nil {
		holds = w.holds
	}
	begun := w.begun.Load()
	first := w.relay.Block(locktest.RunsOf(protocol.RenewScript))
	var all sync.WaitGroup
	all.Go(holds[0].renew)
	first.Wait(w.t)
	for _, h := range holds[1:] {
		all.Go(h.renew)
	}
	redistest.Eventually(w.t, "all others to begin", func() bool { return w.begun.Load() == begun+int64(len(holds)) })
	time.Sleep(joining)
	done := make(chan struct{})
	go func() {
		defer close(done)
		all.Wait()
	}()
	return first.Release, done
}

// together has all holds renewed, all but the first in a bundle.
func (w *fleet) together() {
	w.t.Helper()
	proceed, renewed := w.gather()
	proceed()
	redistest.Receive(w.t, renewed)
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
			require.Greater(w.t, locktest.TTLOf(w.direct, key), fleetTTL-worn, "key %d", i)
		}
	}
	require.Equal(w.t, want, got)
}

// sent returns how many commands there were for one renewal, and for several.
func (w *fleet) sent() (alone, bundles int) {
	return w.relay.Count(locktest.RunsOf(protocol.RenewScript)), w.relay.Count(locktest.RunsOf(protocol.RenewManyScript))
}

// requireBundles requires that holds have been renewed together.
func (w *fleet) requireBundles() {
	w.t.Helper()
	_, bundles := w.sent()
	require.Positive(w.t, bundles)
}

// fleetKind makes locks of a kind.
type fleetKind = func(c *Client, key string, opts ...MutexOption) *Mutex

// bundled are the kinds whose holds are renewed together.
var bundled = map[string]fleetKind{
	"plain": (*Client).Mutex,
	"multi": func(c *Client, key string, opts ...MutexOption) *Mutex {
		return c.MultiMutex([]string{key, key + "-too"}, opts...)
	},
	"fair":  (*Client).FairMutex,
	"write": func(c *Client, key string, opts ...MutexOption) *Mutex { return &c.RWMutex(key, opts...).write },
}

// eachFleet runs test with n holds of each kind that is renewed together.
func eachFleet(t *testing.T, n int, test func(t *testing.T, w *fleet)) {
	t.Helper()
	t.Parallel()
	for name, kind := range bundled {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) { test(t, newFleet(t, b, kind, n)) })
		})
	}
}

// onFleet runs test with n holds of plain locks: for what does not depend on the kind.
func onFleet(t *testing.T, n int, test func(t *testing.T, w *fleet)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		test(t, newFleet(t, b, bundled["plain"], n))
	})
}

func TestRenewals_HookReportsEachOfABundle(t *testing.T) {
	eachFleet(t, 7, func(t *testing.T, w *fleet) {
		w.together()
		w.requireBundles()
		w.requireRenewed(0, 1, 2, 3, 4, 5, 6)
		owners := map[string]int{}
		for _, e := range w.events.Of("renewed") {
			owners[e.Owner]++
		}
		require.Len(t, owners, 7)
		require.Len(t, w.events.Of("renewed"), 7, "the hook reports each")
		require.Empty(t, w.events.Of("renew failed"))
		for _, m := range w.locks {
			locktest.RequireUnlocked(t, m)
		}
	})
}

func TestRenewals_AtDifferentTimesAreSentAlone(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		for _, h := range w.holds {
			h.renew()
		}
		alone, bundles := w.sent()
		require.Equal(t, [2]int{3, 0}, [2]int{alone, bundles})
		w.requireRenewed(0, 1, 2)
	})
}

// A bundle is on one connection, which may be dead: a lease that may end before the bundle is given up must not wait for it.
func TestRenewals_UrgentOneIsSentAlone(t *testing.T) {
	for name, left := range map[string]time.Duration{
		"no time to wait for others":       noCompany,
		"no time for an unanswered bundle": 2*protocol.BundlePatience(fleetPatience, fleetTTL) - time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			onFleet(t, 2, func(t *testing.T, w *fleet) {
				urgent := w.holds[1]
				urgent.mu.Lock()
				endsAt(&urgent.lease, w.clocks.Now().After(left))
				urgent.mu.Unlock()
				w.together()
				redistest.Eventually(t, "both sent", func() bool { alone, _ := w.sent(); return alone >= 2 })
				_, bundles := w.sent()
				require.Zero(t, bundles)
			})
		})
	}
}

func TestRenewals_LostHoldOfABundleIsLostAlone(t *testing.T) {
	t.Parallel()
	for name, take := range redistest.Takings {
		t.Run(name, func(t *testing.T) {
			eachFleet(t, 4, func(t *testing.T, w *fleet) {
				keys := w.locks[2].target.Keys
				require.NoError(t, take(t.Context(), w.direct, keys[len(keys)-1], worn))
				var mu sync.Mutex
				var left []time.Duration // before what is left of it is released in the background
				w.relay.After(locktest.RunsOf(protocol.RenewManyScript), func(redistest.Command, string) {
					mu.Lock()
					defer mu.Unlock()
					for _, key := range keys {
						left = append(left, locktest.TTLOf(w.direct, key))
					}
				}).Always()
				w.together()
				w.requireBundles()
				mu.Lock()
				defer mu.Unlock()
				require.NotEmpty(t, left)
				w.requireRenewed(0, 1, 3)
				for _, d := range left {
					require.LessOrEqual(t, d, worn)
				}
				require.ErrorIs(t, w.locks[2].Unlock(), ErrLost)
				require.Len(t, w.events.Of("lost"), 1)
				require.ErrorIs(t, w.events.Of("lost")[0].Err, lockerr.ErrNotOnRedis)
				require.Empty(t, w.events.Of("renew failed"))
			})
		})
	}
}

func TestRenewals_GoOnThoughRedisRefusesTheBundle(t *testing.T) {
	t.Parallel()
	for name, refused := range redistest.BundleReplies {
		t.Run(name, func(t *testing.T) {
			onFleet(t, 4, func(t *testing.T, w *fleet) {
				id := w.c.ID()
				refusals := w.relay.ReplyWith(refused.Text, locktest.RunsOf(protocol.RenewManyScript)).Always()
				w.together()
				refusals.Wait(t)
				w.requireRenewed(0, 1, 2, 3)
				alone, bundles := w.sent()
				require.Equal(t, [2]int{1 + 3, 0}, [2]int{alone, bundles}, "the relay has answered the bundle")
				require.Len(t, w.events.Of("renewed"), 4)
				require.Empty(t, w.events.Of("renew failed"))
				require.Equal(t, !refused.Doubt, w.c.ID() == id)
			})
		})
	}
}

func TestRenewals_ForbiddenKeyFailsAlone(t *testing.T) {
	t.Parallel()
	redistest.RequireServer(t)
	server := redistest.NewServer(t)
	admin := server.Client(t)
	for _, s := range locktest.AllScripts {
		require.NoError(t, admin.ScriptLoad(t.Context(), s.Source()).Err())
	}
	user := func(keys string) {
		require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "app", "on", ">secret", "resetkeys", keys, "allchannels", "+@all").Err())
	}
	user("~*")
	relay := redistest.NewRelay(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr, Username: "app", Password: "secret", ReadTimeout: fleetPatience})
	t.Cleanup(func() { _ = rdb.Close() })
	w := newFleetOn(t, rdb, relay, admin, bundled["plain"], 5)
	forbidden := w.locks[3].Name()
	user("~*-[0124]")
	id := w.c.ID()
	w.together()
	require.Equal(t, id, w.c.ID(), "nothing was executed that is not known")
	require.Len(t, w.events.Of("renewed"), 4)
	failed := w.events.Of("renew failed")
	require.Len(t, failed, 1)
	require.Equal(t, forbidden, failed[0].Name)
	require.ErrorContains(t, failed[0].Err, "NOPERM")
	require.LessOrEqual(t, locktest.TTLOf(admin, forbidden), worn)
	user("~*")
	w.holds[3].renew()
	w.requireRenewed(0, 1, 2, 3, 4)
	w.clocks.Set(bundlePause + time.Second)
	_, before := w.sent()
	w.together()
	_, after := w.sent()
	require.Greater(t, after, before, "bundles are sent again")
	w.requireRenewed(0, 1, 2, 3, 4)
}

// Each hold tries again by itself, on a connection of its own.
func TestRenewals_LostReplyToABundleLosesNoHold(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*redistest.Relay, redistest.Match) *redistest.Rule{
		"silently": (*redistest.Relay).LoseReply, "and its connection cut": (*redistest.Relay).DropReply,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				relay, rdb := locktest.RelayedTo(t, b)
				events := &chronicle{}
				c := LocksOn(t, rdb, WithTTL(4*time.Second), WithRenewInterval(slowly), WithHooks(events.Hooks()))
				id := c.ID()
				lost := lose(relay, locktest.RunsOf(protocol.RenewManyScript))
				var locks []*Mutex
				for i := range 20 {
					locks = append(locks, c.Mutex(redistest.Key(t), WithOwner("job-"+string(rune('a'+i)))))
					locktest.RequireLocked(t, locks[i])
				}
				lost.Wait(t)
				redistest.Eventually(t, "a renewal that failed", func() bool { return len(events.Of("renew failed")) > 0 })
				redistest.Eventually(t, "another id: a command may still be executed", func() bool { return c.ID() != id })
				fails := func() (owners map[string]bool) {
					owners = map[string]bool{}
					for _, e := range events.Of("renew failed") {
						owners[e.Owner] = true
					}
					return owners
				}
				redistest.Eventually(t, "renewals of all", func() bool {
					renewed := map[string]bool{}
					for _, e := range since(events, "renew failed", "renewed") {
						renewed[e.Owner] = true
					}
					for owner := range fails() {
						if !renewed[owner] {
							return false
						}
					}
					return true
				})
				for _, m := range locks {
					require.Equal(t, 1, m.HoldCount())
					locktest.RequireUnlocked(t, m)
				}
				require.Empty(t, events.Of("lost"))
			})
		})
	}
}

// since returns the events of a hook that came after the first one of another.
func since(r *chronicle, first, hook string) []Event {
	var events []Event
	begun := false
	for _, e := range r.All() {
		begun = begun || e.Hook == first
		if begun && e.Hook == hook {
			events = append(events, e.Event)
		}
	}
	return events
}

// A bundle is waited for as long as its most patient member waits: each leaves in its own time.
func TestRenewals_HoldIsLostInTimeDuringABundle(t *testing.T) {
	onFleet(t, 4, func(t *testing.T, w *fleet) {
		rule := w.relay.Block(locktest.RunsOf(protocol.RenewManyScript))
		short := w.holds[3]
		ctx := w.locks[3].Context(t.Context())
		proceed, renewed := w.gather()
		proceed()
		rule.Wait(t)
		short.mu.Lock()
		endsAt(&short.lease, w.clocks.Now().After(time.Second)) // as if its clock had stood still until now
		short.replan(w.clocks.Now())                            // which is what its own watchdog would have done
		short.mu.Unlock()
		redistest.Receive(t, ctx.Done())
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		rule.Release()
		redistest.Receive(t, renewed)
	})
}

// What it asks for it asked for before it was executed, however late the answer is.
func TestRenewals_LeasesOfABundleCountFromBeforeItWasSent(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		rule := w.relay.Block(locktest.RunsOf(protocol.RenewManyScript))
		before := make([]clock.Instant, len(w.holds))
		for i, h := range w.holds {
			before[i] = h.lease.Deadline()
		}
		proceed, renewed := w.gather()
		proceed()
		rule.Wait(t)
		sent := w.clocks.Now()
		locktest.Throughout(t, 20*time.Millisecond, func() bool { return true }, "time to pass")
		rule.Release()
		redistest.Receive(t, renewed)
		for i, h := range w.holds[1:] {
			require.Greater(t, h.lease.Deadline().Mono, before[i+1].Mono)
			require.LessOrEqual(t, h.lease.Deadline().Mono, clock.Deadline(sent, fleetTTL).Mono)
		}
		w.requireRenewed(0, 1, 2)
	})
}

// Many holds that are renewed at once by a slow machine look like this to each of them.
func TestRenewals_WaitForTheirTurnInABusyPipeline(t *testing.T) {
	t.Parallel()
	redistest.NeedsPipelining(t)
	relay := redistest.NewRelay(t, redistest.NewServer(t).Addr)
	rdb, events := redis.NewClient(redistest.Options(relay.Addr)), &chronicle{}
	t.Cleanup(func() { _ = rdb.Close() })
	dawdle := redisexec.NewScript("return 1") // of no effect
	for _, s := range []*redisexec.Script{dawdle, protocol.RenewScript} {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
	}
	c := LocksOn(t, rdb, WithTTL(16*time.Second), WithHooks(events.Hooks()))
	m := c.Mutex(redistest.Key(t), WithRenewInterval(500*time.Millisecond))
	locktest.RequireLocked(t, m)
	relay.Delay(120*time.Millisecond, redistest.Script(dawdle.Source())).Always() // and all that follow

	var busy sync.WaitGroup
	defer busy.Wait()
	for range 30 { // together longer than a command is usually waited for
		busy.Go(func() {
			e := redisexec.CallOptions{Attempts: 1, Patience: time.Minute}
			_, _ = c.session.execs[0].Run(context.WithoutCancel(t.Context()), e, dawdle, []any{m.Name()})
		})
	}
	redistest.Eventually(t, "a renewal in a busy pipeline", func() bool {
		return slices.ContainsFunc(events.Of("renewed"), func(e Event) bool { return e.Elapsed > c.session.patience })
	})
	require.Empty(t, events.Of("renew failed"), "a second copy would have followed")
	locktest.RequireUnlocked(t, m)
}
