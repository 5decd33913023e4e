package relockprom_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relockprom"
)

// soonEnough bounds what must happen.
const soonEnough = 20 * time.Second

// lock is a lock of any kind, or a side of one.
type lock interface {
	Lock(context.Context) error
	TryLock(context.Context) (bool, error)
	Unlock() error
	ForceUnlock(context.Context) (bool, error)
}

// reader is the read side of an RWMutex.
type reader struct{ *relock.RWMutex }

func (r reader) Lock(ctx context.Context) error            { return r.RLock(ctx) }
func (r reader) TryLock(ctx context.Context) (bool, error) { return r.TryRLock(ctx) }
func (r reader) Unlock() error                             { return r.RUnlock() }

// mostWeight is the weight of all permits together.
const mostWeight = 3

// permit is a permit of a semaphore.
type permit struct {
	*relock.Semaphore
	held *relock.Permit
}

func (p *permit) Lock(ctx context.Context) (err error) {
	p.held, err = p.AcquireN(ctx, 1+rand.N(p.Limit()))
	return err
}

func (p *permit) TryLock(ctx context.Context) (acquired bool, err error) {
	p.held, acquired, err = p.TryAcquire(ctx)
	return acquired, err
}

func (p *permit) Unlock() error { return p.held.Release() }

// ForceUnlock ends the permit that ends first, of any process.
func (p *permit) ForceUnlock(ctx context.Context) (bool, error) {
	state, err := p.State(ctx)
	if err != nil || len(state.Permits) == 0 {
		return false, err
	}
	return p.ForceRelease(ctx, state.Permits[0].ID)
}

// sort is a kind of lock, and a side: its labels, and how to make one of the given names, of which it may take
// only the first.
type sort struct {
	kind, side string
	make       func(c *relock.Client, names []string, opts ...relock.MutexOption) lock
}

var sorts = []sort{
	{"mutex", "", func(c *relock.Client, names []string, opts ...relock.MutexOption) lock {
		return c.Mutex(names[0], opts...)
	}},
	{"fair", "", func(c *relock.Client, names []string, opts ...relock.MutexOption) lock {
		return c.FairMutex(names[0], opts...)
	}},
	{"multi", "", func(c *relock.Client, names []string, opts ...relock.MutexOption) lock {
		return c.MultiMutex(names, opts...)
	}},
	{"rw", "write", func(c *relock.Client, names []string, opts ...relock.MutexOption) lock {
		return c.RWMutex("rw-"+names[0], opts...)
	}},
	{"rw", "read", func(c *relock.Client, names []string, opts ...relock.MutexOption) lock {
		return reader{c.RWMutex("rw-"+names[0], opts...)}
	}},
	{"semaphore", "", func(c *relock.Client, names []string, opts ...relock.MutexOption) lock {
		return &permit{Semaphore: c.Semaphore("semaphore-"+names[0], mostWeight, opts...)}
	}},
}

// key is the key on Redis of the first of the names.
func (s sort) key(names []string) string {
	if s.kind == "rw" || s.kind == "semaphore" {
		return s.kind + "-" + names[0]
	}
	return names[0]
}

// calls are the ways to ask for a lock.
var calls = []func(m func(...relock.MutexOption) lock) (lock, string){
	func(m func(...relock.MutexOption) lock) (lock, string) {
		l := m()
		return l, resultOf(l.Lock(context.Background()))
	},
	func(m func(...relock.MutexOption) lock) (lock, string) {
		l := m()
		ctx, cancel := context.WithTimeout(context.Background(), rand.N(3*time.Millisecond))
		defer cancel()
		return l, resultOf(l.Lock(ctx))
	},
	func(m func(...relock.MutexOption) lock) (lock, string) {
		l := m()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		defer time.AfterFunc(rand.N(3*time.Millisecond), cancel).Stop()
		return l, resultOf(l.Lock(ctx))
	},
	func(m func(...relock.MutexOption) lock) (lock, string) {
		l := m(relock.WithWaitTimeout(1 + rand.N(3*time.Millisecond)))
		return l, resultOf(l.Lock(context.Background()))
	},
	func(m func(...relock.MutexOption) lock) (lock, string) {
		l := m()
		held, err := l.TryLock(context.Background())
		if err == nil && !held {
			return l, "busy"
		}
		return l, resultOf(err)
	},
}

// resultOf is what the label result says of a Lock that has returned err.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "acquired"
	case errors.Is(err, relock.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	default:
		return "error"
	}
}

// causeOf returns the label cause of a hold whose Unlock has returned err.
func causeOf(err error) string {
	for text, cause := range map[string]string{"lease expired": "expired", "no longer on Redis": "gone", "forced open": "forced"} {
		if strings.Contains(err.Error(), text) {
			return cause
		}
	}
	return err.Error()
}

// tally is the expected values of the samples.
type tally struct {
	mu      sync.Mutex
	samples samples
}

// add counts one more of a series. Labels are given in the order of their names; those without a value are left out.
func (t *tally) add(name string, labels ...string) {
	var given []string
	for i := 0; i < len(labels); i += 2 {
		if labels[i+1] != "" {
			given = append(given, fmt.Sprintf("%s=%q", labels[i], labels[i+1]))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.samples[name+"{"+strings.Join(given, ",")+"}"]++
}

// hooks tally what callers do not see.
func (t *tally) hooks() relock.Hooks {
	renewed := func(result string) func(relock.Event) {
		return func(e relock.Event) {
			t.add("relock_renewals_total", "kind", string(e.Kind), "result", result, "side", string(e.Side))
			t.add("relock_renew_seconds", "kind", string(e.Kind), "result", result, "side", string(e.Side))
		}
	}
	return relock.Hooks{
		Contended: func(e relock.Event) {
			t.add("relock_contended_total", "kind", string(e.Kind), "side", string(e.Side))
		},
		Renewed: renewed("renewed"), RenewFailed: renewed("failed"),
	}
}

// seen is what was tallied so far.
func (t *tally) seen() samples {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.samples)
}

func (t *tally) asked(s sort, result string) {
	t.add("relock_acquisitions_total", "kind", s.kind, "result", result, "side", s.side)
	t.add("relock_wait_seconds", "kind", s.kind, "result", result, "side", s.side)
}

// unlocked tallies the end of a hold: what Unlock returned says how it ended.
func (t *tally) unlocked(s sort, err error) {
	end := "released"
	if errors.Is(err, relock.ErrLost) {
		end = "lost"
		t.add("relock_losses_total", "cause", causeOf(err), "kind", s.kind, "side", s.side)
	}
	t.add("relock_hold_seconds", "end", end, "kind", s.kind, "side", s.side)
}

// worker uses locks of all kinds, on a few names, in all ways, and does them harm, while it tallies the results.
type worker struct {
	tally *tally
	locks []*relock.Client
	rdb   *redis.Client
	names []string
}

func (w worker) work(rounds int) {
	for range rounds {
		s, c := sorts[rand.N(len(sorts))], w.locks[rand.N(len(w.locks))]
		from := rand.N(len(w.names) - 1)
		names := w.names[from : from+2]
		l, result := calls[rand.N(len(calls))](func(opts ...relock.MutexOption) lock { return s.make(c, names, opts...) })
		w.tally.asked(s, result)
		if result != "acquired" {
			continue
		}
		switch rand.N(12) {
		case 0:
			w.rdb.Del(context.Background(), s.key(names))
		case 1, 2: // by this client, or by another one
			_, _ = s.make(w.locks[rand.N(len(w.locks))], names).ForceUnlock(context.Background())
		case 3:
			time.Sleep(20 * time.Millisecond) // it is renewed meanwhile
		case 4: // levels are not counted, unless they fail
			if s.kind == "semaphore" {
				break // it has no levels
			}
			if err := l.Lock(context.Background()); err != nil {
				w.tally.asked(s, resultOf(err))
			} else {
				_ = l.Unlock()
			}
		}
		time.Sleep(rand.N(2 * time.Millisecond)) // so that others wait
		w.tally.unlocked(s, l.Unlock())
	}
}

// watched scrapes the endpoint until done is closed, at least once, and requires of each scrape what must be
// true at any time.
func watched(t *testing.T, at endpoint, workers int, done <-chan struct{}) {
	t.Helper()
	last := make(samples)
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		now := at.scrape(t)
		for series, value := range now {
			switch {
			case strings.HasPrefix(series, "relock_waiting{"):
				require.GreaterOrEqual(t, value, 0.0, series)
				require.LessOrEqual(t, value, float64(workers), series)
			case strings.HasPrefix(series, "relock_held{"):
				require.LessOrEqual(t, value, float64(workers), series)
			case strings.HasPrefix(series, "relock_permits{"):
				require.LessOrEqual(t, value, float64(workers*mostWeight), series)
			default:
				require.GreaterOrEqual(t, value, last[series], series)
			}
		}
		for series := range last {
			require.Contains(t, now, series)
		}
		last = now
	}
}

func TestLoad_ScrapeMatchesWhatHappened(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		const workers, rounds = 12, 50
		collector, registry := registered(t)
		at, happened := newEndpoint(t, registry), &tally{samples: make(samples)}
		rdb, key := b.Client(t), redistest.Key(t)
		w := worker{tally: happened, rdb: rdb, names: []string{key + "a", key + "b", key + "c", key + "d"}}
		for range 2 {
			w.locks = append(w.locks, locksOn(t, rdb, hurried(relock.JoinHooks(collector.Hooks(), happened.hooks()))...))
		}
		var all sync.WaitGroup
		for range workers {
			all.Go(func() { w.work(rounds) })
		}
		done := make(chan struct{})
		go func() { all.Wait(); close(done) }()
		watched(t, at, workers, done)

		var scraped samples
		poll(func() bool { // Lost may be called after Unlock has returned
			scraped = at.scrape(t).nonzero()
			return maps.Equal(scraped, happened.seen())
		})
		require.Equal(t, happened.seen(), scraped)
		for _, label := range []string{`result="acquired"`, `result="busy"`, `result="timeout"`, `result="cancelled"`} {
			require.Positive(t, scraped.sum("relock_acquisitions_total", label), label)
		}
		for _, name := range []string{"relock_contended_total", "relock_renewals_total", "relock_losses_total", "relock_hold_seconds"} {
			require.Positive(t, scraped.sum(name), name)
		}
	})
}

// hurried are the options of a client that renews often, and waits for no more than a few seconds for what harm
// may have left behind.
func hurried(hooks relock.Hooks) []relock.ClientOption {
	return []relock.ClientOption{
		relock.WithTTL(3 * time.Second), relock.WithRenewInterval(10 * time.Millisecond),
		relock.WithSafetyPoll(50 * time.Millisecond), relock.WithHooks(hooks),
	}
}

// poll calls f until it returns true, or it has taken too long.
func poll(f func() bool) {
	for deadline := time.Now().Add(soonEnough); !f() && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
}

// Whatever ends a wait or a hold: time-outs, cancellations, losses of all sorts, owners that several goroutines
// share, locks within locks, and Close while all of that goes on.
func TestLoad_NothingIsHeldOrAwaitedAtTheEnd(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		const workers, rounds = 12, 60
		collector, registry := registered(t, relockprom.WithNameClass(func(name string) string { return name[strings.LastIndex(name, "-"):] }))
		rdb, key := b.Client(t), redistest.Key(t)+"-"
		names := []string{key + "a", key + "b", key + "c"}
		var locks []*relock.Client
		for range 2 {
			locks = append(locks, locksOn(t, rdb, hurried(collector.Hooks())...))
		}
		var all sync.WaitGroup
		var left atomic.Int64 // rounds, until the first client is closed
		left.Store(workers * rounds / 2)
		for range workers {
			all.Go(func() {
				for range rounds {
					if left.Add(-1) == 0 {
						_ = locks[0].Close()
					}
					misuse(rdb, locks[rand.N(len(locks))], names)
				}
			})
		}
		all.Wait()
		_ = locks[1].Close()

		var over samples
		poll(func() bool { // Close does not wait for hooks that other goroutines call
			over = gathered(t, registry)
			return len(over.of("relock_held").nonzero())+len(over.of("relock_waiting").nonzero())+len(over.of("relock_permits").nonzero()) == 0
		})
		require.Empty(t, over.of("relock_held").nonzero())
		require.Empty(t, over.of("relock_waiting").nonzero())
		require.Empty(t, over.of("relock_permits").nonzero())
		require.Positive(t, over.sum("relock_hold_seconds", `kind="semaphore"`))
		require.Equal(t, over.sum("relock_acquisitions_total", `result="acquired"`), over.sum("relock_hold_seconds"))
		require.Equal(t, over.sum("relock_losses_total"), over.sum("relock_hold_seconds", `end="lost"`))
		for _, label := range []string{`result="acquired"`, `result="busy"`, `result="timeout"`, `result="cancelled"`, `result="error"`} {
			require.Positive(t, over.sum("relock_acquisitions_total", label), label)
		}
		for _, label := range []string{`cause="expired"`, `cause="gone"`, `cause="forced"`} {
			require.Positive(t, over.sum("relock_losses_total", label), label)
		}
		require.Positive(t, over.sum("relock_contended_total"))
	})
}

// misuse takes a lock of any kind, in any way, as any sort of owner, and most often another one within; does one of
// them harm; and unlocks both, in any order.
func misuse(rdb *redis.Client, c *relock.Client, names []string) {
	var opts []relock.MutexOption
	if rand.N(2) == 0 {
		opts = append(opts, relock.WithOwner("job"))
	}
	expires := rand.N(8) == 0 // often: most of them get no lock
	if expires {
		opts = append(opts, relock.WithTTL(100*time.Millisecond), relock.WithoutRenewal())
	}
	var held []lock
	s, from := sorts[rand.N(len(sorts))], rand.N(2)
	for i, s := range []sort{s, sorts[2]} {
		from := (from + i) % 2
		// What is within must not wait for ever: another goroutine may have that, and wait for the first.
		call := calls[(i+rand.N(len(calls)-i))%len(calls)]
		l, result := call(func(more ...relock.MutexOption) lock {
			return s.make(c, names[from:from+2], slices.Concat(opts, more)...)
		})
		if result == "acquired" {
			held = append(held, l)
		}
	}
	if len(held) == 0 {
		return
	}
	switch harmed := names[from]; {
	case expires:
		time.Sleep(120 * time.Millisecond) // it is what ends the lease
	case rand.N(8) == 0:
		rdb.Del(context.Background(), harmed, "rw-"+harmed, "semaphore-"+harmed)
	case rand.N(8) == 0:
		_, _ = held[0].ForceUnlock(context.Background())
	}
	rand.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	for _, l := range held {
		_ = l.Unlock()
	}
}
