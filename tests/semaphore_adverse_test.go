package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// At most so many begin in each min hold, whatever reply is lost.
func TestSemaphore_MinHoldLimitsTheRateUnderLostReplies(t *testing.T) {
	redistest.Slow(t)
	for name, script := range permitScripts {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // beside each other only: they keep the processors busy
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				const limit, period = 3, 20 * time.Second
				relay, rdb := locktest.RelayedTo(t, b)
				opts := []relock.MutexOption{relock.WithMinHold(period)}
				s := locksOn(t, rdb).Semaphore("s", limit, opts...)
				other := locksOn(t, b.Client(t)).Semaphore("s", limit, opts...)
				n := 0
				rule := func(c redistest.Command) bool {
					if !redistest.Script(script.Source())(c) {
						return false
					}
					n++
					return n%2 == 1
				}
				relay.LoseReply(rule).Always()
				var mu sync.Mutex
				var starts []time.Time
				var all sync.WaitGroup
				for i := range 8 {
					of := s
					if i%2 == 1 {
						of = other
					}
					all.Go(func() {
						for range 4 {
							p, err := of.Acquire(context.Background())
							if err != nil {
								continue
							}
							began := time.Now()
							time.Sleep(rand.N(8 * time.Second))
							if err := p.Release(); errors.Is(err, relock.ErrLost) {
								continue // a lost permit reserves nothing
							}
							mu.Lock()
							starts = append(starts, began)
							mu.Unlock()
						}
					})
				}
				all.Wait()
				require.Greater(t, len(starts), 2*limit)
				slices.SortFunc(starts, time.Time.Compare)
				for i := range len(starts) - limit {
					require.GreaterOrEqual(t, starts[i+limit].Sub(starts[i]), period-100*time.Millisecond)
				}
				time.Sleep(2 * time.Minute)
				requireNoKeys(t, b.Client(t), "s")
			})
		})
	}
}

// Copies of acquire, poll, renew and release that are executed much later.
func TestSemaphore_LateCopiesOverfillNothing(t *testing.T) {
	redistest.Slow(t)
	for name, script := range permitScripts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
				relay, rdb := locktest.RelayedTo(t, b)
				s := locksOn(t, rdb, relock.WithTTL(6*time.Second)).Semaphore("s", 3)
				other := locksOn(t, b.Client(t), relock.WithTTL(6*time.Second)).Semaphore("s", 3)
				n := 0
				held := relay.HoldBackSilently(func(c redistest.Command) bool {
					if !redistest.Script(script.Source())(c) {
						return false
					}
					n++
					return n%3 == 1
				}).Always()
				ctx, stop := context.WithCancel(t.Context())
				var late sync.WaitGroup
				var delivered atomic.Int64
				late.Go(func() {
					for ctx.Err() == nil {
						time.Sleep(rand.N(3 * time.Second))
						if _, err := held.Deliver(ctx); err == nil {
							delivered.Add(1)
						}
					}
				})
				var u usage
				var all sync.WaitGroup
				var served atomic.Int64
				for i := range 12 {
					of := s
					if i%2 == 1 {
						of = other
					}
					all.Go(func() {
						for range 6 {
							each, cancel := context.WithTimeout(context.Background(), rand.N(time.Minute))
							p, err := of.AcquireN(each, 1+i%3)
							cancel()
							if err != nil {
								continue
							}
							served.Add(1)
							ctx := p.Context(context.Background())
							u.begin(p.Weight())
							select {
							case <-time.After(rand.N(5 * time.Second)):
							case <-ctx.Done():
							}
							u.end(p.Weight())
							_ = p.Release()
						}
					})
				}
				all.Wait()
				stop()
				late.Wait()
				t.Log(name, "served", served.Load(), "late", delivered.Load())
				require.LessOrEqual(t, u.most.Load(), int64(3))
				time.Sleep(15 * time.Second)
				requireNoKeys(t, b.Client(t), "s")
			})
		})
	}
}

func TestSemaphore_NothingLeaks(t *testing.T) {
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := locksOn(t, rdb)
		s := c.Semaphore(key, 2)
		round := func(n int) {
			var all sync.WaitGroup
			for w := range 8 {
				all.Go(func() {
					for i := range n {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+(i+w)%7)*time.Millisecond)
						p, err := s.AcquireN(ctx, 1+i%2)
						cancel()
						if err == nil {
							_ = p.Context(context.Background())
							_ = p.Release()
						} else if !errors.Is(err, context.DeadlineExceeded) {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
		}
		round(50)
		awaitWaiting(t, s, 0)
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		g := runtime.NumGoroutine()
		round(40)
		redistest.Eventually(t, "released", func() bool {
			state, err := s.State(t.Context())
			return err == nil && state.InUse == 0 && state.Waiting == 0
		})
		runtime.GC()
		runtime.ReadMemStats(&after)
		require.LessOrEqual(t, runtime.NumGoroutine(), g+10)
		require.Less(t, after.HeapAlloc, before.HeapAlloc+1<<20)
		requireNoKeys(t, rdb, key)
	})
}

func TestSemaphore_RenewalThatFindsALossKeepsTheOthers(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		s := locksOn(t, b.Client(t), relock.WithTTL(3*time.Second)).Semaphore("s", 100)
		other := locksOn(t, b.Client(t)).Semaphore("s", 100)
		var all []*relock.Permit
		for i := range 30 {
			all = append(all, acquired(t, s, 1+i%4))
		}
		time.Sleep(5 * time.Second)
		for i := 0; i < 30; i += 7 {
			done, err := other.ForceRelease(t.Context(), all[i].ID())
			require.NoError(t, err)
			require.True(t, done)
		}
		time.Sleep(10 * time.Second)
		for i, p := range all {
			if i%7 == 0 {
				require.ErrorIs(t, p.Release(), relock.ErrLost)
			} else {
				require.NoError(t, p.Context(t.Context()).Err())
				require.NoError(t, p.Release())
			}
		}
		requireNoKeys(t, b.Client(t), "s")
	})
}

func TestSemaphore_UnconfirmedGrantGoesToTheNext(t *testing.T) {
	b := newReplicaBench(t, 1)
	confirmed := b.locks.Semaphore(b.key, 1, relock.WithReplicas(1, 300*time.Millisecond))
	plain := locksOn(t, b.master).Semaphore(b.key, 1)
	p := acquired(t, plain, 1)
	first := acquiring(t.Context(), confirmed, 1)
	awaitWaiting(t, plain, 1)
	second := acquiring(t.Context(), plain, 1)
	awaitWaiting(t, plain, 2)
	b.pause()
	require.NoError(t, p.Release())
	require.ErrorIs(t, redistest.Receive(t, first).err, relock.ErrNotReplicated)
	g := redistest.Receive(t, second)
	require.NoError(t, g.err)
	b.resume()
	require.NoError(t, g.permit.Release())
	requireNoKeys(t, b.master, b.key)
}

// A command of hundred renewals takes Redis some hundred microseconds, during which it does nothing else. With permits of
// large weights it would take seconds.
func TestSemaphore_LargePermitsAreRenewedAlone(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, b)
		c := locksOn(t, rdb, relock.WithTTL(3*time.Second))
		var permits []*relock.Permit
		for i := range 20 {
			permits = append(permits, acquired(t, c.Semaphore(fmt.Sprint("s", i), 1000), 100))
		}
		var together atomic.Int64
		relay.Before(redistest.Script(protocol.PermitRenewScript.Source()), func(c redistest.Command) {
			if c[2] != "1" {
				together.Add(1)
			}
		}).Always()
		time.Sleep(10 * time.Second)
		require.Zero(t, together.Load())
		for _, p := range permits {
			require.NoError(t, p.Release())
		}
	})
}

// Everything that can end a permit, at once.
func TestSemaphore_EndsInEveryWayAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		other := locksOn(t, b.Client(t)).Semaphore(key, 4)
		for round := range 12 {
			c := locksOn(t, rdb)
			s := c.Semaphore(key, 4, relock.WithMinHold(time.Duration(1+round%2*20)*time.Millisecond))
			if round%3 == 0 {
				s = c.Semaphore(key, 4, relock.WithAsyncUnlock())
			}
			var all sync.WaitGroup
			for i := range 12 {
				all.Go(func() {
					p, err := s.AcquireN(context.Background(), 1+i%3)
					if err != nil {
						if !errors.Is(err, relock.ErrClosed) {
							t.Error(err)
						}
						return
					}
					if p.ID() == "" {
						t.Error("a permit without ID")
					}
					ctx := p.Context(context.Background())
					var ends sync.WaitGroup
					var succeeded atomic.Int64
					for range 3 {
						ends.Go(func() {
							p.Deadline()
							switch err := p.Release(); {
							case err == nil:
								succeeded.Add(1)
							case errors.Is(err, relock.ErrNotHeld), errors.Is(err, relock.ErrLost), errors.Is(err, relock.ErrClosed):
							default:
								t.Error(err)
							}
						})
					}
					ends.Go(func() { _, _ = s.ForceRelease(context.Background(), p.ID()) })
					ends.Go(func() { _, _ = other.ForceRelease(context.Background(), p.ID()) })
					ends.Wait()
					<-ctx.Done()
					if succeeded.Load() > 1 {
						t.Error("released twice")
					}
				})
			}
			if round%4 == 3 {
				_ = c.Close()
			}
			all.Wait()
			if err := c.Close(); err != nil {
				require.ErrorIs(t, err, relock.ErrLost, "of releases in the background")
			}
		}
		requireNoKeys(t, rdb, key)
	})
}

// Each unit of a weight is a command of the script, which nobody can stop when it has written.
func TestSemaphore_ForcedPermitOfAnImpossibleWeightCostsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	s := locksOn(t, rdb).Semaphore("s", 2)
	done, err := s.ForceRelease(t.Context(), "8743c9c0-8743-8743-8743-8743c9c08743:1:20000")
	require.NoError(t, err)
	require.False(t, done)
	require.NotRegexp(t, `cmdstat_zrem:calls=\d\d`, rdb.Info(t.Context(), "commandstats").Val())
}

func TestSemaphore_WaitErrorNamesTheMinHold(t *testing.T) {
	t.Parallel()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		s := locksOn(t, b.Client(t)).Semaphore("s", 1, relock.WithMinHold(time.Minute), relock.WithWaitTimeout(2*time.Second))
		p := acquired(t, s, 1)
		require.NoError(t, p.Release())
		_, err := s.Acquire(t.Context())
		require.ErrorIs(t, err, relock.ErrTimeout)
		require.ErrorContains(t, err, "reserved by the min hold of "+p.ID()+",")
	})
}
