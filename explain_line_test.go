package relock

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// Most of those who wait for a lock stand in line, and do not ask Redis themselves.

func TestAContextThatEndsBeforeRedisCanHaveAnsweredIsNotItsFault(t *testing.T) {
	inBubble(t, func(t *testing.T, rdb *redis.Client) {
		o := *rdb.Options()
		dial, connect := o.Dialer, make(chan struct{})
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			<-connect
			return dial(ctx, network, addr)
		}
		slow := redis.NewClient(&o)
		t.Cleanup(func() { _ = slow.Close() })
		m := locksOn(t, slow).Mutex("orders")
		t.Cleanup(func() { close(connect) })
		ctx, giveUp := context.WithCancel(t.Context())
		waiting := newActor(t).lock(ctx, m)
		synctest.Wait()
		giveUp()
		require.EqualError(t, <-waiting, `relock: lock "orders": context canceled`)
	})
}

func TestOneInLineKnowsWhatTheFirstWasTold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb, key := backend.Client(t), redistest.Key(t)
		heldByStranger(t, rdb, key, time.Minute)
		m := locksOn(t, rdb).Mutex(key)
		first, giveUpFirst := context.WithCancel(t.Context())
		told := newActor(t).lock(first, m)
		awaitTold(t, m, "stranger:1")

		second, giveUpSecond := context.WithCancel(t.Context())
		inLine := newActor(t).lock(second, m)
		awaitWaiters(t, m.session, key, 2)
		giveUpSecond()
		require.ErrorContains(t, outcomeOf(t, inLine), "it was still held by stranger:1, with ")
		giveUpFirst()
		require.ErrorContains(t, outcomeOf(t, told), "it was still held by stranger:1, with ")
	})
}

func TestAWaitThatEndsWhileTheLockIsGivenBackSaysWhoHadIt(t *testing.T) {
	eachKindOf(t, []string{"plain", "multi", "fair", "write"}, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
		b := newFaultBenchOf(t, kind, backend.Addr)
		b.m = b.mutex(WithLocalHandoffs(0), WithTTL(time.Minute))
		require.NoError(t, b.other.lock(b.ctx, b.m))
		ctx, giveUp := context.WithCancel(b.ctx)
		waiting := b.me.start(func() error { return b.m.Lock(ctx) })
		b.awaitContended()
		seen, _ := learnedOf(b.m)
		holder := asHold(seen.Hold).name.Field
		executed, release := b.stopReply(kind.releases())
		unlocked := b.other.start(b.m.Unlock)
		b.awaitStop(executed)
		giveUp()
		err := faultError(t, waiting)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "was last held by "+holder+", of this client")
		release()
		require.NoError(t, faultError(t, unlocked))
	})
}

// releases is the script that gives a lock of the kind back, when others wait for it.
func (k lockKind) releases() *redisexec.Script {
	if others := k.scripts[protocol.ReleaseScript]; len(others) > 0 {
		return others[0]
	}
	return protocol.ReleaseScript
}

// Whenever the wait ends: before the turn has come, while Redis is asked, or while the lock is
// handed on.
func TestAWaitThatTimesOutInAHotLoopSaysWhoHasTheLock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		c, key := locksOn(t, backend.Client(t)), redistest.Key(t)
		m, brief := c.Mutex(key), c.Mutex(key, WithWaitTimeout(time.Millisecond))
		stop := make(chan struct{})
		var busy sync.WaitGroup
		for range 8 {
			busy.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						_ = m.Lock(t.Context())
						_ = m.Unlock()
					}
				}
			})
		}
		defer busy.Wait()
		defer close(stop)
		awaitTold(t, m, "")
		for n := 0; n < 50; {
			err := brief.Lock(t.Context())
			if err == nil {
				requireUnlocked(t, brief)
				continue
			}
			n++
			require.ErrorIs(t, err, ErrTimeout)
			require.Regexp(t, `it was ((still|last) )?held by `, err)
		}
	})
}
