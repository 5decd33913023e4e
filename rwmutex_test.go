package relock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// rwBench is a read-write lock on a fresh name, and two owners of one client.
type rwBench struct {
	t   *testing.T
	rdb *redis.Client
	key string
	c   *relock.Client
	me  *locktest.Actor
	you *locktest.Actor
}

func newRWBench(t *testing.T, rdb *redis.Client) *rwBench {
	t.Helper()
	return &rwBench{t: t, rdb: rdb, key: redistest.Key(t), c: relock.LocksOn(t, rdb), me: locktest.NewActor(t), you: locktest.NewActor(t)}
}

// eachRW runs fn on each backend, and requires that nothing is left after it.
func eachRW(t *testing.T, fn func(b *rwBench)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newRWBench(t, backend.Client(t))
		fn(b)
		b.free()
	})
}

func (b *rwBench) mutex(opts ...relock.MutexOption) *relock.RWMutex {
	return b.c.RWMutex(b.key, opts...)
}

// another returns a handle in another client, as in another process.
func (b *rwBench) another(opts ...relock.ClientOption) *relock.RWMutex {
	return relock.LocksOn(b.t, b.rdb, opts...).RWMutex(b.key)
}

// free requires that nothing is left, on Redis or here.
func (b *rwBench) free() {
	b.t.Helper()
	redistest.Eventually(b.t, "nothing left on Redis", func() bool { return len(keysAbout(b.t, b.rdb, b.key)) == 0 })
	redistest.Eventually(b.t, "nothing left here", func() bool { return relock.NamesOf(b.c) == 0 })
}

// keysAbout returns the keys with name in them.
func keysAbout(t *testing.T, rdb *redis.Client, name string) []string {
	t.Helper()
	var keys []string
	all := rdb.Scan(t.Context(), 0, "*"+name+"*", 1000).Iterator()
	for all.Next(t.Context()) {
		keys = append(keys, all.Val())
	}
	require.NoError(t, all.Err())
	return keys
}

// stateOf is what Redis says about m.
func stateOf(t *testing.T, m *relock.RWMutex) relock.RWState {
	t.Helper()
	s, err := m.State(t.Context())
	require.NoError(t, err)
	return s
}

func TestRWMutex_ReadersShareItAndKeepWritersOut(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another()
		b.me.Locks(b.t, m.Read())
		b.you.Locks(b.t, theirs.Read())
		require.Len(b.t, stateOf(b.t, m).Readers, 2)
		third := locktest.NewActor(b.t)
		require.False(b.t, third.Tries(b.t, m.Write()))
		b.me.Unlocks(b.t, m.Read())
		require.False(b.t, third.Tries(b.t, m.Write()))
		b.you.Unlocks(b.t, theirs.Read())
		require.True(b.t, third.Tries(b.t, m.Write()))
		third.Unlocks(b.t, m.Write())
	})
}

func TestRWMutex_WriterKeepsEverybodyOut(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another()
		b.me.Locks(b.t, m.Write())
		for _, other := range []*relock.Mutex{m.Read(), theirs.Read(), m.Write(), theirs.Write()} {
			require.False(b.t, b.you.Tries(b.t, other))
		}
		b.me.Unlocks(b.t, m.Write())
	})
}

func TestRWMutex_SidesAreReentrantAndCountedSeparately(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex()
		counts := func() string {
			s, text := stateOf(b.t, m), ""
			_ = b.me.Call(func() error {
				text = fmt.Sprint(m.HoldCount(), m.RHoldCount())
				return nil
			})
			for _, n := range s.Readers {
				return fmt.Sprint(text, " ", s.Count, n)
			}
			return fmt.Sprint(text, " ", s.Count)
		}
		b.me.Locks(b.t, m.Write())
		b.me.Locks(b.t, m.Write())
		b.me.Locks(b.t, m.Read())
		b.me.Locks(b.t, m.Read())
		b.me.Locks(b.t, m.Read())
		require.Equal(b.t, "2 3 2 3", counts())
		require.Len(b.t, keysAbout(b.t, b.rdb, b.key), 4, "the lock, and a timeout key for each level of reading")
		b.me.Unlocks(b.t, m.Write())
		b.me.Unlocks(b.t, m.Read())
		require.Equal(b.t, "1 2 1 2", counts())
		b.me.Unlocks(b.t, m.Read())
		b.me.Unlocks(b.t, m.Read())
		require.Equal(b.t, "1 0 1", counts())
		require.ErrorIs(b.t, b.me.Call(m.RUnlock), relock.ErrNotHeld)
		b.me.Unlocks(b.t, m.Write())
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrNotHeld)
	})
}

func TestRWMutex_WriterMayReadOnAndLetOthersRead(t *testing.T) {
	redistest.InTime(t)
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another(relock.WithSafetyPoll(time.Minute))
		b.me.Locks(b.t, m.Write())
		here, there := locktest.NewActor(b.t), locktest.NewActor(b.t)
		waiting := []<-chan error{b.you.Lock(b.t.Context(), m.Read()), there.Lock(b.t.Context(), theirs.Read())}
		relock.AwaitWaiters(b.t, b.c, b.key, 1)
		relock.AwaitListening(b.t, theirs.Write(), b.key)
		b.me.Locks(b.t, m.Read()) // past those who wait
		b.me.Unlocks(b.t, m.Write())
		began := time.Now()
		for _, w := range waiting {
			require.NoError(b.t, locktest.OutcomeOf(b.t, w))
		}
		require.Less(b.t, time.Since(began), 2*time.Second, "no message has woken them")
		require.False(b.t, here.Tries(b.t, m.Write()))
		require.Len(b.t, stateOf(b.t, m).Readers, 3)
		b.me.Unlocks(b.t, m.Read())
		b.you.Unlocks(b.t, m.Read())
		there.Unlocks(b.t, theirs.Read())
	})
}

func TestRWMutex_ReaderThatWantsToWriteFailsAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c, key := relock.LocksOn(t, rdb), redistest.Key(t)
		for _, m := range []*relock.RWMutex{c.RWMutex(key), c.RWMutex(key, relock.WithOwner("job-17"))} {
			require.NoError(t, m.RLock(t.Context()))
			before := relay.Count(redistest.Scripts)
			require.ErrorIs(t, m.Lock(t.Context()), relock.ErrUpgrade)
			_, err := m.TryLock(t.Context())
			require.ErrorIs(t, err, relock.ErrUpgrade)
			require.ErrorIs(t, m.Do(t.Context(), func(context.Context) error { panic("not held") }), relock.ErrUpgrade)
			require.Equal(t, before, relay.Count(redistest.Scripts), "Redis was asked")
			require.Equal(t, 1, m.RHoldCount())
			require.NoError(t, m.RUnlock())
			require.NoError(t, m.Lock(t.Context()))
			require.NoError(t, m.Unlock())
		}
	})
}

func TestRWMutex_ReadersThatWaitedTogetherReadTogether(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex(relock.WithSafetyPoll(time.Minute))
		b.me.Locks(b.t, m.Write())
		const n = 8
		var within sync.WaitGroup
		within.Add(n)
		done := make([]<-chan error, n)
		for i := range done {
			done[i] = locktest.NewActor(b.t).Begin(func() error {
				return m.RDo(b.t.Context(), func(context.Context) error {
					within.Done()
					within.Wait() // for all the others
					return nil
				})
			})
		}
		relock.AwaitWaiters(b.t, b.c, b.key, n)
		b.me.Unlocks(b.t, m.Write())
		for _, d := range done {
			require.NoError(b.t, locktest.OutcomeOf(b.t, d))
		}
	})
}

func TestRWMutex_WaitingWriterKeepsNewReadersOut(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another()
		reader, late := locktest.NewActor(b.t), locktest.NewActor(b.t)
		reader.Locks(b.t, m.Read())
		waiting := b.me.Lock(b.t.Context(), m.Write())
		redistest.Eventually(b.t, "no new reader", func() bool {
			held := late.Tries(b.t, theirs.Read())
			if held {
				late.Unlocks(b.t, theirs.Read())
			}
			return !held
		})
		reader.Locks(b.t, m.Read()) // who reads already may
		reader.Unlocks(b.t, m.Read())
		lateWaits := late.Lock(b.t.Context(), theirs.Read())
		locktest.GoesOn(b.t, lateWaits)
		reader.Unlocks(b.t, m.Read())
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		locktest.GoesOn(b.t, lateWaits)
		b.me.Unlocks(b.t, m.Write())
		require.NoError(b.t, locktest.OutcomeOf(b.t, lateWaits))
		late.Unlocks(b.t, theirs.Read())
	})
}

func TestRWMutex_WriterThatGivesUpLetsReadersInAtOnce(t *testing.T) {
	redistest.InTime(t)
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another(relock.WithSafetyPoll(time.Minute))
		reader, late := locktest.NewActor(b.t), locktest.NewActor(b.t)
		reader.Locks(b.t, m.Read())
		ctx, cancel := context.WithCancel(b.t.Context())
		waiting := b.me.Lock(ctx, m.Write())
		redistest.Eventually(b.t, "a claim", func() bool { return b.rdb.Exists(b.t.Context(), m.Write().Keys().RW.Claim).Val() == 1 })
		redistest.Eventually(b.t, "no new reader", func() bool {
			held := late.Tries(b.t, theirs.Read())
			if held {
				late.Unlocks(b.t, theirs.Read())
			}
			return !held
		})
		lateWaits := late.Lock(b.t.Context(), theirs.Read())
		relock.AwaitListening(b.t, theirs.Read(), b.key)
		cancel()
		began := time.Now()
		require.ErrorIs(b.t, locktest.OutcomeOf(b.t, waiting), context.Canceled)
		require.NoError(b.t, locktest.OutcomeOf(b.t, lateWaits))
		require.Less(b.t, time.Since(began), 2*time.Second)
		late.Unlocks(b.t, theirs.Read())
		reader.Unlocks(b.t, m.Read())
	})
}

func TestRWMutex_StreamOfOneSideDoesNotStarveTheOther(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		handles := []*relock.RWMutex{b.mutex(), b.another()}
		ctx, stop := context.WithCancel(b.t.Context())
		var streams sync.WaitGroup
		var readers, writers atomic.Int32
		stream := func(m *relock.RWMutex, turns *atomic.Int32, do func(context.Context, func(context.Context) error) error) {
			streams.Go(func() {
				for ctx.Err() == nil {
					err := do(context.WithoutCancel(ctx), func(context.Context) error {
						turns.Add(1)
						clock.Pause(ctx, 2*time.Millisecond)
						return nil
					})
					if err != nil {
						b.t.Error(err)
					}
				}
			})
		}
		for i := range 4 {
			stream(handles[i%2], &readers, handles[i%2].RDo)
		}
		for range 5 {
			require.NoError(b.t, locktest.OutcomeOf(b.t, b.me.Begin(func() error {
				return handles[0].Do(b.t.Context(), func(context.Context) error { return nil })
			})))
		}
		for i := range 4 {
			stream(handles[i%2], &writers, handles[i%2].Do)
		}
		for range 3 {
			seen := readers.Load()
			redistest.Eventually(b.t, "readers among writers", func() bool { return readers.Load() >= seen+8 })
			seen = writers.Load()
			redistest.Eventually(b.t, "writers among readers", func() bool { return writers.Load() >= seen+8 })
		}
		stop()
		streams.Wait()
	})
}

func TestRWMutex_ReadersAndWritersNeverMeet(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		handles := []*relock.RWMutex{b.mutex(relock.WithFencing()), b.another(relock.WithFencing()), b.another(relock.WithFencing())}
		var within, token atomic.Int64 // readers count 1, a writer 1000
		var all sync.WaitGroup
		enter := func(n, most int64) func(context.Context) error {
			return func(context.Context) error {
				if now := within.Add(n); now > most {
					b.t.Errorf("together: %d", now)
				}
				within.Add(-n)
				return nil
			}
		}
		for i := range 12 {
			m := handles[i%3]
			all.Go(func() {
				for n := range 8 {
					var err error
					if (n+i)%3 == 0 {
						err = m.Do(context.Background(), func(ctx context.Context) error {
							if last, mine := token.Load(), m.FencingToken(); mine <= last {
								b.t.Errorf("token %d after %d", mine, last)
							}
							token.Store(m.FencingToken())
							return enter(1000, 1000)(ctx)
						})
					} else {
						err = m.RDo(context.Background(), enter(1, 999))
					}
					if err != nil {
						b.t.Error(err)
					}
				}
			})
		}
		all.Wait()
		require.NoError(b.t, b.rdb.Del(b.t.Context(), handles[0].Write().Keys().Counters[0]).Err())
	})
}

func TestRWMutex_AndPlainLockRefuseEachOther(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, plain := b.mutex(), b.c.Mutex(b.key)
		for _, side := range []*relock.Mutex{m.Read(), m.Write()} {
			b.me.Locks(b.t, side)
			for _, other := range []*relock.Mutex{plain, b.c.FairMutex(b.key)} {
				require.ErrorIs(b.t, b.you.Call(func() error { return other.Lock(b.t.Context()) }), relock.ErrInvalidName)
				require.ErrorIs(b.t, b.me.Call(func() error { return other.Lock(b.t.Context()) }), relock.ErrInvalidName)
			}
			b.me.Unlocks(b.t, side)

			b.me.Locks(b.t, plain)
			require.ErrorIs(b.t, b.you.Call(func() error { return side.Lock(b.t.Context()) }), relock.ErrInvalidName)
			require.ErrorIs(b.t, b.me.Call(func() error { return side.Lock(b.t.Context()) }), relock.ErrInvalidName)
			_, err := m.State(b.t.Context())
			require.ErrorIs(b.t, err, relock.ErrInvalidName)
			b.me.Unlocks(b.t, plain)
		}
	})
}

func TestRWMutex_ForceUnlockEndsReadersAndWriters(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another()
		forced, err := m.ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.False(b.t, forced)

		b.me.Locks(b.t, m.Write())
		b.me.Locks(b.t, m.Read())
		forced, err = theirs.ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrLost)
		require.ErrorIs(b.t, b.me.Call(m.RUnlock), relock.ErrLost)

		b.me.Locks(b.t, m.Read())
		b.you.Locks(b.t, m.Read())
		ctx := b.me.ContextOf(m.Read())
		forced, err = m.ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		require.ErrorIs(b.t, context.Cause(ctx), relock.ErrLost, "reported first")
		require.ErrorIs(b.t, b.me.Call(m.RUnlock), relock.ErrLost)
		require.ErrorIs(b.t, b.you.Call(m.RUnlock), relock.ErrLost)
	})
}

func TestRWMutex_UnlockOfTheWrongSideReportsTheHeldOne(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.c.RWMutex(b.key)
		require.NoError(b.t, m.RLock(b.t.Context()))
		err := m.Unlock()
		require.ErrorIs(b.t, err, relock.ErrNotHeld)
		require.ErrorContains(b.t, err, "call RUnlock")
		require.NoError(b.t, m.RUnlock())
		require.NoError(b.t, m.Lock(b.t.Context()))
		err = m.RUnlock()
		require.ErrorIs(b.t, err, relock.ErrNotHeld)
		require.ErrorContains(b.t, err, "call Unlock")
		require.NoError(b.t, m.Unlock())
		require.ErrorContains(b.t, m.Unlock(), "use WithOwner")
	})
}

func TestRWMutex_EachSideHasItsDeadline(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, long := b.mutex(relock.WithOwner("job")), b.mutex(relock.WithOwner("job"), relock.WithTTL(time.Hour))
		require.NoError(b.t, m.Lock(b.t.Context()))
		_, reads := m.RDeadline()
		require.False(b.t, reads)
		require.NoError(b.t, long.RLock(b.t.Context()))
		written, writes := m.Deadline()
		require.True(b.t, writes)
		read, reads := m.RDeadline()
		require.True(b.t, reads)
		require.Greater(b.t, read.Sub(written), 50*time.Minute)
		require.NoError(b.t, m.Unlock())
		_, writes = m.Deadline()
		require.False(b.t, writes)
		_, reads = m.RDeadline()
		require.True(b.t, reads)
		require.NoError(b.t, m.RUnlock())
	})
}
