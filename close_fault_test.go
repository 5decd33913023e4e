package relock_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// soonClosed is when a Close has to be over that need not wait for Redis.
const soonClosed = 2 * time.Second

// A refusing Redis is a miniredis in a bubble that can be taken down: its connections end, and new
// ones are refused.
type refusing struct {
	*redistest.Backend
	rdb *redis.Client

	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func inBubbleRefusing(t *testing.T, test func(t *testing.T, r *refusing)) {
	t.Helper()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		r := &refusing{Backend: b}
		r.rdb = redis.NewClient(redistest.Options(b.Addr, func(o *redis.Options) { o.Dialer = r.dial }))
		t.Cleanup(func() {
			// What go-redis still tries is over then. To wait for it in its Close would stop the clock:
			// that waits for a sync.Once.
			r.set(up)
			time.Sleep(time.Minute)
			_ = r.rdb.Close()
		})
		test(t, r)
	})
}

func (r *refusing) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	conn, err := redistest.Dial(ctx, network, addr)
	r.conns = append(r.conns, conn)
	return conn, err
}

const up, down = false, true

func (r *refusing) set(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
	for _, conn := range r.conns {
		_ = conn.Close()
	}
}

func TestClose_ErrorHasEveryHoldThatRedisDidNotConfirm(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	for name, fail := range map[string]func(*refusing){
		"refused": func(r *refusing) { r.set(down) },
		"loading": func(r *refusing) { r.Miniredis.SetError("LOADING Redis is loading the dataset in memory") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleRefusing(t, func(t *testing.T, r *refusing) {
				c := relock.LocksOn(t, r.rdb)
				const n = 50
				for i := range n {
					locktest.RequireLocked(t, c.Mutex(fmt.Sprintf("name-%02d", i)))
				}
				fail(r)
				began := time.Now()
				err := c.Close()
				require.LessOrEqual(t, time.Since(began), closeTimeout)
				require.Error(t, err)
				require.Len(t, err.(interface{ Unwrap() []error }).Unwrap(), n) //nolint:errorlint // how many there are
				for i := range n {
					require.ErrorContains(t, err, fmt.Sprintf(`close "name-%02d"`, i))
				}
				require.ErrorContains(t, err, map[string]string{"refused": "refused", "loading": "LOADING"}[name], "why")
				require.Equal(t, err, c.Close())
			})
		})
	}
}

// A hook may go on for longer than Close waits for it.
func TestClose_ErrorHasAHoldWhoseHookGoesOn(t *testing.T) {
	t.Parallel()
	inBubbleRefusing(t, func(t *testing.T, r *refusing) {
		over := make(chan struct{})
		c := relock.LocksOn(t, r.rdb, relock.WithHooks(relock.Hooks{Released: func(relock.Event) { <-over }}))
		locktest.RequireLocked(t, c.Mutex("one"))
		locktest.RequireLocked(t, c.Mutex("two"))
		r.set(down)
		err := c.Close()
		close(over)
		require.ErrorContains(t, err, `close "one"`)
		require.ErrorContains(t, err, `close "two"`)
	})
}

// After a Lock that has failed, the client tries to undo what it may have left, without success.
func TestClose_DoesNotWaitForARefusingRedisIfNothingIsHeld(t *testing.T) {
	t.Parallel()
	inBubbleRefusing(t, func(t *testing.T, r *refusing) {
		c := relock.LocksOn(t, r.rdb)
		m := c.Mutex("name")
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
		r.set(down)
		require.Error(t, m.Lock(t.Context()))
		began := time.Now()
		require.NoError(t, c.Close())
		require.Less(t, time.Since(began), soonClosed)
	})
}

// What the waiter has asked is waited for, but not asked again; then it is tried to be undone.
func TestClose_DoesNotWaitForARefusingRedisForAWaiter(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	for began := time.Duration(0); began < 2*time.Second; began += 100 * time.Millisecond {
		inBubbleRefusing(t, func(t *testing.T, r *refusing) {
			locktest.HeldByAnother(t, r.rdb, "name", time.Minute)
			c := relock.LocksOn(t, r.rdb, relock.WithSafetyPoll(100*time.Millisecond))
			waiting := locktest.NewActor(t).Lock(t.Context(), c.Mutex("name"))
			relock.AwaitListening(t, c, "name")
			r.set(down)
			time.Sleep(began)
			closing := time.Now()
			require.NoError(t, c.Close())
			require.Less(t, time.Since(closing), soonClosed+c.Patience(), "after %v", began)
			require.ErrorIs(t, locktest.OutcomeOf(t, waiting), relock.ErrClosed)
		})
	}
}

func TestClose_IsOverAtOnceIfTheRedisClientIsClosed(t *testing.T) {
	redistest.InTime(t)
	t.Parallel()
	eachKind(t, func(t *testing.T, backend *redistest.Backend, k lockKind) {
		b := newKindBench(t, backend, k)
		b.me.Locks(t, b.mutex())
		for _, rdb := range b.rdbs {
			require.NoError(t, rdb.Close())
		}
		began := time.Now()
		if err := b.c.Close(); err != nil { // a connection that is not of the client's pools may be there, and release the hold
			require.ErrorIs(t, err, redis.ErrClosed, "the hold")
		}
		require.Less(t, time.Since(began), soonClosed)
	})
}
