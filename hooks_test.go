package relock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// callKey is the key by which a context identifies the call it was given to.
type callKey struct{}

func tagged(ctx context.Context, call any) context.Context {
	return context.WithValue(ctx, callKey{}, call)
}

// requireSays requires that e is about m of the bench, and names the owner id.
func (b *kindBench) requireSays(e relock.Event, m *relock.Mutex, id string) {
	b.t.Helper()
	kinds := map[string]relock.LockKind{
		"plain": relock.KindMutex, "unpipelined": relock.KindMutex, "quorum": relock.KindMutex, "multi": relock.KindMulti, "quorum multi": relock.KindMulti,
		"fair": relock.KindFair, "write": relock.KindRW, "read": relock.KindRW,
	}
	sides := map[string]relock.LockSide{"write": relock.SideWrite, "read": relock.SideRead}
	require.Equal(b.t, m.Name(), e.Name)
	require.Equal(b.t, kinds[b.kind.name], e.Kind)
	require.Equal(b.t, sides[b.kind.name], e.Side)
	require.Equal(b.t, id, e.OwnerID)
	require.NotNil(b.t, e.Context)
}

// hookProperties are what every kind of lock reports to its hooks.
var hookProperties = []property{
	{"a call that does not get the lock says why", func(b *kindBench) {
		id := fmt.Sprint(b.you.ID())
		lock := func(ctx context.Context, m *relock.Mutex) error { return m.Lock(ctx) }
		ended, end := context.WithCancel(b.t.Context())
		end()
		b.me.Locks(b.t, b.rival())
		for what, c := range map[string]struct {
			ctx     context.Context
			opts    []relock.MutexOption
			call    func(context.Context, *relock.Mutex) error
			waits   bool
			outcome relock.Outcome
			err     error
		}{
			"refused": {b.t.Context(), nil, func(ctx context.Context, m *relock.Mutex) error {
				_, err := m.TryLock(ctx)
				return err
			}, false, relock.OutcomeBusy, nil},
			"timed out": {b.t.Context(), []relock.MutexOption{relock.WithWaitTimeout(locktest.AWhile)}, lock, true, relock.OutcomeTimedOut, relock.ErrTimeout},
			"past its deadline": {b.t.Context(), nil, func(ctx context.Context, m *relock.Mutex) error {
				ctx, cancel := context.WithTimeout(ctx, locktest.AWhile)
				defer cancel()
				return m.Lock(ctx)
			}, true, relock.OutcomeTimedOut, context.DeadlineExceeded},
			"cancelled": {b.t.Context(), nil, func(ctx context.Context, m *relock.Mutex) error {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				time.AfterFunc(locktest.AWhile, cancel)
				return m.Lock(ctx)
			}, true, relock.OutcomeCancelled, context.Canceled},
			"cancelled before": {ended, nil, lock, false, relock.OutcomeCancelled, context.Canceled},
		} {
			var r chronicle
			m := b.mutex(append(c.opts, relock.WithHooks(r.Hooks()))...)
			err := b.you.Call(func() error { return c.call(tagged(c.ctx, what), m) })
			require.ErrorIs(b.t, err, c.err, what)
			want := []string{"failed"}
			if c.waits && len(r.Of("contended")) > 0 { // it may be over sooner where Redis is slow
				want = []string{"contended", "failed"}
			}
			require.Equal(b.t, want, r.Names(), what)
			events := r.All()
			require.Len(b.t, events, len(want), what)
			for _, e := range events {
				b.requireSays(e.Event, m, id)
				require.Empty(b.t, e.Event.Owner, what)
				require.Equal(b.t, what, e.Event.Context.Value(callKey{}))
			}
			failed := events[len(events)-1]
			require.Equal(b.t, c.outcome, failed.Event.Outcome, what)
			require.Equal(b.t, len(want) == 2, failed.Event.Waited, what)
			require.ErrorIs(b.t, failed.Event.Err, c.err, what)
		}
		b.me.Unlocks(b.t, b.rival())
	}},
	{"a hold says who has it from the wait to the end", func(b *kindBench) {
		var r chronicle
		m := b.mutex(relock.WithHooks(r.Hooks()))
		b.me.Locks(b.t, b.rival())
		waiting := b.you.Lock(tagged(b.t.Context(), "mine"), m)
		relock.AwaitWaiters(b.t, b.c, b.key, 1)
		b.me.Unlocks(b.t, b.rival())
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		b.you.Locks(b.t, m)
		b.you.Unlocks(b.t, m)
		b.you.Unlocks(b.t, m)
		id := fmt.Sprint(b.you.ID())
		for _, e := range r.All() {
			b.requireSays(e.Event, m, id)
			require.Empty(b.t, e.Event.Cause)
		}
		require.Len(b.t, r.Of("acquired"), 1, "a re-entry reports nothing")
		require.Empty(b.t, r.Of("failed"))
		require.Empty(b.t, r.Of("contended")[0].Owner)
		acquired := r.Of("acquired")[0]
		require.Contains(b.t, acquired.Owner, ":"+id)
		require.Equal(b.t, relock.OutcomeAcquired, acquired.Outcome)
		require.True(b.t, acquired.Waited)
		require.Equal(b.t, "mine", acquired.Context.Value(callKey{}))
		require.Empty(b.t, r.Of("released")[0].Outcome)
	}},
	{"a re-entry that fails says so, and what could not be asked does not", func(b *kindBench) {
		var r chronicle
		m := b.mutex(relock.WithHooks(r.Hooks()), relock.WithoutReentrancy())
		b.me.Locks(b.t, m)
		require.ErrorIs(b.t, b.me.Call(func() error { return m.Lock(b.t.Context()) }), relock.ErrReentrant)
		require.Equal(b.t, []string{"acquired", "failed"}, r.Names())
		require.Equal(b.t, relock.OutcomeError, r.Of("failed")[0].Outcome)
		require.ErrorIs(b.t, r.Of("failed")[0].Err, relock.ErrReentrant)
		require.False(b.t, r.Of("acquired")[0].Waited)
		var none context.Context
		require.ErrorIs(b.t, m.Lock(none), relock.ErrInvalidOption)
		require.ErrorIs(b.t, b.mutex(relock.WithHooks(r.Hooks()), relock.WithTTL(0)).Lock(b.t.Context()), relock.ErrInvalidOption)
		require.Len(b.t, r.All(), 2)
		b.me.Unlocks(b.t, m)
		require.NoError(b.t, b.c.Close())
		require.ErrorIs(b.t, m.Lock(b.t.Context()), relock.ErrClosed)
		require.ErrorIs(b.t, r.Of("failed")[1].Err, relock.ErrClosed)
	}},
	{"each wait has one end, also of owners that several goroutines share", func(b *kindBench) {
		var r chronicle
		var mu sync.Mutex
		failed := make(map[string]bool) // by call
		var all sync.WaitGroup
		for i := range 9 {
			m := b.mutex(relock.WithOwner(fmt.Sprint("job-", i%3)), relock.WithHooks(r.Hooks()))
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
		redistest.Eventually(b.t, "every hold has ended", func() bool { return len(r.Of("acquired")) == len(r.Of("released"))+len(r.Of("lost")) })
		requirePairs(b.t, r.All(), failed)
	}},
}

// requirePairs requires of each call, by its tag, that what it reported fits together and to whether it
// failed.
func requirePairs(t *testing.T, events []locktest.Chronicled[relock.Event], failed map[string]bool) {
	t.Helper()
	waiting, acquired, refused := make(map[string]int), make(map[string]int), make(map[string]int)
	for _, e := range events {
		call, _ := e.Event.Context.Value(callKey{}).(string)
		switch e.Hook {
		case "contended":
			require.NotEmpty(t, call)
			waiting[call]++
			require.Equal(t, 1, waiting[call], "%s waits once", call)
		case "failed", "acquired":
			if e.Event.Waited {
				waiting[call]--
				require.Zero(t, waiting[call], "%s has waited", call)
			}
			if e.Hook == "acquired" { // without a call: waiters that waited on for one that has left
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

func TestHooks_ReportTheSameForEveryKind(t *testing.T) {
	t.Parallel()
	testKinds(t, hookProperties, allKinds)
}

// queuedLocks has two goroutines want the lock as one owner, one behind the other. leave ends their contexts.
func queuedLocks(t *testing.T, test func(t *testing.T, r *chronicle, leave [2]func(), locked [2]<-chan error, unlock func())) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c, key, r := relock.LocksOn(t, b.Client(t)), redistest.Key(t), &chronicle{}
		locktest.RequireLocked(t, c.Mutex(key))
		m := c.Mutex(key, relock.WithOwner("job"), relock.WithHooks(r.Hooks()))
		var leave [2]func()
		var locked [2]<-chan error
		for i := range leave {
			ctx, cancel := context.WithCancel(tagged(t.Context(), i))
			defer cancel()
			leave[i], locked[i] = cancel, locktest.NewActor(t).Lock(ctx, m)
			redistest.Eventually(t, "the wait of the first", func() bool { return len(r.Of("contended")) == 1 })
		}
		awaitQueue(t, c, key)
		require.Equal(t, 0, r.Of("contended")[0].Context.Value(callKey{}))
		test(t, r, leave, locked, func() { locktest.RequireUnlocked(t, c.Mutex(key)) })
		for m.HoldCount() > 0 {
			locktest.RequireUnlocked(t, m)
		}
	})
}

func TestOwner_OnlyTheFirstOfItsLocksWaits(t *testing.T) {
	queuedLocks(t, func(t *testing.T, r *chronicle, leave [2]func(), locked [2]<-chan error, unlock func()) {
		leave[1]()
		require.ErrorIs(t, locktest.OutcomeOf(t, locked[1]), context.Canceled)
		unlock()
		require.NoError(t, locktest.OutcomeOf(t, locked[0]))
		require.Equal(t, []string{"contended", "failed", "acquired"}, r.Names())
		require.False(t, r.Of("failed")[0].Waited, "the wait goes on")
		require.Equal(t, 1, r.Of("failed")[0].Context.Value(callKey{}))
		require.True(t, r.Of("acquired")[0].Waited)
		require.Equal(t, 0, r.Of("acquired")[0].Context.Value(callKey{}))
		require.Equal(t, "job", r.Of("failed")[0].OwnerID)
	})
}

func TestOwner_TheNextOfItsLocksWaitsWhenTheFirstLeaves(t *testing.T) {
	queuedLocks(t, func(t *testing.T, r *chronicle, leave [2]func(), locked [2]<-chan error, unlock func()) {
		leave[0]()
		require.ErrorIs(t, locktest.OutcomeOf(t, locked[0]), context.Canceled)
		redistest.Eventually(t, "the wait of the second", func() bool { return len(r.Of("contended")) == 2 })
		unlock()
		require.NoError(t, locktest.OutcomeOf(t, locked[1]))
		require.Len(t, r.Of("failed"), 1)
		require.Len(t, r.Of("acquired"), 1)
		require.True(t, r.Of("failed")[0].Waited)
		require.True(t, r.Of("acquired")[0].Waited)
		require.Equal(t, 1, r.Of("acquired")[0].Context.Value(callKey{}))
	})
}

func TestOwner_EachOfItsLocksThatLeavesSaysWhetherItHasWaited(t *testing.T) {
	queuedLocks(t, func(t *testing.T, r *chronicle, leave [2]func(), locked [2]<-chan error, unlock func()) {
		for i := 1; i >= 0; i-- {
			leave[i]()
			require.ErrorIs(t, locktest.OutcomeOf(t, locked[i]), context.Canceled)
		}
		unlock()
		require.Equal(t, []string{"contended", "failed"}, r.Names())
		require.False(t, r.Of("failed")[0].Waited)
		require.True(t, r.Of("failed")[1].Waited)
	})
}

// The context ends before the hook Contended has returned.
func TestHooks_EndOfAWaitFollowsItsBeginning(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		c, key, r := relock.LocksOn(t, b.Client(t)), redistest.Key(t), &chronicle{}
		locktest.RequireLocked(t, c.Mutex(key))
		ctx, cancel := context.WithCancel(t.Context())
		m := c.Mutex(key, relock.WithOwner("job"), relock.WithHooks(relock.JoinHooks(relock.Hooks{Contended: func(relock.Event) {
			cancel()
			time.Sleep(locktest.AWhile) // it is what is tested
		}}, r.Hooks())))
		require.ErrorIs(t, locktest.OutcomeOf(t, locktest.NewActor(t).Lock(ctx, m)), context.Canceled)
		require.Equal(t, []string{"contended", "failed"}, r.Names())
		locktest.RequireUnlocked(t, c.Mutex(key))
	})
}

func TestHooks_LossHasItsCause(t *testing.T) {
	for cause, lose := range map[relock.LossCause]func(t *testing.T, m *relock.Mutex, rdb *redis.Client, clocks *locktest.TwoClocks){
		relock.LossExpired: func(_ *testing.T, m *relock.Mutex, _ *redis.Client, clocks *locktest.TwoClocks) {
			clocks.Set(jumpBeyondLease)
			m.HoldCount()
		},
		relock.LossGone: func(t *testing.T, m *relock.Mutex, rdb *redis.Client, _ *locktest.TwoClocks) {
			require.NoError(t, rdb.Del(t.Context(), m.Name()).Err())
			require.ErrorIs(t, m.Lock(t.Context()), relock.ErrLost)
		},
		relock.LossForced: func(t *testing.T, m *relock.Mutex, _ *redis.Client, _ *locktest.TwoClocks) {
			_, err := m.ForceUnlock(t.Context())
			require.NoError(t, err)
		},
	} {
		t.Run(string(cause), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				var r chronicle
				rdb := b.Client(t)
				c, clocks := relock.LocksWithClock(t, rdb, relock.WithHooks(r.Hooks()))
				m := c.Mutex(redistest.Key(t))
				locktest.RequireLocked(t, m)
				lose(t, m, rdb, clocks)
				require.Len(t, r.Of("lost"), 1)
				require.Equal(t, cause, r.Of("lost")[0].Cause)
				require.ErrorIs(t, m.Lock(t.Context()), relock.ErrLost)
				failed := r.Of("failed")
				require.Equal(t, cause, failed[len(failed)-1].Cause, "of a Lock inside the lost hold")
				require.ErrorIs(t, m.Unlock(), relock.ErrLost)
			})
		})
	}
}

func TestHooks_ReleaseThatFindsALossHasItsCause(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		var r chronicle
		rdb := b.Client(t)
		m := relock.LocksOn(t, rdb, relock.WithHooks(r.Hooks())).Mutex(redistest.Key(t))
		locktest.RequireLocked(t, m)
		require.NoError(t, rdb.Del(t.Context(), m.Name()).Err())
		require.ErrorIs(t, m.Unlock(), relock.ErrLost)
		require.Equal(t, relock.LossGone, r.Of("released")[0].Cause)
	})
}

// eachHook calls f with every field of h.
func eachHook(h *relock.Hooks, f func(name string, hook *func(relock.Event))) {
	fields := reflect.ValueOf(h).Elem()
	for i := range fields.NumField() {
		f(fields.Type().Field(i).Name, fields.Field(i).Addr().Interface().(*func(relock.Event)))
	}
}

func TestHooks_JoinedAreCalledInOrder(t *testing.T) {
	records := logged(t)
	var called []string
	counting := func(who string, end func()) (h relock.Hooks) {
		eachHook(&h, func(name string, hook *func(relock.Event)) {
			*hook = func(e relock.Event) {
				called = append(called, who+" "+name+" "+e.Name)
				end()
			}
		})
		return h
	}
	joined := relock.JoinHooks(counting("first", func() { panic("in a hook") }), relock.Hooks{}, counting("second", func() {}))
	eachHook(&joined, func(name string, hook *func(relock.Event)) {
		called = nil
		(*hook)(relock.Event{Name: name})
		require.Equal(t, []string{"first " + name + " " + name, "second " + name + " " + name}, called)
		require.Len(t, records.of(name), 1)
		require.Equal(t, name, records.of(name)[0]["hook"])
	})
	none := relock.JoinHooks(relock.Hooks{}, relock.Hooks{})
	eachHook(&none, func(name string, hook *func(relock.Event)) { require.Nil(t, *hook, name) })
}

func TestLogHooks_LogALossAsAnErrorAndMostForDebugging(t *testing.T) {
	var text bytes.Buffer
	handler := slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})
	logged := relock.LogHooks(slog.New(handler))
	eachHook(&logged, func(name string, hook *func(relock.Event)) {
		text.Reset()
		(*hook)(relock.Event{
			Name: "orders", Kind: relock.KindRW, Side: relock.SideRead, OwnerID: "job", Token: 7, Elapsed: time.Second,
			Outcome: relock.OutcomeBusy, Cause: relock.LossGone, Err: errors.New("so it is"), Context: t.Context(),
		})
		level, special := map[string]string{"Lost": "ERROR", "Deadlock": "ERROR", "RenewFailed": "WARN"}[name]
		if !special {
			level = "DEBUG"
		}
		require.Contains(t, text.String(), "level="+level, name)
		require.Contains(t, text.String(), `name=orders kind=rw owner=job elapsed=1s side=read token=7 outcome=busy cause=gone error="so it is"`, name)
	})
	text.Reset()
	logged.Acquired(relock.Event{Name: "llm", Kind: relock.KindSemaphore, Weight: 3})
	require.Contains(t, text.String(), "weight=3")
	text.Reset()
	logged.Acquired(relock.Event{Name: "orders"})
	require.NotContains(t, text.String(), "side")
	require.NotContains(t, text.String(), "weight")
	require.NotContains(t, text.String(), "error")

	before := slog.Default()
	defer slog.SetDefault(before)
	hooks := relock.LogHooks(nil)
	slog.SetDefault(slog.New(handler)) // after a package variable was made, as main does it
	text.Reset()
	hooks.Lost(relock.Event{Name: "orders"})
	require.Contains(t, text.String(), "lock lost")
}
