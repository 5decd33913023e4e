package relockotel_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relocktest"
)

// subject is a side of a lock of some kind.
type subject struct {
	of     string // what it is in the tally
	attrs  []attribute.KeyValue
	keys   []string // on Redis
	lock   func(context.Context) error
	try    func(context.Context) (bool, error)
	unlock func() error
	do     func(context.Context, func(context.Context) error) error
	hold   func(context.Context) context.Context
	force  func(context.Context) (bool, error)
}

func ofMutex(o *observer, of string, m *relock.Mutex, keys ...string) subject {
	return subject{of, []attribute.KeyValue{kind(of)}, keys, m.Lock, m.TryLock, m.Unlock,
		func(ctx context.Context, fn func(context.Context) error) error { return o.Do(ctx, m, fn) }, m.Context, m.ForceUnlock}
}

func ofWriters(o *observer, key string, m *relock.RWMutex) subject {
	return subject{"write", []attribute.KeyValue{kind("rw"), side("write")}, []string{key}, m.Lock, m.TryLock, m.Unlock,
		func(ctx context.Context, fn func(context.Context) error) error { return o.Do(ctx, m, fn) }, m.Context, m.ForceUnlock}
}

func ofReaders(o *observer, key string, m *relock.RWMutex) subject {
	return subject{"read", []attribute.KeyValue{kind("rw"), side("read")}, []string{key}, m.RLock, m.TryRLock, m.RUnlock,
		func(ctx context.Context, fn func(context.Context) error) error { return o.RDo(ctx, m, fn) }, m.RContext, m.ForceUnlock}
}

// ofPermits is for one permit at a time.
func ofPermits(o *observer, key string, m *relock.Semaphore) subject {
	var p *relock.Permit
	return subject{"semaphore", []attribute.KeyValue{kind("semaphore")}, []string{key},
		func(ctx context.Context) (err error) {
			p, err = m.AcquireN(ctx, 1+rand.N(m.Limit()))
			return err
		},
		func(ctx context.Context) (held bool, err error) {
			p, held, err = m.TryAcquire(ctx)
			return held, err
		},
		func() error { return p.Release() },
		func(ctx context.Context, fn func(context.Context) error) error { return o.Do(ctx, m, fn) },
		func(ctx context.Context) context.Context { return p.Context(ctx) },
		func(ctx context.Context) (bool, error) {
			state, err := m.State(ctx)
			if err != nil || len(state.Permits) == 0 {
				return false, err
			}
			return m.ForceRelease(ctx, state.Permits[0].ID)
		}}
}

// subjects returns one of each kind. Subjects that share names contend. A permit has no owner.
func subjects(o *observer, c *relock.Client, key string, owner []relock.MutexOption, opts ...relock.MutexOption) []subject {
	both, readers, permits := []string{key, key + "-2"}, key+"-rw", key+"-permits"
	semaphore := c.Semaphore(permits, 3, opts...)
	opts = append(opts, owner...)
	return []subject{
		ofPermits(o, permits, semaphore),
		ofMutex(o, "mutex", c.Mutex(key, opts...), key),
		ofMutex(o, "fair", c.FairMutex(key, opts...), key),
		ofMutex(o, "multi", c.MultiMutex(both, opts...), both...),
		ofWriters(o, readers, c.RWMutex(readers, opts...)),
		ofReaders(o, readers, c.RWMutex(readers, opts...)),
		ofReaders(o, readers, c.RWMutex(readers, opts...)),
	}
}

// load is much that happens at once, with a tally of what its calls returned.
type load struct {
	t       *testing.T
	o       *observer
	rdb     *redis.Client
	clients []*relock.Client
	key     string

	contended, worked atomic.Int64 // waits, and functions that Do has run

	mu    sync.Mutex
	tally map[string]int // by what was locked, and how the call or hold ended
}

func newLoad(t *testing.T, rdb *redis.Client, key string) *load {
	l := &load{t: t, o: observe(t), rdb: rdb, key: key, tally: make(map[string]int)}
	for range 2 {
		// No message reports a deleted key.
		l.clients = append(l.clients, l.client(relock.WithSafetyPoll(20*time.Millisecond)))
	}
	return l
}

// client returns a client that is as another process.
func (l *load) client(opts ...relock.ClientOption) *relock.Client {
	c, err := relock.New(l.rdb, append(opts, relock.WithHooks(relock.JoinHooks(l.o.Hooks(), relock.Hooks{
		Contended: func(relock.Event) { l.contended.Add(1) },
	})))...)
	require.NoError(l.t, err)
	l.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (l *load) count(s subject, how string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tally[s.of+" "+how]++
}

func (l *load) counted(of, how string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tally[of+" "+how]
}

// called counts how a call ended that has, or has not, got the lock.
func (l *load) called(s subject, held bool, err error) {
	switch {
	case held:
		l.count(s, "acquired")
	case errors.Is(err, relock.ErrLost): // before Lock has returned
		l.count(s, "acquired")
		l.count(s, "lost")
	case err == nil:
		l.count(s, "busy")
	case errors.Is(err, context.Canceled):
		l.count(s, "cancelled")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, relock.ErrTimeout):
		l.count(s, "timeout")
	default: // the client was closed, or a busy machine kept Redis from answering
		l.count(s, "failed")
	}
}

// ended counts how a hold ended.
func (l *load) ended(s subject, unlocked error) {
	switch {
	case unlocked == nil, errors.Is(unlocked, relock.ErrClosed):
		l.count(s, "released")
	case errors.Is(unlocked, relock.ErrLost):
		l.count(s, "lost")
	default: // what came after it in this process was forced open before Redis had it
		l.count(s, "untold")
	}
}

const short = 10 * time.Millisecond

// turn locks something in some way, and unlocks it, or has its lease expire.
func (l *load) turn(expires bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var opts, owner []relock.MutexOption
	way := rand.N(6)
	if expires {
		way = 5
		opts = append(opts, relock.WithTTL(100*time.Millisecond), relock.WithoutRenewal())
	}
	switch way {
	case 0:
		ctx, cancel = context.WithTimeout(ctx, rand.N(short))
		defer cancel()
	case 1:
		time.AfterFunc(rand.N(short), cancel)
	case 2:
		opts = append(opts, relock.WithWaitTimeout(1+rand.N(short)))
	}
	if way > 2 && rand.N(3) == 0 { // a Lock by others than goroutines may give up when its hold has begun
		owner = append(owner, relock.WithOwner(fmt.Sprintf("job-%d", rand.Uint64())))
	}
	all := subjects(l.o, l.clients[rand.N(len(l.clients))], l.key, owner, opts...)
	s := all[rand.N(len(all))]

	work := func() { l.work(s, expires) }
	switch way {
	case 3:
		held, err := s.try(ctx)
		l.called(s, held, err)
		if held {
			work()
			l.ended(s, s.unlock())
		}
	case 4:
		l.do(ctx, s, work)
	default:
		err := s.lock(ctx)
		l.called(s, err == nil, err)
		if err == nil {
			work()
			l.ended(s, s.unlock())
		}
	}
}

// do is a turn by Do.
func (l *load) do(ctx context.Context, s subject, work func()) {
	worked := false
	err := s.do(ctx, func(context.Context) error {
		worked = true
		l.worked.Add(1)
		work()
		return nil
	})
	held := worked || errors.Is(err, relock.ErrLost) // lost before it could begin
	l.called(s, held, err)
	if held {
		l.ended(s, err)
	}
}

// work is what is done under a lock, and happens to it.
func (l *load) work(s subject, expires bool) {
	if expires {
		<-s.hold(context.Background()).Done()
		return
	}
	time.Sleep(rand.N(2 * time.Millisecond))
	switch rand.N(12) {
	case 0:
		_, _ = s.force(context.Background()) // Unlock reports if it has been
	case 1:
		l.rdb.Del(context.Background(), s.keys...)
	}
}

// close ends one more client in the midst of holds and waits.
func (l *load) close() {
	c, key := l.client(), l.key+"-closed"
	var all sync.WaitGroup
	held, over := make(chan struct{}), make(chan struct{})
	holder := ofMutex(l.o, "mutex", c.Mutex(key))
	all.Go(func() {
		err := holder.lock(context.Background())
		l.called(holder, err == nil, err)
		close(held)
		<-over
		l.ended(holder, holder.unlock())
	})
	<-held
	const waiters = 5
	before := l.contended.Load()
	for range waiters {
		s := ofMutex(l.o, "fair", c.FairMutex(key))
		all.Go(func() { l.called(s, false, s.lock(context.Background())) })
	}
	redistest.Eventually(l.t, "waits", func() bool { return l.contended.Load() == before+waiters })
	require.Equal(l.t, waiters, l.o.count(l.t, "relock.waiters"))
	require.Equal(l.t, 1, l.o.count(l.t, "relock.holds"))
	require.NoError(l.t, c.Close())
	close(over)
	all.Wait()
}

// requireReported requires that the metrics are what the calls returned.
func (l *load) requireReported() {
	t, o := l.t, l.o
	for _, s := range subjects(o, l.clients[0], l.key, nil) {
		for name, outcomes := range map[string]map[string]string{ // by how it was counted
			"relock.wait.duration": {"acquired": "acquired", "busy": "busy", "timeout": "timeout", "cancelled": "cancelled", "failed": "error"},
			"relock.hold.duration": {"released": "released", "lost": "lost", "untold": "error"},
		} {
			sum := 0
			for how, reported := range outcomes {
				sum += l.counted(s.of, how)
				require.Equal(t, l.counted(s.of, how), o.count(t, name, append(s.attrs, outcome(reported))...), "%s of %s: %s", name, s.of, how)
			}
			require.Equal(t, sum, o.count(t, name, s.attrs...), "%s of %s", name, s.of)
		}
		require.Equal(t, l.counted(s.of, "lost"), o.count(t, "relock.losses", s.attrs...), s.of)
	}
	require.EqualValues(t, l.contended.Load(), o.count(t, "relock.contentions"))
	require.Len(t, o.ended("relock.lock"), int(l.contended.Load()))
	require.Len(t, o.ended("relock.hold"), int(l.worked.Load()))
}

func TestLoad_CountsMatchTheResultsOfCalls(t *testing.T) {
	const workers, turns = 16, 40
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		l := newLoad(t, b.Client(t), redistest.Key(t))
		var all sync.WaitGroup
		for i := range workers {
			all.Go(func() {
				for turn := range turns {
					l.turn(turn == 0 && i%4 == 0)
				}
			})
		}
		all.Wait()
		ended := func() bool { return l.o.count(t, "relock.holds") == 0 }
		redistest.Eventually(t, "the last loss is reported", ended)
		l.close()
		redistest.Eventually(t, "Close is reported", ended)
		l.o.requireAtRest(t)
		l.requireReported()
		for _, how := range []string{"acquired", "busy", "timeout", "cancelled", "failed", "released", "lost"} {
			n := 0
			for _, of := range []string{"mutex", "fair", "multi", "write", "read"} {
				n += l.counted(of, how)
			}
			require.Positive(t, n, how)
		}
	})
}

// In this load locks are nested, goroutines share owners, Redis goes away, and the client is closed
// in the midst of it.
func TestLoad_CountsReturnToZeroWhateverHappens(t *testing.T) {
	const workers, turns, rounds = 16, 25, 8
	seen := make(map[string]int)
	for range rounds {
		synctest.Test(t, func(t *testing.T) {
			o := observe(t)
			locks := relocktest.New(t, relock.WithHooks(o.Hooks()), relock.WithTTL(time.Second))
			var all sync.WaitGroup
			for range workers {
				all.Go(func() {
					for range turns {
						nest(o, locks)
					}
				})
			}
			trouble(t, locks)
			closed := locks.Close()
			all.Wait()
			synctest.Wait()
			o.requireAtRest(t)
			held := o.count(t, "relock.wait.duration", outcome("acquired"))
			require.Equal(t, held, o.count(t, "relock.hold.duration"), "each hold has ended once; Close: %v", closed)
			require.Len(t, o.ended("relock.lock"), o.count(t, "relock.contentions"))
			for _, how := range []string{"acquired", "timeout", "error"} {
				seen[how] += o.count(t, "relock.wait.duration", outcome(how))
			}
			seen["lost"] += o.count(t, "relock.losses")
			seen["waited"] += o.count(t, "relock.contentions")
		})
	}
	for _, how := range []string{"acquired", "timeout", "error", "lost", "waited"} {
		require.Positive(t, seen[how], how)
	}
	t.Log(seen)
}

// nest locks one thing inside of another, if it can.
func nest(o *observer, locks *relock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), rand.N(3*time.Second))
	defer cancel()
	var owner []relock.MutexOption
	if rand.N(2) == 0 {
		owner = append(owner, relock.WithOwner(fmt.Sprint("job-", rand.N(3))))
	}
	all := append(subjects(o, locks, "orders", owner), subjects(o, locks, "others", owner)...)
	outer, inner := all[rand.N(len(all))], all[rand.N(len(all))]
	_ = outer.do(ctx, func(ctx context.Context) error {
		time.Sleep(rand.N(100 * time.Millisecond))
		if rand.N(2) == 0 {
			_, _ = outer.force(ctx)
		}
		if inner.lock(ctx) != nil {
			return nil
		}
		time.Sleep(rand.N(100 * time.Millisecond))
		return inner.unlock()
	})
}

// trouble takes Redis away some times.
func trouble(t *testing.T, locks *relock.Client) {
	for range 3 {
		time.Sleep(rand.N(2 * time.Second))
		relocktest.Outage(t, locks, 1+rand.N(3*time.Second))
	}
	time.Sleep(rand.N(2 * time.Second))
}

// Hooks of one handle replace the hooks of its client: joined, they count on.
func TestLoad_HandleWithHooksCountsIfTheyAreJoined(t *testing.T) {
	o, reported := observe(t), 0
	locks := relocktest.New(t, relock.WithHooks(o.Hooks()))
	m := locks.Mutex("orders:42", relock.WithHooks(relock.JoinHooks(o.Hooks(), relock.Hooks{Acquired: func(relock.Event) { reported++ }})))
	require.NoError(t, m.Do(t.Context(), func(ctx context.Context) error {
		assert.Equal(t, 1, o.count(t, "relock.holds"))
		return locks.Mutex("orders:42").Do(ctx, nothing)
	}))
	o.requireAtRest(t)
	require.Equal(t, 1, reported)
	require.Equal(t, 1, o.count(t, "relock.hold.duration"))
}
