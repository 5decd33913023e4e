package relock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/redistest"
)

// A MultiMutex in the lines of its keys, which others want one by one.

// twoKeys are names of a MultiMutex, in their order.
func twoKeys(t *testing.T) (a, b string) {
	t.Helper()
	key := redistest.Key(t)
	return key + "-a", key + "-b"
}

// requireNothingOf requires that nothing is left of locks and their lines, soon.
func requireNothingOf(t *testing.T, rdb redis.UniversalClient, names ...string) {
	t.Helper()
	for _, name := range names {
		eventually(t, "nothing left of "+name, func() bool {
			left, err := rdb.Keys(t.Context(), "*"+name+"*").Result()
			require.NoError(t, err)
			return len(left) == 0
		})
	}
}

// rush has three processes keep each of names busy, by one owner each, until stop is called.
func rush(t *testing.T, b *redistest.Backend, names ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	for range 3 {
		c := locksOn(t, b.Client(t))
		t.Cleanup(stop)
		for _, name := range names {
			holds := keepBusy(ctx, t, &all, c.Mutex(name))[0]
			eventually(t, "busy", func() bool { return holds.Load() > 3 })
		}
	}
	return stop
}

func TestAMultiMutexIsServedThoughEachOfItsNamesIsAlwaysWanted(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		one, other := twoKeys(t)
		m, owner := locksOn(t, b.Client(t)).MultiMutex([]string{one, other}), newActor(t)
		stop := rush(t, b, one, other)
		for range 3 {
			owner.locks(t, m) // soon enough
			owner.unlocks(t, m)
		}
		stop()
		requireNothingOf(t, b.Client(t), one, other)
	})
}

func TestMultiMutexesOfTheSameNamesDoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		one, other := twoKeys(t)
		stop := rush(t, b, one, other)
		var all []<-chan error
		for range 2 {
			m := locksOn(t, b.Client(t)).MultiMutex([]string{one, other})
			all = append(all, newActor(t).begin(func() error {
				for range 3 {
					if err := m.Do(t.Context(), func(context.Context) error { return nil }); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		for _, done := range all {
			require.NoError(t, outcomeOf(t, done))
		}
		stop()
		requireNothingOf(t, b.Client(t), one, other)
	})
}

// multiWait is a MultiMutex that waits for the first of its names, which another process holds; the
// second is a stranger's for the whole test.
type multiWait struct {
	t          *testing.T
	b          *redistest.Backend
	rdb        *redis.Client
	one, other string
	holding    *Mutex // of the first
	holder     *actor
	c          *Client
	m          *Mutex
	owner      *actor
	waiting    <-chan error
	giveUp     context.CancelFunc
}

func eachMultiWait(t *testing.T, test func(w *multiWait)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		w := &multiWait{t: t, b: b, rdb: b.Client(t), holder: newActor(t), c: locksOn(t, b.Client(t)), owner: newActor(t)}
		w.one, w.other = twoKeys(t)
		w.holding = locksOn(t, w.rdb).Mutex(w.one)
		w.holder.locks(t, w.holding)
		heldByStranger(t, w.rdb, w.other, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		w.giveUp = cancel
		w.m = w.c.MultiMutex([]string{w.one, w.other})
		w.waiting = w.owner.lock(ctx, w.m)
		awaitFairQueue(t, w.rdb, w.one, 1)
		test(w)
	})
}

func TestAMultiMutexKeepsANameForABoundedTimeWhileItWaitsForAnother(t *testing.T) {
	eachMultiWait(t, func(w *multiWait) {
		m, owner := locksOn(w.t, w.b.Client(w.t)).Mutex(w.one), newActor(w.t)
		next := owner.lock(w.t.Context(), m)
		awaitFairQueue(w.t, w.rdb, w.one, 2)
		w.holder.unlocks(w.t, w.holding)
		began := time.Now()
		require.NoError(w.t, outcomeOf(w.t, next))
		require.Less(w.t, time.Since(began), acquire.GatheringMax, "the first time it keeps it for less")
		awaitFairQueue(w.t, w.rdb, w.other, 1)
		owner.unlocks(w.t, m)
		goesOn(w.t, w.waiting)
		require.NoError(w.t, w.rdb.Del(w.t.Context(), w.other).Err())
		publishes(w.t, w.rdb, w.other)
		require.NoError(w.t, outcomeOf(w.t, w.waiting))
		w.owner.unlocks(w.t, w.m)
		requireNothingOf(w.t, w.rdb, w.one, w.other)
	})
}

// What it has when it gives up: a place in one line, in another one, or a name and a place.
func TestAMultiMutexThatGivesUpLeavesNothingBehind(t *testing.T) {
	for name, until := range map[string]func(w *multiWait){
		"in the line of the first": func(w *multiWait) {},
		"it keeps the first, in the line of the second": func(w *multiWait) {
			w.holder.unlocks(w.t, w.holding)
			eventually(w.t, "it keeps one", func() bool {
				return w.rdb.Exists(w.t.Context(), w.one).Val() == 1 && len(fairQueueOf(w.t, w.rdb, w.other)) == 1
			})
		},
		"in the line of the second": func(w *multiWait) {
			w.holder.unlocks(w.t, w.holding)
			eventually(w.t, "it keeps none", func() bool {
				return w.rdb.Exists(w.t.Context(), w.one).Val() == 0 && len(fairQueueOf(w.t, w.rdb, w.other)) == 1
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachMultiWait(t, func(w *multiWait) {
				until(w)
				w.giveUp()
				require.ErrorIs(w.t, outcomeOf(w.t, w.waiting), context.Canceled)
				if name == "in the line of the first" {
					awaitFairQueue(w.t, w.rdb, w.one, 0)
					w.holder.unlocks(w.t, w.holding)
				}
				began := time.Now()
				requireNothingOf(w.t, w.rdb, w.one)
				require.NoError(w.t, w.rdb.Del(w.t.Context(), w.other).Err())
				requireNothingOf(w.t, w.rdb, w.other)
				require.Less(w.t, time.Since(began), time.Second, "it is left to expire")
				eventually(w.t, "nothing kept", func() bool { return gatesOf(w.c) == 0 })
			})
		})
	}
}
