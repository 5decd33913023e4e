package relock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redistest"
)

// rwBench is a read-write lock on a fresh name, and two owners of one client.
type rwBench struct {
	t   *testing.T
	rdb *redis.Client
	key string
	c   *Client
	me  *actor
	you *actor
}

func newRWBench(t *testing.T, rdb *redis.Client) *rwBench {
	t.Helper()
	return &rwBench{t: t, rdb: rdb, key: redistest.Key(t), c: locksOn(t, rdb), me: newActor(t), you: newActor(t)}
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

func (b *rwBench) mutex(opts ...MutexOption) *RWMutex { return b.c.RWMutex(b.key, opts...) }

// another returns a handle in another client, as in another process.
func (b *rwBench) another(opts ...ClientOption) *RWMutex {
	return locksOn(b.t, b.rdb, opts...).RWMutex(b.key)
}

// free requires that nothing is left, on Redis or here.
func (b *rwBench) free() {
	b.t.Helper()
	eventually(b.t, "nothing left on Redis", func() bool { return len(keysAbout(b.t, b.rdb, b.key)) == 0 })
	eventually(b.t, "nothing left here", func() bool { return gatesOf(b.c) == 0 })
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
func stateOf(t *testing.T, m *RWMutex) RWState {
	t.Helper()
	s, err := m.State(t.Context())
	require.NoError(t, err)
	return s
}

// toRead and toWrite are the sides of m, as actors lock them.
func toRead(m *RWMutex) *Mutex  { return &m.read }
func toWrite(m *RWMutex) *Mutex { return &m.write }

func TestReadersShareTheLockAndKeepWritersOut(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another()
		b.me.locks(b.t, toRead(m))
		b.you.locks(b.t, toRead(theirs))
		require.Len(b.t, stateOf(b.t, m).Readers, 2)
		third := newActor(b.t)
		require.False(b.t, third.tries(b.t, toWrite(m)))
		b.me.unlocks(b.t, toRead(m))
		require.False(b.t, third.tries(b.t, toWrite(m)))
		b.you.unlocks(b.t, toRead(theirs))
		require.True(b.t, third.tries(b.t, toWrite(m)))
		third.unlocks(b.t, toWrite(m))
	})
}

func TestAWriterKeepsEverybodyOut(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another()
		b.me.locks(b.t, toWrite(m))
		for _, other := range []*Mutex{toRead(m), toRead(theirs), toWrite(m), toWrite(theirs)} {
			require.False(b.t, b.you.tries(b.t, other))
		}
		b.me.unlocks(b.t, toWrite(m))
	})
}

func TestBothSidesAreReentrantAndCountedApart(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex()
		counts := func() string {
			s, text := stateOf(b.t, m), ""
			_ = b.me.call(func() error {
				text = fmt.Sprint(m.HoldCount(), m.RHoldCount())
				return nil
			})
			for _, n := range s.Readers {
				return fmt.Sprint(text, " ", s.Count, n)
			}
			return fmt.Sprint(text, " ", s.Count)
		}
		b.me.locks(b.t, toWrite(m))
		b.me.locks(b.t, toWrite(m))
		b.me.locks(b.t, toRead(m))
		b.me.locks(b.t, toRead(m))
		b.me.locks(b.t, toRead(m))
		require.Equal(b.t, "2 3 2 3", counts())
		require.Len(b.t, keysAbout(b.t, b.rdb, b.key), 4, "the lock, and a timeout key for each level of reading")
		b.me.unlocks(b.t, toWrite(m))
		b.me.unlocks(b.t, toRead(m))
		require.Equal(b.t, "1 2 1 2", counts())
		b.me.unlocks(b.t, toRead(m))
		b.me.unlocks(b.t, toRead(m))
		require.Equal(b.t, "1 0 1", counts())
		require.ErrorIs(b.t, b.me.call(m.RUnlock), ErrNotHeld)
		b.me.unlocks(b.t, toWrite(m))
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrNotHeld)
	})
}

func TestAWriterMayGoOnReadingAndLetsOthersRead(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another(WithSafetyPoll(time.Minute))
		b.me.locks(b.t, toWrite(m))
		here, there := newActor(b.t), newActor(b.t)
		waiting := []<-chan error{b.you.lock(b.t.Context(), toRead(m)), there.lock(b.t.Context(), toRead(theirs))}
		awaitWaiters(b.t, b.c.session, b.key, 1)
		awaitListening(b.t, theirs.write.session, b.key)
		b.me.locks(b.t, toRead(m)) // past those who wait
		b.me.unlocks(b.t, toWrite(m))
		began := time.Now()
		for _, w := range waiting {
			require.NoError(b.t, outcomeOf(b.t, w))
		}
		require.Less(b.t, time.Since(began), 2*time.Second, "no message has woken them")
		require.False(b.t, here.tries(b.t, toWrite(m)))
		require.Len(b.t, stateOf(b.t, m).Readers, 3)
		b.me.unlocks(b.t, toRead(m))
		b.you.unlocks(b.t, toRead(m))
		there.unlocks(b.t, toRead(theirs))
	})
}

func TestAReaderThatWantsToWriteIsToldAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := relayedTo(t, b)
		c, key := locksOn(t, rdb), redistest.Key(t)
		for _, m := range []*RWMutex{c.RWMutex(key), c.RWMutex(key, WithOwner("job-17"))} {
			require.NoError(t, m.RLock(t.Context()))
			before := relay.Count(redistest.Scripts)
			require.ErrorIs(t, m.Lock(t.Context()), ErrUpgrade)
			_, err := m.TryLock(t.Context())
			require.ErrorIs(t, err, ErrUpgrade)
			require.ErrorIs(t, m.Do(t.Context(), func(context.Context) error { panic("not held") }), ErrUpgrade)
			require.Equal(t, before, relay.Count(redistest.Scripts), "Redis was asked")
			require.Equal(t, 1, m.RHoldCount())
			require.NoError(t, m.RUnlock())
			require.NoError(t, m.Lock(t.Context()))
			require.NoError(t, m.Unlock())
		}
	})
}

func TestReadersWhoWaitedTogetherReadTogether(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex(WithSafetyPoll(time.Minute))
		b.me.locks(b.t, toWrite(m))
		const n = 8
		var inside sync.WaitGroup
		inside.Add(n)
		done := make([]<-chan error, n)
		for i := range done {
			done[i] = newActor(b.t).begin(func() error {
				return m.RDo(b.t.Context(), func(context.Context) error {
					inside.Done()
					inside.Wait() // for all the others
					return nil
				})
			})
		}
		awaitWaiters(b.t, b.c.session, b.key, n)
		b.me.unlocks(b.t, toWrite(m))
		for _, d := range done {
			require.NoError(b.t, outcomeOf(b.t, d))
		}
	})
}

func TestAWriterThatWaitsKeepsNewReadersOut(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another()
		reader, late := newActor(b.t), newActor(b.t)
		reader.locks(b.t, toRead(m))
		waiting := b.me.lock(b.t.Context(), toWrite(m))
		eventually(b.t, "no new reader", func() bool {
			held := late.tries(b.t, toRead(theirs))
			if held {
				late.unlocks(b.t, toRead(theirs))
			}
			return !held
		})
		reader.locks(b.t, toRead(m)) // who reads already may
		reader.unlocks(b.t, toRead(m))
		lateWaits := late.lock(b.t.Context(), toRead(theirs))
		goesOn(b.t, lateWaits)
		reader.unlocks(b.t, toRead(m))
		require.NoError(b.t, outcomeOf(b.t, waiting))
		goesOn(b.t, lateWaits)
		b.me.unlocks(b.t, toWrite(m))
		require.NoError(b.t, outcomeOf(b.t, lateWaits))
		late.unlocks(b.t, toRead(theirs))
	})
}

func TestAWriterThatGivesUpLetsReadersInAtOnce(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another(WithSafetyPoll(time.Minute))
		reader, late := newActor(b.t), newActor(b.t)
		reader.locks(b.t, toRead(m))
		ctx, cancel := context.WithCancel(b.t.Context())
		waiting := b.me.lock(ctx, toWrite(m))
		eventually(b.t, "a claim", func() bool { return b.rdb.Exists(b.t.Context(), m.write.target.RW.Claim).Val() == 1 })
		eventually(b.t, "no new reader", func() bool {
			held := late.tries(b.t, toRead(theirs))
			if held {
				late.unlocks(b.t, toRead(theirs))
			}
			return !held
		})
		lateWaits := late.lock(b.t.Context(), toRead(theirs))
		awaitListening(b.t, theirs.read.session, b.key)
		cancel()
		began := time.Now()
		require.ErrorIs(b.t, outcomeOf(b.t, waiting), context.Canceled)
		require.NoError(b.t, outcomeOf(b.t, lateWaits))
		require.Less(b.t, time.Since(began), 2*time.Second)
		late.unlocks(b.t, toRead(theirs))
		reader.unlocks(b.t, toRead(m))
	})
}

func TestAStreamOfReadersDoesNotStarveAWriterNorTheReverse(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		handles := []*RWMutex{b.mutex(), b.another()}
		ctx, stop := context.WithCancel(b.t.Context())
		var streams sync.WaitGroup
		var readers, writers atomic.Int32
		stream := func(m *RWMutex, turns *atomic.Int32, do func(context.Context, func(context.Context) error) error) {
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
		for i := range 8 {
			stream(handles[i%2], &readers, handles[i%2].RDo)
		}
		for range 10 {
			require.NoError(b.t, outcomeOf(b.t, b.me.begin(func() error {
				return handles[0].Do(b.t.Context(), func(context.Context) error { return nil })
			})))
		}
		for i := range 8 {
			stream(handles[i%2], &writers, handles[i%2].Do)
		}
		for range 3 {
			seen := readers.Load()
			eventually(b.t, "readers among writers", func() bool { return readers.Load() >= seen+8 })
			seen = writers.Load()
			eventually(b.t, "writers among readers", func() bool { return writers.Load() >= seen+8 })
		}
		stop()
		streams.Wait()
	})
}

func TestReadersAndWritersNeverMeet(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		handles := []*RWMutex{b.mutex(WithFencing()), b.another(WithFencing()), b.another(WithFencing())}
		var inside, token atomic.Int64 // readers count 1, a writer 1000
		var all sync.WaitGroup
		enter := func(n, most int64) func(context.Context) error {
			return func(context.Context) error {
				if now := inside.Add(n); now > most {
					b.t.Errorf("together: %d", now)
				}
				inside.Add(-n)
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
		require.NoError(b.t, b.rdb.Del(b.t.Context(), handles[0].write.target.Counters[0]).Err())
	})
}

func TestPlainAndReadWriteLocksRefuseEachOther(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, plain := b.mutex(), b.c.Mutex(b.key)
		for _, side := range []*Mutex{toRead(m), toWrite(m)} {
			b.me.locks(b.t, side)
			for _, other := range []*Mutex{plain, b.c.FairMutex(b.key)} {
				require.ErrorIs(b.t, b.you.call(func() error { return other.Lock(b.t.Context()) }), ErrInvalidName)
				require.ErrorIs(b.t, b.me.call(func() error { return other.Lock(b.t.Context()) }), ErrInvalidName)
			}
			b.me.unlocks(b.t, side)

			b.me.locks(b.t, plain)
			require.ErrorIs(b.t, b.you.call(func() error { return side.Lock(b.t.Context()) }), ErrInvalidName)
			require.ErrorIs(b.t, b.me.call(func() error { return side.Lock(b.t.Context()) }), ErrInvalidName)
			_, err := m.State(b.t.Context())
			require.ErrorIs(b.t, err, ErrInvalidName)
			b.me.unlocks(b.t, plain)
		}
	})
}

func TestForceUnlockEndsReadersAndWriters(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, theirs := b.mutex(), b.another()
		forced, err := m.ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.False(b.t, forced)

		b.me.locks(b.t, toWrite(m))
		b.me.locks(b.t, toRead(m))
		forced, err = theirs.ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		require.ErrorIs(b.t, b.me.call(m.Unlock), ErrLost)
		require.ErrorIs(b.t, b.me.call(m.RUnlock), ErrLost)

		b.me.locks(b.t, toRead(m))
		b.you.locks(b.t, toRead(m))
		ctx := contextOf(b.me, toRead(m))
		forced, err = m.ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		require.ErrorIs(b.t, context.Cause(ctx), ErrLost, "told first")
		require.ErrorIs(b.t, b.me.call(m.RUnlock), ErrLost)
		require.ErrorIs(b.t, b.you.call(m.RUnlock), ErrLost)
	})
}

func TestAnUnlockOfTheWrongSideSaysWhichOneIsHeld(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.c.RWMutex(b.key)
		require.NoError(b.t, m.RLock(b.t.Context()))
		err := m.Unlock()
		require.ErrorIs(b.t, err, ErrNotHeld)
		require.ErrorContains(b.t, err, "which RUnlock gives back")
		require.NoError(b.t, m.RUnlock())
		require.NoError(b.t, m.Lock(b.t.Context()))
		err = m.RUnlock()
		require.ErrorIs(b.t, err, ErrNotHeld)
		require.ErrorContains(b.t, err, "which Unlock gives back")
		require.NoError(b.t, m.Unlock())
		require.ErrorContains(b.t, m.Unlock(), "use WithOwner")
	})
}

func TestEachSideHasADeadlineOfItsOwn(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m, long := b.mutex(WithOwner("job")), b.mutex(WithOwner("job"), WithTTL(time.Hour))
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
