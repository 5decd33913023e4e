package relock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// eachLinger runs test for a lock that lingers on each backend.
func eachLinger(t *testing.T, test func(b *kindBench, m *relock.Mutex), opts ...relock.MutexOption) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newKindBench(t, backend, kindNamed("plain"))
		b.relay()
		test(b, b.mutex(append([]relock.MutexOption{relock.WithLinger(5 * time.Second)}, opts...)...))
	})
}

// lingers has the first actor lock and unlock m, which then lingers.
func (b *kindBench) lingers(m *relock.Mutex) {
	b.t.Helper()
	b.me.Locks(b.t, m)
	b.me.Unlocks(b.t, m)
	awaitSubscribers(b.t, b, 1)
	require.NotEmpty(b.t, b.keys())
}

// commands is how many commands for the lock the client has sent.
func (b *kindBench) commands() int {
	return b.relays[0].Count(redistest.Named("eval", "evalsha").And(redistest.With(b.key)))
}

func TestLinger_NextLocksOfTheProcessSendNoCommand(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.lingers(m)
		redistest.Eventually(b.t, "the question for waiters", func() bool { return b.relays[0].Count(b.runs(protocol.RenameScript)) == 1 })
		sent := b.commands()
		for range 50 {
			b.me.Locks(b.t, m)
			b.requireHeld(m, 1)
			b.me.Unlocks(b.t, m)
			require.ErrorIs(b.t, b.me.Call(m.Unlock), relock.ErrNotHeld)
			b.you.Locks(b.t, m)
			require.False(b.t, b.me.Tries(b.t, m), "another owner of the process has it")
			b.you.Unlocks(b.t, m)
			require.True(b.t, b.me.Tries(b.t, m))
			b.me.Unlocks(b.t, m)
		}
		require.Equal(b.t, sent, b.commands())
		require.NoError(b.t, b.c.Close())
		b.gone()
	})
}

func TestLinger_WaiterOfAnotherProcessGetsTheLockAtOnce(t *testing.T) {
	for name, of := range map[string]func(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex{
		"Mutex": kindNamed("plain").mutex, "FairMutex": kindNamed("fair").mutex, "MultiMutex": kindNamed("multi").mutex,
	} {
		t.Run(name, func(t *testing.T) {
			eachLinger(t, func(b *kindBench, m *relock.Mutex) {
				another := of(b.others, b.key)
				b.lingers(m)
				require.False(b.t, b.you.Tries(b.t, another), "a try does not end it")
				began := time.Now()
				b.you.Locks(b.t, another)
				require.Less(b.t, time.Since(began), b.promptly())
				b.you.Unlocks(b.t, another)
				b.free()
			})
		})
	}
}

// The announcement comes while the lock is held: it does not linger then.
func TestLinger_LockThatIsWantedIsReleased(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.lingers(m)
		b.me.Locks(b.t, m)
		another := b.kind.mutex(b.others, b.key)
		waits := b.you.Lock(b.t.Context(), another)
		requireWanted(b.t, wantedOf(b.t, b.me, m))
		b.me.Unlocks(b.t, m)
		require.NoError(b.t, locktest.OutcomeOf(b.t, waits))
		b.you.Unlocks(b.t, another)
		b.free()
	})
}

func TestLinger_EndsWithItsTime(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
		require.NotEmpty(b.t, b.keys())
		b.free()
		require.Equal(b.t, 1, b.relays[0].Count(b.runs(protocol.ReleaseScript)))
	}, relock.WithLinger(200*time.Millisecond))
}

func TestLinger_OtherKindsOfTheProcessGetTheLock(t *testing.T) {
	for name, lock := range map[string]func(a *locktest.Actor, t *testing.T, m *relock.Mutex){
		"by Lock":    func(a *locktest.Actor, t *testing.T, m *relock.Mutex) { t.Helper(); a.Locks(t, m) },
		"by TryLock": func(a *locktest.Actor, t *testing.T, m *relock.Mutex) { t.Helper(); require.True(t, a.Tries(t, m)) },
	} {
		for _, kind := range []string{"fair", "multi"} {
			t.Run(kind+" "+name, func(t *testing.T) {
				eachLinger(t, func(b *kindBench, m *relock.Mutex) {
					other := kindNamed(kind).mutex(b.c, b.key)
					for _, a := range []*locktest.Actor{b.me, b.you} {
						b.lingers(m)
						lock(a, b.t, other)
						a.Unlocks(b.t, other)
						b.free()
					}
				})
			})
		}
	}
}

// Redis still has the name of an owner that released the lock, for the hold of another owner.
func TestLinger_NameOfAnEarlierOwnerOnRedisIsNotThatOwnersHold(t *testing.T) {
	for _, kind := range []string{"fair", "multi", "plain"} {
		t.Run(kind, func(t *testing.T) {
			eachLinger(t, func(b *kindBench, m *relock.Mutex) {
				b.lingers(m)
				b.you.Locks(b.t, m)
				other := kindNamed(kind).mutex(b.c, b.key)
				require.False(b.t, b.me.Tries(b.t, other))
				waits := b.me.Lock(b.t.Context(), other)
				locktest.GoesOn(b.t, waits)
				b.you.Unlocks(b.t, m)
				require.NoError(b.t, locktest.OutcomeOf(b.t, waits))
				b.me.Unlocks(b.t, other)
				b.free()
			})
		})
	}
}

func TestLinger_LeaseIsKeptWhileTheLockIsUsed(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		sent, holds := b.commands(), 0
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); holds++ {
			a := []*locktest.Actor{b.me, b.you}[holds%2]
			a.Locks(b.t, m)
			ctx := a.ContextOf(m)
			locktest.Throughout(b.t, 10*time.Millisecond, func() bool { return ctx.Err() == nil }, "it is held")
			a.Unlocks(b.t, m)
			require.ErrorIs(b.t, context.Cause(ctx), relock.ErrReleased)
		}
		// For each TTL the rename of each sixth, and a release and a request for the lock.
		require.Less(b.t, b.commands()-sent, 3*(6+2)+6)
		require.GreaterOrEqual(b.t, b.relays[0].Count(b.runs(protocol.ReleaseScript)), 2, "after a TTL it is released, whoever waits")
		b.free()
	}, relock.WithTTL(time.Second), relock.WithLinger(300*time.Millisecond))
}

func TestLinger_EndsWithTheSubscription(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.lingers(m)
		require.NoError(b.t, b.relays[0].Refuse(true))
		b.relays[0].Cut()
		require.NoError(b.t, b.relays[0].Refuse(false))
		b.free()
	})
}

func TestLinger_NotWithoutASubscription(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		refused := b.relays[0].ReplyWith("-NOPERM no channels\r\n", redistest.Named("subscribe")).Always()
		defer refused.Release()
		b.me.Locks(b.t, m)
		b.me.Unlocks(b.t, m)
		b.free()
	})
}

func TestLinger_CloseReleases(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.lingers(m)
		require.NoError(b.t, b.c.Close())
		b.gone()
		require.ErrorIs(b.t, b.me.Call(func() error { return m.Lock(b.t.Context()) }), relock.ErrClosed)
	})
}

func TestLinger_ReleaseThatFailsIsReported(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.lingers(m)
		refused := b.relays[0].ReplyWith("-MISCONF disk\r\n", b.runs(protocol.ReleaseScript)).Always()
		defer refused.Release()
		require.ErrorContains(b.t, b.c.Close(), "MISCONF")
	})
}

func TestLinger_ForceUnlockEndsIt(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.lingers(m)
		forced, err := m.ForceUnlock(b.t.Context())
		require.NoError(b.t, err)
		require.True(b.t, forced)
		b.free()
		b.me.Locks(b.t, m)
		require.NotEmpty(b.t, b.keys(), "it was asked for")
		b.me.Unlocks(b.t, m)
	})
}

// Nobody held it: only a hold can be lost.
func TestLinger_DeletedKeyIsNoError(t *testing.T) {
	var released []error
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.lingers(m)
		require.NoError(b.t, b.rdbs[0].Del(b.t.Context(), b.key).Err())
		require.NoError(b.t, b.c.Close())
	}, relock.WithHooks(relock.Hooks{Released: func(e relock.Event) { released = append(released, e.Err) }}))
	require.NoError(t, errors.Join(released...))
}

func TestLinger_DeletedKeyIsTheLossOfTheNextHold(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.lingers(m)
		require.NoError(b.t, b.rdbs[0].Del(b.t.Context(), b.key).Err())
		b.you.Locks(b.t, m)
		ctx := b.you.ContextOf(m)
		redistest.Eventually(b.t, "its loss", func() bool { return ctx.Err() != nil })
		require.ErrorIs(b.t, context.Cause(ctx), relock.ErrLost)
		require.ErrorIs(b.t, b.you.Call(m.Unlock), relock.ErrLost)
		b.free()
	}, relock.WithRenewInterval(50*time.Millisecond))
}

func TestLinger_HooksCountTheHoldOnly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b, events := newKindBench(t, backend, kindNamed("plain")), new(chronicle)
		m := b.mutex(relock.WithLinger(800*time.Millisecond), relock.WithHooks(events.Hooks()))
		b.lingers(m)
		require.Empty(t, events.Of("released"), "it lingers")
		b.free()
		released := events.Of("released")
		require.Len(t, released, 1)
		require.Less(t, released[0].Elapsed, 500*time.Millisecond)
	})
}

func TestLinger_NotIfTheNextLockCouldNotFollow(t *testing.T) {
	for name, opt := range map[string]relock.MutexOption{
		"WithMinHold":       relock.WithMinHold(300 * time.Millisecond),
		"WithLocalHandoffs": relock.WithLocalHandoffs(0),
		"WithLinger(0)":     relock.WithLinger(0),
	} {
		t.Run(name, func(t *testing.T) {
			eachLinger(t, func(b *kindBench, m *relock.Mutex) {
				b.me.Locks(b.t, m)
				b.me.Unlocks(b.t, m)
				b.free()
				require.Zero(b.t, b.rdbs[0].PubSubNumSub(b.t.Context(), keys.WantedOf(b.key)).Val()[keys.WantedOf(b.key)])
			}, opt)
		})
	}
}

// The first renewal of a longer lease may be due after the end of the lease that it takes over.
func TestLinger_LongerLeaseIsProvenAtOnce(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.lingers(m)
		longer := b.mutex(relock.WithTTL(time.Hour))
		b.you.Locks(b.t, longer)
		redistest.Eventually(b.t, "it has the whole lease", func() bool { return b.rdbs[0].PTTL(b.t.Context(), b.key).Val() > time.Minute })
		redistest.Eventually(b.t, "and knows it", func() bool {
			var deadline time.Time
			_ = b.you.Call(func() error {
				deadline, _ = longer.Deadline()
				return nil
			})
			return time.Until(deadline) > time.Minute
		})
		b.you.Unlocks(b.t, longer)
		b.gone()
	})
}

// Another owner of the process waits already, so the lock is handed over, not kept.
func TestLinger_UnlockOfALockThatIsHandedOverWaitsForTheAnswer(t *testing.T) {
	eachLinger(t, func(b *kindBench, m *relock.Mutex) {
		b.me.Locks(b.t, m)
		next := b.you.Lock(b.t.Context(), m)
		relock.AwaitWaiters(b.t, b.c, b.key, 1)
		stopped := b.relays[0].Block(b.runs(protocol.RenameScript))
		unlocked := b.me.Begin(m.Unlock)
		require.NoError(b.t, locktest.OutcomeOf(b.t, next))
		stopped.Wait(b.t)
		locktest.GoesOn(b.t, unlocked)
		stopped.Release()
		require.NoError(b.t, locktest.OutcomeOf(b.t, unlocked))
		b.you.Unlocks(b.t, m)
		require.NoError(b.t, b.c.Close())
		b.gone()
	})
}

func TestLinger_LocksThatNeedRedisAreServed(t *testing.T) {
	for name, opt := range map[string]relock.MutexOption{
		"WithFencing": relock.WithFencing(), "WithoutRenewal": relock.WithoutRenewal(), "a short TTL": relock.WithTTL(3 * time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			eachLinger(t, func(b *kindBench, m *relock.Mutex) {
				other := b.mutex(opt)
				for _, a := range []*locktest.Actor{b.me, b.you} {
					b.lingers(m)
					a.Locks(b.t, other)
					a.Unlocks(b.t, other)
					b.free()
				}
			})
		})
	}
}
