package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// fake is a contender in memory: a lock that works, except for the faults that it is configured with.
type fake struct {
	letsIn  bool // everybody
	fails   error
	forgets bool // the first one who has to wait

	mu      sync.Mutex
	forgot  bool
	closed  int
	release chan struct{} // ends those who were forgotten
	waited  chan struct{} // closed when one was
	locks   map[string]chan struct{}
}

func newFake(t *testing.T, f *fake) (*fake, contender) {
	f.release, f.waited, f.locks = make(chan struct{}), make(chan struct{}), make(map[string]chan struct{})
	t.Cleanup(func() { close(f.release) })
	return f, contender{name: "fake", open: func(setup) (client, error) { return f, nil }}
}

func (f *fake) Mutex(name string) mutex { return fakeMutex{f, name} }

func (f *fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed++
	return nil
}

// token returns the channel that holds a token while the lock is held.
func (f *fake) token(name string) chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locks[name] == nil {
		f.locks[name] = make(chan struct{}, 1)
	}
	return f.locks[name]
}

// forget reports whether the caller is the one to be forgotten.
func (f *fake) forget() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	forgotten := f.forgets && !f.forgot
	f.forgot = f.forgot || forgotten
	return forgotten
}

type fakeMutex struct {
	*fake
	name string
}

func (m fakeMutex) Lock(ctx context.Context) error {
	if m.letsIn {
		return nil
	}
	select {
	case m.token(m.name) <- struct{}{}:
		return nil
	default:
	}
	if m.forget() {
		close(m.waited)
		<-m.release
		return errors.New("forgotten")
	}
	select {
	case m.token(m.name) <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m fakeMutex) Unlock() error {
	if !m.letsIn {
		<-m.token(m.name)
	}
	return m.fails
}

// compete has four goroutines of a worker share a lock of c.
func compete(c contender, window time.Duration) (*history, error) {
	w := worker{contender: c}
	w.client, _ = c.open(setup{})
	o := order{Verb: runLoop, Name: "a", Goroutines: 4, Start: time.Now(), Duration: window}
	a, err := w.do(o)
	if err != nil {
		return nil, err
	}
	return newHistory(a.Run.Spans, o.Start, o.Duration)
}

const aMoment = 30 * time.Millisecond

func TestVoid_WorkingLockCounts(t *testing.T) {
	f, c := newFake(t, &fake{})
	require.NoError(t, check(c, setup{}, "a"))
	require.Equal(t, 2, f.closed)
	longEnough(t, func(window time.Duration) error {
		_, err := compete(c, window)
		return err
	})
}

func TestVoid_TwoHolders(t *testing.T) {
	_, c := newFake(t, &fake{letsIn: true})
	require.ErrorContains(t, check(c, setup{}, "a"), "two holders")

	// Of a lock that lets everybody in, the histories of goroutines overlap sooner or later.
	require.Eventually(t, func() bool {
		_, err := compete(c, aMoment)
		return err != nil && strings.Contains(err.Error(), "two holders")
	}, 20*time.Second, time.Millisecond)
}

// fakeSides is a contender in memory whose locks have two sides.
type fakeSides struct {
	side  sync.RWMutex
	joins bool // readers do not mind a writer
	alone bool // readers exclude each other
}

func (f *fakeSides) Mutex(string) mutex              { return f }
func (f *fakeSides) Close() error                    { return nil }
func (f *fakeSides) Lock(ctx context.Context) error  { return f.take(ctx, f.side.TryLock) }
func (f *fakeSides) Unlock() error                   { f.side.Unlock(); return nil }
func (f *fakeSides) RLock(ctx context.Context) error { return f.take(ctx, f.tryRead) }

func (f *fakeSides) RUnlock() error {
	switch {
	case f.joins:
	case f.alone:
		f.side.Unlock()
	default:
		f.side.RUnlock()
	}
	return nil
}

func (f *fakeSides) tryRead() bool {
	switch {
	case f.joins:
		return true
	case f.alone:
		return f.side.TryLock()
	}
	return f.side.TryRLock()
}

func (f *fakeSides) take(ctx context.Context, try func() bool) error {
	for !try() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func TestVoid_SidesAreCheckedBeforeALockCounts(t *testing.T) {
	of := func(f *fakeSides) error {
		return check(contender{open: func(setup) (client, error) { return f, nil }}, setup{}, "a")
	}
	require.NoError(t, of(&fakeSides{}))
	require.ErrorContains(t, of(&fakeSides{joins: true}), "two holders")

	defer func(d time.Duration) { checkFree = d }(checkFree)
	checkFree = 50 * time.Millisecond
	require.ErrorContains(t, of(&fakeSides{alone: true}), "a reader beside a reader: context deadline exceeded")
}

func TestVoid_WaiterThatGetsAHeldLock(t *testing.T) {
	f, _ := newFake(t, &fake{letsIn: true})
	require.ErrorContains(t, startWaiters(f, "a", 3).stop(), "two holders")
}

func TestVoid_Error(t *testing.T) {
	broken := errors.New("broken")
	_, c := newFake(t, &fake{fails: broken})
	require.ErrorIs(t, check(c, setup{}, "a"), broken)
	longEnough(t, func(window time.Duration) error {
		_, err := compete(c, window)
		if errors.Is(err, errIdle) { // nobody came in time
			return err
		}
		require.ErrorIs(t, err, broken)
		return nil
	})
}

func TestVoid_LostWaiter(t *testing.T) {
	defer func(d time.Duration) { grace = d }(grace)
	grace = 2 * time.Second
	f, c := newFake(t, &fake{forgets: true})
	held := f.Mutex("a")
	require.NoError(t, held.Lock(t.Context())) // until another owner has to wait
	go func() {
		<-f.waited
		_ = held.Unlock()
	}()
	longEnough(t, func(window time.Duration) error {
		_, err := compete(c, window)
		if errors.Is(err, errIdle) { // nobody came in time
			return err
		}
		require.ErrorContains(t, err, "lost waiters: 1 of 4")
		return nil
	})
}

func TestVoid_WaiterThatIgnoresItsContext(t *testing.T) {
	defer func(d time.Duration) { grace = d }(grace)
	grace = 2 * time.Second
	f, _ := newFake(t, &fake{forgets: true})
	require.NoError(t, f.Mutex("a").Lock(t.Context()))
	require.ErrorContains(t, startWaiters(f, "a", 3).stop(), "lost waiters: 1 of 3")
}

func TestVoid_CellIsNoResultHoweverFast(t *testing.T) {
	s := scenarioNamed("contended")
	l := s.loads[0]
	r := &report{config: config{rounds: 2, scenarios: []*scenario{s}}, samples: make(map[string][]sample)}
	for round := range 2 {
		r.add(s, l, relockName, sample{round: round, figures: figures{"rate": 100 + float64(round)}})
		r.add(s, l, fairName, sample{round: round, figures: figures{"rate": 90, "commands": 2}}) // no rival
		r.add(s, l, "redsync", sample{round: round, figures: figures{"rate": 50}})
		r.add(s, l, "rueidislock", sample{round: round, figures: figures{"rate": 1e6}, err: errors.New("two holders: oh no")})
	}
	r.add(s, l, "redislock", sample{round: 0, figures: figures{"rate": 60}})
	r.add(s, l, "redislock", sample{round: 1, err: errors.New("lost waiters: one")})

	best, ok := r.bestRival(s, l.label)
	require.True(t, ok)
	require.Equal(t, "redislock", best)
	v, ok := againstBest(r, s, l.label, relockName)
	require.True(t, ok)
	require.InDelta(t, 100.0/60, v.median, 1e-9, "only the round in which both are valid")

	text := r.markdown()
	require.Contains(t, text, "| rueidislock | void |")
	require.Contains(t, text, "rueidislock: 2 of 2 rounds void: two holders: oh no")
	require.Contains(t, text, "redislock: 1 of 2 rounds void: lost waiters: one")
	require.Contains(t, text, "| redislock | **60** (60–60) | 0.60 |")
	require.NotContains(t, text, "1000000")
}

func TestVoid_SemaphoreIsCheckedUpToItsLimit(t *testing.T) {
	s := setup{Addr: redistest.Redis(t).Addr, Limit: 3}
	for _, name := range limits {
		c, err := contenderNamed(name)
		require.NoError(t, err)
		require.NoError(t, check(c, s, redistest.Key(t)+name))
	}
	generous := contender{open: func(s setup) (client, error) {
		s.Limit++
		return openCounter(counterFast)(s)
	}}
	require.ErrorContains(t, check(generous, s, redistest.Key(t)), "two holders")
}
