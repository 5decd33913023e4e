package relock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// callKey is the key by which a context tells which call it was given to.
type callKey struct{}

func tagged(ctx context.Context, call any) context.Context {
	return context.WithValue(ctx, callKey{}, call)
}

// requireSays requires that e is about m of the bench, and told of the owner id.
func (b *kindBench) requireSays(e Event, m *Mutex, id string) {
	b.t.Helper()
	kinds := map[string]LockKind{
		"plain": KindMutex, "unpipelined": KindMutex, "quorum": KindMutex, "multi": KindMulti, "quorum multi": KindMulti,
		"fair": KindFair, "write": KindRW, "read": KindRW,
	}
	sides := map[string]LockSide{"write": SideWrite, "read": SideRead}
	require.Equal(b.t, m.Name(), e.Name)
	require.Equal(b.t, kinds[b.kind.name], e.Kind)
	require.Equal(b.t, sides[b.kind.name], e.Side)
	require.Equal(b.t, id, e.OwnerID)
	require.NotNil(b.t, e.Context)
}

// hookProperties are what every kind of lock tells its hooks.
var hookProperties = []property{
	{"a call that does not get the lock says why", func(b *kindBench) {
		id := fmt.Sprint(b.you.id())
		lock := func(ctx context.Context, m *Mutex) error { return m.Lock(ctx) }
		ended, end := context.WithCancel(b.t.Context())
		end()
		b.me.locks(b.t, b.rival())
		for what, c := range map[string]struct {
			ctx     context.Context
			opts    []MutexOption
			call    func(context.Context, *Mutex) error
			waits   bool
			outcome Outcome
			err     error
		}{
			"refused": {b.t.Context(), nil, func(ctx context.Context, m *Mutex) error {
				_, err := m.TryLock(ctx)
				return err
			}, false, OutcomeBusy, nil},
			"timed out": {b.t.Context(), []MutexOption{WithWaitTimeout(aWhile)}, lock, true, OutcomeTimedOut, ErrTimeout},
			"past its deadline": {b.t.Context(), nil, func(ctx context.Context, m *Mutex) error {
				ctx, cancel := context.WithTimeout(ctx, aWhile)
				defer cancel()
				return m.Lock(ctx)
			}, true, OutcomeTimedOut, context.DeadlineExceeded},
			"cancelled": {b.t.Context(), nil, func(ctx context.Context, m *Mutex) error {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				time.AfterFunc(aWhile, cancel)
				return m.Lock(ctx)
			}, true, OutcomeCancelled, context.Canceled},
			"cancelled before": {ended, nil, lock, false, OutcomeCancelled, context.Canceled},
		} {
			var r chronicle
			m := b.mutex(append(c.opts, WithHooks(r.hooks()))...)
			err := b.you.call(func() error { return c.call(tagged(c.ctx, what), m) })
			require.ErrorIs(b.t, err, c.err, what)
			want := []string{"failed"}
			if c.waits && len(r.of("contended")) > 0 { // it may be over sooner where Redis is slow
				want = []string{"contended", "failed"}
			}
			require.Equal(b.t, want, r.names(), what)
			events := r.all()
			require.Len(b.t, events, len(want), what)
			for _, e := range events {
				b.requireSays(e.Event, m, id)
				require.Empty(b.t, e.Owner, what)
				require.Equal(b.t, what, e.Context.Value(callKey{}))
			}
			failed := events[len(events)-1]
			require.Equal(b.t, c.outcome, failed.Outcome, what)
			require.Equal(b.t, len(want) == 2, failed.Waited, what)
			require.ErrorIs(b.t, failed.Err, c.err, what)
		}
		b.me.unlocks(b.t, b.rival())
	}},
	{"a hold says who has it from the wait to the end", func(b *kindBench) {
		var r chronicle
		m := b.mutex(WithHooks(r.hooks()))
		b.me.locks(b.t, b.rival())
		waiting := b.you.lock(tagged(b.t.Context(), "mine"), m)
		awaitWaiters(b.t, b.c.session, b.key, 1)
		b.me.unlocks(b.t, b.rival())
		require.NoError(b.t, outcomeOf(b.t, waiting))
		b.you.locks(b.t, m)
		b.you.unlocks(b.t, m)
		b.you.unlocks(b.t, m)
		id := fmt.Sprint(b.you.id())
		for _, e := range r.all() {
			b.requireSays(e.Event, m, id)
			require.Empty(b.t, e.Cause)
		}
		require.Len(b.t, r.of("acquired"), 1, "a re-entry tells nothing")
		require.Empty(b.t, r.of("failed"))
		require.Empty(b.t, r.of("contended")[0].Owner)
		acquired := r.of("acquired")[0]
		require.Contains(b.t, acquired.Owner, ":"+id)
		require.Equal(b.t, OutcomeAcquired, acquired.Outcome)
		require.True(b.t, acquired.Waited)
		require.Equal(b.t, "mine", acquired.Context.Value(callKey{}))
		require.Empty(b.t, r.of("released")[0].Outcome)
	}},
	{"a re-entry that fails says so, and what could not be asked does not", func(b *kindBench) {
		var r chronicle
		m := b.mutex(WithHooks(r.hooks()), WithoutReentrancy())
		b.me.locks(b.t, m)
		require.ErrorIs(b.t, b.me.call(func() error { return m.Lock(b.t.Context()) }), ErrReentrant)
		require.Equal(b.t, []string{"acquired", "failed"}, r.names())
		require.Equal(b.t, OutcomeError, r.of("failed")[0].Outcome)
		require.ErrorIs(b.t, r.of("failed")[0].Err, ErrReentrant)
		require.False(b.t, r.of("acquired")[0].Waited)
		var none context.Context
		require.ErrorIs(b.t, m.Lock(none), ErrInvalidOption)
		require.ErrorIs(b.t, b.mutex(WithHooks(r.hooks()), WithTTL(0)).Lock(b.t.Context()), ErrInvalidOption)
		require.Len(b.t, r.all(), 2)
		b.me.unlocks(b.t, m)
		require.NoError(b.t, b.c.Close())
		require.ErrorIs(b.t, m.Lock(b.t.Context()), ErrClosed)
		require.ErrorIs(b.t, r.of("failed")[1].Err, ErrClosed)
	}},
	{"a wait ends once, though a hook does not return", func(b *kindBench) {
		for what, end := range endings {
			ends := func(Event) { end() }
			b.me.locks(b.t, b.rival())
			var contended, acquired chronicle
			survive(b.t, func() {
				_ = b.mutex(WithHooks(JoinHooks(contended.hooks(), Hooks{Contended: ends}))).Lock(b.t.Context())
			})
			require.Equal(b.t, []string{"contended", "failed"}, contended.names(), what)
			failed := contended.of("failed")
			require.Len(b.t, failed, 1, what)
			require.True(b.t, failed[0].Waited, what)
			require.Equal(b.t, OutcomeError, failed[0].Outcome, what)
			require.ErrorIs(b.t, failed[0].Err, errHookEnded, what)

			var told chronicle
			survive(b.t, func() {
				_, _ = b.mutex(WithHooks(JoinHooks(told.hooks(), Hooks{Failed: ends}))).TryLock(b.t.Context())
			})
			require.Len(b.t, told.all(), 1, what)
			b.me.unlocks(b.t, b.rival())

			survive(b.t, func() {
				_ = b.mutex(WithHooks(JoinHooks(acquired.hooks(), Hooks{Acquired: ends}))).Lock(b.t.Context())
			})
			require.Len(b.t, acquired.of("acquired"), 1, what)
			require.Len(b.t, acquired.of("released"), 1, what)
			require.Empty(b.t, acquired.of("failed"), what)
		}
		b.me.locks(b.t, b.rival())
		var r chronicle
		m := b.mutex(WithOwner("job"), WithHooks(JoinHooks(r.hooks(), Hooks{Contended: func(Event) { runtime.Goexit() }})))
		require.ErrorIs(b.t, m.Lock(b.t.Context()), errHookEnded)
		require.Equal(b.t, []string{"contended", "failed"}, r.names())
		require.True(b.t, r.of("failed")[0].Waited)
		b.me.unlocks(b.t, b.rival())
	}},
	{"each wait has one end, also of owners that several goroutines share", func(b *kindBench) {
		var r chronicle
		var mu sync.Mutex
		failed := make(map[string]bool) // by call
		var all sync.WaitGroup
		for i := range 9 {
			m := b.mutex(WithOwner(fmt.Sprint("job-", i%3)), WithHooks(r.hooks()))
			all.Go(func() {
				for j := range 15 {
					call := fmt.Sprint(i, "/", j)
					ctx, cancel := context.WithTimeout(tagged(context.Background(), call), rand.N(20*time.Millisecond))
					err := m.Lock(ctx)
					cancel()
					mu.Lock()
					failed[call] = err != nil
					mu.Unlock()
					if err != nil {
						continue
					}
					time.Sleep(rand.N(3 * time.Millisecond)) // so that others wait
					if err := m.Unlock(); err != nil {
						b.t.Error(err)
					}
				}
			})
		}
		all.Wait()
		eventually(b.t, "every hold has ended", func() bool { return len(r.of("acquired")) == len(r.of("released"))+len(r.of("lost")) })
		requirePairs(b.t, r.all(), failed)
	}},
}

// requirePairs requires of each call, by its tag, that what it told fits together and to whether it
// failed.
func requirePairs(t *testing.T, events []chronicled, failed map[string]bool) {
	t.Helper()
	waiting, acquired, refused := make(map[string]int), make(map[string]int), make(map[string]int)
	for _, e := range events {
		call, _ := e.Context.Value(callKey{}).(string)
		switch e.hook {
		case "contended":
			require.NotEmpty(t, call)
			waiting[call]++
			require.Equal(t, 1, waiting[call], "%s waits once", call)
		case "failed", "acquired":
			if e.Waited {
				waiting[call]--
				require.Zero(t, waiting[call], "%s has waited", call)
			}
			if e.hook == "acquired" { // without a call: of those that waited on for one that has left
				acquired[call]++
				continue
			}
			require.True(t, failed[call], "%s has got the lock", call)
			refused[call]++
		}
	}
	for call, n := range waiting {
		require.Zero(t, n, "the wait of %s has no end", call)
	}
	for call, failed := range failed {
		if failed && acquired[call] == 0 {
			require.Equal(t, 1, refused[call], "%s has failed", call)
		}
		require.LessOrEqual(t, refused[call], 1, call)
	}
}

func TestHooksAreToldTheSameOfEveryKind(t *testing.T) {
	t.Parallel()
	testKinds(t, hookProperties, allKinds)
}

// sharedWait has two goroutines wait for the lock as one owner, one after the other.
func sharedWait(t *testing.T, test func(t *testing.T, r *chronicle, leave [2]func(), locked [2]<-chan error, unlock func())) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c, key, r := locksOn(t, b.Client(t)), redistest.Key(t), &chronicle{}
		requireLocked(t, c.Mutex(key))
		m := c.Mutex(key, WithOwner("job"), WithHooks(r.hooks()))
		var leave [2]func()
		var locked [2]<-chan error
		for i := range leave {
			ctx, cancel := context.WithCancel(tagged(t.Context(), i))
			defer cancel()
			leave[i], locked[i] = cancel, newActor(t).lock(ctx, m)
			awaitCallers(t, c, key, i+1)
		}
		eventually(t, "the wait", func() bool { return len(r.of("contended")) == 1 })
		require.Equal(t, 0, r.of("contended")[0].Context.Value(callKey{}))
		test(t, r, leave, locked, func() { requireUnlocked(t, c.Mutex(key)) })
		for m.HoldCount() > 0 {
			requireUnlocked(t, m)
		}
		require.Len(t, r.of("contended"), 1)
	})
}

func TestOfLocksOfOneOwnerTheFirstTellsTheWaitAndTheHold(t *testing.T) {
	sharedWait(t, func(t *testing.T, r *chronicle, leave [2]func(), locked [2]<-chan error, unlock func()) {
		leave[1]()
		require.ErrorIs(t, outcomeOf(t, locked[1]), context.Canceled)
		unlock()
		require.NoError(t, outcomeOf(t, locked[0]))
		require.Equal(t, []string{"contended", "failed", "acquired"}, r.names())
		require.False(t, r.of("failed")[0].Waited, "the wait goes on")
		require.Equal(t, 1, r.of("failed")[0].Context.Value(callKey{}))
		require.True(t, r.of("acquired")[0].Waited)
		require.Equal(t, 0, r.of("acquired")[0].Context.Value(callKey{}))
		require.Equal(t, "job", r.of("failed")[0].OwnerID)
	})
}

func TestOfLocksOfOneOwnerTheFirstEndsItsWaitWhenItLeaves(t *testing.T) {
	sharedWait(t, func(t *testing.T, r *chronicle, leave [2]func(), locked [2]<-chan error, unlock func()) {
		leave[0]()
		require.ErrorIs(t, outcomeOf(t, locked[0]), context.Canceled)
		unlock()
		require.NoError(t, outcomeOf(t, locked[1]))
		require.Equal(t, []string{"contended", "failed", "acquired"}, r.names())
		require.True(t, r.of("failed")[0].Waited)
		require.False(t, r.of("acquired")[0].Waited)
		require.Nil(t, r.of("acquired")[0].Context.Value(callKey{}))
	})
}

func TestLocksOfOneOwnerThatAllLeaveEndOneWait(t *testing.T) {
	sharedWait(t, func(t *testing.T, r *chronicle, leave [2]func(), locked [2]<-chan error, unlock func()) {
		for i := range leave {
			leave[i]()
			require.ErrorIs(t, outcomeOf(t, locked[i]), context.Canceled)
		}
		unlock()
		require.Equal(t, []string{"contended", "failed"}, r.names())
		require.True(t, r.of("failed")[0].Waited)
		require.False(t, r.of("failed")[1].Waited)
	})
}

// The Lock leaves before the hook Contended has returned, which runs on another goroutine.
func TestTheEndOfAWaitIsToldAfterItsBeginning(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c, key, r := locksOn(t, b.Client(t)), redistest.Key(t), &chronicle{}
		requireLocked(t, c.Mutex(key))
		ctx, cancel := context.WithCancel(t.Context())
		m := c.Mutex(key, WithOwner("job"), WithHooks(JoinHooks(Hooks{Contended: func(Event) {
			cancel()
			time.Sleep(aWhile) // it is what is tested
		}}, r.hooks())))
		require.ErrorIs(t, outcomeOf(t, newActor(t).lock(ctx, m)), context.Canceled)
		require.Equal(t, []string{"contended", "failed"}, r.names())
		requireUnlocked(t, c.Mutex(key))
	})
}

// Close ends what the Lock was to add to, and with that the wait.
func TestAWaitForTheRestOfTheNamesEndsOnceWithClose(t *testing.T) {
	eachPartly(t, func(b *partly) {
		var r chronicle
		heldByStranger(b.t, b.rdb, b.names[1], time.Minute)
		me := newActor(b.t)
		me.locks(b.t, b.one())
		locked := me.lock(b.t.Context(), b.both(WithHooks(r.hooks())))
		eventually(b.t, "a wait", func() bool { return len(r.of("contended")) == 1 })
		require.NoError(b.t, b.c.Close())
		require.ErrorIs(b.t, outcomeOf(b.t, locked), ErrClosed)
		require.Len(b.t, r.all(), 2)
		require.True(b.t, r.of("failed")[0].Waited)
		require.ErrorIs(b.t, r.of("failed")[0].Err, ErrClosed)
	})
}

// Only a fixed owner's may have to, if another goroutine unlocks meanwhile what it was to add to.
func TestALockThatStartsOverGoesOnWithItsWait(t *testing.T) {
	var r chronicle
	m := clientOn(t, offline(t)).Mutex("orders", WithOwner("job"), WithHooks(r.hooks()))
	first := newRecord(t.Context(), m)
	first.Contended()
	second := first.again()
	first.Contended() // by an acquisition that goes on for others
	second.Contended()
	_, waited := first.begun()
	require.False(t, waited)
	_, waited = second.begun()
	require.True(t, waited)
	second.ended(false, ErrLost)
	require.Equal(t, []string{"contended"}, r.names())
	require.Len(t, r.all(), 1)

	third := second.again()
	third.Contended()
	fourth := third.again()
	fourth.ended(true, nil) // by a level on what another goroutine has got
	require.Equal(t, []string{"contended", "failed"}, r.names())
	require.True(t, r.of("failed")[0].Waited)
	require.Equal(t, OutcomeBusy, r.of("failed")[0].Outcome)
}

func TestALossSaysItsCause(t *testing.T) {
	for cause, lose := range map[LossCause]func(t *testing.T, m *Mutex, rdb *redis.Client, clocks *twoClocks){
		LossExpired: func(_ *testing.T, m *Mutex, _ *redis.Client, clocks *twoClocks) {
			clocks.set(jumpBeyondLease)
			m.HoldCount()
		},
		LossGone: func(t *testing.T, m *Mutex, rdb *redis.Client, _ *twoClocks) {
			require.NoError(t, rdb.Del(t.Context(), m.Name()).Err())
			require.ErrorIs(t, m.Lock(t.Context()), ErrLost)
		},
		LossForced: func(t *testing.T, m *Mutex, _ *redis.Client, _ *twoClocks) {
			_, err := m.ForceUnlock(t.Context())
			require.NoError(t, err)
		},
	} {
		t.Run(string(cause), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				var r chronicle
				rdb := b.Client(t)
				c, clocks := locksWithClock(t, rdb, WithHooks(r.hooks()))
				m := c.Mutex(redistest.Key(t))
				requireLocked(t, m)
				lose(t, m, rdb, clocks)
				require.Len(t, r.of("lost"), 1)
				require.Equal(t, cause, r.of("lost")[0].Cause)
				require.ErrorIs(t, m.Lock(t.Context()), ErrLost)
				failed := r.of("failed")
				require.Equal(t, cause, failed[len(failed)-1].Cause, "of a Lock inside the lost hold")
				require.ErrorIs(t, m.Unlock(), ErrLost)
			})
		})
	}
}

func TestAReleaseThatFindsALossSaysItsCause(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		var r chronicle
		rdb := b.Client(t)
		m := locksOn(t, rdb, WithHooks(r.hooks())).Mutex(redistest.Key(t))
		requireLocked(t, m)
		require.NoError(t, rdb.Del(t.Context(), m.Name()).Err())
		require.ErrorIs(t, m.Unlock(), ErrLost)
		require.Equal(t, LossGone, r.of("released")[0].Cause)
	})
}

// eachHook calls f with every field of h.
func eachHook(h *Hooks, f func(name string, hook *func(Event))) {
	fields := reflect.ValueOf(h).Elem()
	for i := range fields.NumField() {
		f(fields.Type().Field(i).Name, fields.Field(i).Addr().Interface().(*func(Event)))
	}
}

func TestJoinedHooksAreAllCalledInOrder(t *testing.T) {
	var called []string
	counting := func(who string, end func()) (h Hooks) {
		eachHook(&h, func(name string, hook *func(Event)) {
			*hook = func(e Event) {
				called = append(called, who+" "+name+" "+e.Name)
				end()
			}
		})
		return h
	}
	joined := JoinHooks(counting("first", func() { panic("in a hook") }), Hooks{}, counting("second", func() {}))
	eachHook(&joined, func(name string, hook *func(Event)) {
		called = nil
		require.PanicsWithValue(t, "in a hook", func() { (*hook)(Event{Name: "orders"}) }, name)
		require.Equal(t, []string{"first " + name + " orders", "second " + name + " orders"}, called)
	})
	none := JoinHooks(Hooks{}, Hooks{})
	eachHook(&none, func(name string, hook *func(Event)) { require.Nil(t, *hook, name) })
}

func TestLogHooksLogALossAsAnErrorAndMostForDebugging(t *testing.T) {
	var text bytes.Buffer
	handler := slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})
	logged := LogHooks(slog.New(handler))
	eachHook(&logged, func(name string, hook *func(Event)) {
		text.Reset()
		(*hook)(Event{
			Name: "orders", Kind: KindRW, Side: SideRead, OwnerID: "job", Token: 7, Elapsed: time.Second,
			Outcome: OutcomeBusy, Cause: LossGone, Err: errors.New("so it is"), Context: t.Context(),
		})
		level, special := map[string]string{"Lost": "ERROR", "RenewFailed": "WARN"}[name]
		if !special {
			level = "DEBUG"
		}
		require.Contains(t, text.String(), "level="+level, name)
		require.Contains(t, text.String(), `name=orders kind=rw owner=job elapsed=1s side=read token=7 outcome=busy cause=gone error="so it is"`, name)
	})
	text.Reset()
	logged.Acquired(Event{Name: "orders"})
	require.NotContains(t, text.String(), "side")
	require.NotContains(t, text.String(), "error")

	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(handler))
	text.Reset()
	LogHooks(nil).Lost(Event{Name: "orders"})
	require.Contains(t, text.String(), "lock lost")
}
