package relock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goid"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

const (
	soonEnough = redistest.SoonEnough
	lookEvery  = redistest.LookEvery
	aWhile     = 100 * time.Millisecond // for what must not happen
)

// locksOn returns a client that is closed before rdb is.
func locksOn(t *testing.T, rdb redis.UniversalClient, opts ...ClientOption) *Client {
	t.Helper()
	c, err := New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// relayedTo returns a relay to b and a Redis client that goes through it. Every script is
// known to the server, so that a rule for one meets a run of it.
func relayedTo(t *testing.T, b *redistest.Backend) (*redistest.Relay, *redis.Client) {
	t.Helper()
	loadScripts(t, b.Client(t))
	relay := redistest.NewRelay(t, b.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	return relay, rdb
}

// loadScripts has the server know every script.
func loadScripts(t *testing.T, rdb *redis.Client) {
	t.Helper()
	var digests []string
	for _, s := range allScripts {
		digests = append(digests, s.Digest.(string))
	}
	known, err := rdb.ScriptExists(t.Context(), digests...).Result()
	require.NoError(t, err)
	for i, s := range allScripts {
		if !known[i] {
			require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source).Err())
		}
	}
}

// runsOf chooses the runs of s, or of what has its place where there is a line.
func runsOf(s *redisexec.Script) redistest.Match { return lockKind{scripts: inLine}.runs(s) }

// An actor is a goroutine that does what it is told: an owner of its own.
type actor struct{ jobs chan func() }

func newActor(t *testing.T) *actor {
	t.Helper()
	a := &actor{jobs: make(chan func())}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for job := range a.jobs {
			job()
		}
	}()
	t.Cleanup(func() {
		close(a.jobs)
		<-done
	})
	return a
}

// begin has the actor call f, and returns where the result will be.
func (a *actor) begin(f func() error) <-chan error {
	result := make(chan error, 1)
	a.jobs <- func() { result <- f() }
	return result
}

// call has the actor call f.
func (a *actor) call(f func() error) error { return <-a.begin(f) }

func (a *actor) lock(ctx context.Context, m *Mutex) <-chan error {
	return a.begin(func() error { return m.Lock(ctx) })
}

func (a *actor) locks(t *testing.T, m *Mutex) {
	t.Helper()
	require.NoError(t, outcomeOf(t, a.lock(t.Context(), m)))
}

func (a *actor) unlocks(t *testing.T, m *Mutex) {
	t.Helper()
	require.NoError(t, outcomeOf(t, a.begin(m.Unlock)))
}

// tries reports what TryLock does on the actor's goroutine.
func (a *actor) tries(t *testing.T, m *Mutex) (held bool) {
	t.Helper()
	require.NoError(t, a.call(func() (err error) {
		held, err = m.TryLock(t.Context())
		return err
	}))
	return held
}

// outcomeOf waits for the result of what an actor does.
func outcomeOf(t *testing.T, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(soonEnough):
		require.Fail(t, "nothing came of it in time")
		return nil
	}
}

// goesOn requires that result stays out for a while.
func goesOn(t *testing.T, result <-chan error) {
	t.Helper()
	select {
	case err := <-result:
		require.Fail(t, "it is over", "%v", err)
	case <-time.After(aWhile):
	}
}

func receives[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	return redistest.Receive(t, ch)
}

func requireLocked(t *testing.T, m *Mutex) {
	t.Helper()
	require.NoError(t, m.Lock(t.Context()))
}

func requireUnlocked(t *testing.T, m *Mutex) {
	t.Helper()
	require.NoError(t, m.Unlock())
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	redistest.Eventually(t, what, cond)
}

// throughout requires cond whenever it looks, for as long as d.
func throughout(t *testing.T, d time.Duration, cond func() bool, what string) {
	t.Helper()
	ticker := time.NewTicker(max(d/50, lookEvery))
	defer ticker.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-ticker.C {
		require.True(t, cond(), what)
	}
}

// onRedis returns the fields of a key.
func onRedis(t *testing.T, rdb redis.UniversalClient, key string) map[string]string {
	t.Helper()
	fields, err := rdb.HGetAll(t.Context(), key).Result()
	require.NoError(t, err)
	return fields
}

// requireOnRedis requires that field, and nobody else, holds key with count levels.
func requireOnRedis(t *testing.T, rdb redis.UniversalClient, key, field string, count int) {
	t.Helper()
	require.Equal(t, map[string]string{field: fmt.Sprint(count)}, onRedis(t, rdb, key))
}

func requireFree(t *testing.T, rdb redis.UniversalClient, keys ...string) {
	t.Helper()
	require.Zero(t, rdb.Exists(t.Context(), keys...).Val(), "keys left of %v", keys)
}

func ttlOf(rdb redis.UniversalClient, key string) time.Duration {
	return rdb.PTTL(context.Background(), key).Val()
}

// fieldOf is the name that the calling goroutine acquires by.
func fieldOf(c *Client) string { return fmt.Sprintf("%s:%d", c.ID(), goid.Get()) }

// heldByStranger has a process that is none of ours hold key; ttl 0: without expiry.
func heldByStranger(t *testing.T, rdb redis.UniversalClient, key string, ttl time.Duration) {
	t.Helper()
	require.NoError(t, rdb.HSet(t.Context(), key, "stranger:1", 1).Err())
	if ttl > 0 {
		require.NoError(t, rdb.PExpire(t.Context(), key, ttl).Err())
	}
}

// publishes wakes the waiters of key.
func publishes(t *testing.T, rdb redis.UniversalClient, key string) {
	t.Helper()
	require.NoError(t, rdb.Publish(t.Context(), channelOf(key), "0").Err())
}

// listeners is the number of connections that listen for releases of key.
func listeners(t *testing.T, rdb redis.UniversalClient, key string) int {
	t.Helper()
	channel := channelOf(key)
	n, err := rdb.PubSubNumSub(t.Context(), channel).Result()
	require.NoError(t, err)
	return int(n[channel])
}

// gatesOf counts the names of which c keeps anything.
func gatesOf(c *Client) int {
	return c.session.registry.Len()
}

// holdsOn returns the holds of all owners on key.
func holdsOn(c *session, key string) []*hold {
	var holds []*hold
	for _, h := range c.holds() {
		h.mu.Lock()
		if h.target.Has(key) {
			holds = append(holds, h)
		}
		h.mu.Unlock()
	}
	return holds
}

// waitersOn counts the owners of this process that wait for key, the one that talks to
// Redis included.
func waitersOn(c *session, key string) int {
	n := 0
	for _, h := range holdsOn(c, key) {
		h.mu.Lock()
		waiting := h.phase == acquiring && len(h.places) == len(h.target.Keys)
		h.mu.Unlock()
		if !waiting {
			continue
		}
		if slices.ContainsFunc(placesOf(h), func(p acquire.Place) bool {
			state, _ := p.Ticket.State()
			return state != queue.Gone
		}) {
			n++
		}
	}
	return n
}

func placesOf(h *hold) []acquire.Place {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.places)
}

// awaitWaiters waits until n owners of this process wait for key.
func awaitWaiters(t *testing.T, c *session, key string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d waiters", n), func() bool { return waitersOn(c, key) == n })
}

// awaitListening waits until a message about key would reach the waiters of c.
func awaitListening(t *testing.T, c *session, key string) {
	t.Helper()
	eventually(t, "listening", func() bool {
		for _, h := range holdsOn(c, key) {
			if places := placesOf(h); len(places) > 0 && places[0].Messages.Listening() {
				return true
			}
		}
		return false
	})
}

// twoClocks is a clock whose wall clock can be set.
type twoClocks struct {
	mu   sync.Mutex
	wall time.Duration // what the wall clock is ahead
}

func (c *twoClocks) now() clock.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := clock.System()
	now.Wall += c.wall
	return now
}

func (c *twoClocks) set(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += d
}

// locksWithClock is locksOn with a clock to be set.
func locksWithClock(t *testing.T, rdb redis.UniversalClient, opts ...ClientOption) (*Client, *twoClocks) {
	t.Helper()
	s, clocks := defaultSettings(), &twoClocks{}
	for _, opt := range opts {
		opt.applyToClient(&s)
	}
	c := newClient(rdb, s, clocks.now)
	t.Cleanup(func() { _ = c.Close() })
	return c, clocks
}

// chronicle records what hooks are told.
type chronicle struct {
	mu     sync.Mutex
	events []chronicled
}

type chronicled struct {
	hook string
	Event
}

func (r *chronicle) hooks() Hooks {
	note := func(hook string) func(Event) {
		return func(e Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, chronicled{hook, e})
		}
	}
	return Hooks{
		Acquired: note("acquired"), Contended: note("contended"), Failed: note("failed"), Released: note("released"),
		Renewed: note("renewed"), RenewFailed: note("renew failed"), Lost: note("lost"),
	}
}

func (r *chronicle) of(hook string) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var events []Event
	for _, e := range r.events {
		if e.hook == hook {
			events = append(events, e.Event)
		}
	}
	return events
}

// all are the events so far.
func (r *chronicle) all() []chronicled {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// names are the hooks that were called, in order, repetitions left out.
func (r *chronicle) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for _, e := range r.events {
		if len(names) == 0 || names[len(names)-1] != e.hook {
			names = append(names, e.hook)
		}
	}
	return names
}

// inBubble runs test in a synctest bubble, in which time passes at once when nothing else
// is to be done, with a miniredis that lives in memory alone.
func inBubble(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	inBubbleOf(t, 1, func(t *testing.T, rdbs []redis.UniversalClient) { test(t, rdbs[0].(*redis.Client)) })
}

// inBubbleOf is inBubble with n independent servers.
func inBubbleOf(t *testing.T, n int, test func(t *testing.T, rdbs []redis.UniversalClient)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var rdbs []redis.UniversalClient
		for range n {
			m := miniredis.NewMiniRedis()
			m.ClockTTL(true)
			rdb := redis.NewClient(redistest.MiniDialer(m))
			t.Cleanup(func() {
				_ = rdb.Close()
				m.Close()
			})
			rdbs = append(rdbs, rdb)
		}
		test(t, rdbs)
	})
}

// onEveryClock runs test on both backends: on miniredis in a bubble, on real Redis with
// real time, next to other tests. ttl is one that suits.
func onEveryClock(t *testing.T, test func(t *testing.T, rdb *redis.Client, ttl time.Duration)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		inBubble(t, func(t *testing.T, rdb *redis.Client) { test(t, rdb, 6*time.Second) })
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		redistest.Slow(t)
		test(t, redistest.Redis(t).Client(t), 2*time.Second)
	})
}

// trafficOf describes what went through relay, with times since start: for failures that nobody
// can repeat.
func trafficOf(relay *redistest.Relay, start time.Time) string {
	var text strings.Builder
	for _, e := range relay.Log() {
		fmt.Fprintf(&text, "%v connection %d: %.60q -> %.60q\n", e.Time.Sub(start), e.Conn, e.Command, e.Reply)
	}
	return text.String()
}

// resolved is s changed by opts.
func resolved(s settings, opts []MutexOption) settings {
	s.apply(opts)
	return s
}
