package relock_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// silentWait is a waiter whose last answer named another client before Redis stopped answering.
func silentWait(t *testing.T, away func(relay *redistest.Relay)) (m *relock.Mutex, waiting <-chan error, giveUp context.CancelFunc) {
	t.Helper()
	backend := redistest.Redis(t)
	relay, rdb := locktest.RelayedTo(t, backend)
	key := redistest.Key(t)
	locktest.HeldByAnother(t, backend.Client(t), key, time.Minute)
	t.Cleanup(func() { locktest.ComesBack(relay) })
	ctx, giveUp := context.WithCancel(t.Context())
	m = relock.LocksOn(t, rdb).Mutex(key, relock.WithSafetyPoll(200*time.Millisecond))
	waiting = locktest.NewActor(t).Lock(ctx, m)
	awaitReported(t, m, "another:1")
	away(relay)
	return m, waiting, giveUp
}

// awaitReported waits until a reply reported to the client of m that it is held by holder, or, if that is empty, by
// anybody.
func awaitReported(t *testing.T, m *relock.Mutex, holder string) {
	t.Helper()
	redistest.Eventually(t, "a reply that names the holder", func() bool {
		seen, _ := m.Learned()
		return seen != "" && (holder == "" || seen == holder)
	})
}

func TestWaitError_ReportsAnOutage(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	m, waiting, giveUp := silentWait(t, func(relay *redistest.Relay) {
		require.NoError(t, relay.Refuse(true))
		relay.Cut()
	})
	redistest.Eventually(t, "a request has failed", func() bool {
		_, out := m.Learned()
		return out.Failure != nil
	})
	giveUp()
	err := locktest.OutcomeOf(t, waiting)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "requests to Redis have been failing for")
	require.ErrorContains(t, err, "last known: held by another:1")
	require.NotContains(t, err.Error(), "still held")
}

func TestWaitError_ReportsSilence(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	m, waiting, giveUp := silentWait(t, func(relay *redistest.Relay) { relay.BlackHole(true) })
	redistest.Eventually(t, "a request is not answered", func() bool {
		_, out := m.Learned()
		return out.Asked != (clock.Instant{}) && clock.System().Since(out.Asked) > 2*redisexec.MinCopyPatience
	})
	giveUp()
	err := locktest.OutcomeOf(t, waiting)
	require.ErrorContains(t, err, "from Redis")
	require.ErrorContains(t, err, "last known: held by another:1")
}

func TestWaitError_ReportsThatThereWasNoAnswer(t *testing.T) {
	t.Parallel()
	relay, rdb := locktest.RelayedTo(t, redistest.Redis(t))
	c := relock.LocksOn(t, rdb)
	t.Cleanup(func() { locktest.ComesBack(relay) })
	relay.BlackHole(true)
	for what, opts := range map[string][]relock.MutexOption{"a goroutine": nil, "an owner": {relock.WithOwner("job")}} {
		m := c.Mutex(redistest.Key(t), append(opts, relock.WithWaitTimeout(100*time.Millisecond))...)
		err := m.Lock(t.Context())
		require.ErrorIs(t, err, relock.ErrTimeout, what)
		require.ErrorContains(t, err, "no answer from Redis for", what)
	}
}

func TestLost_ReportsWhetherItWasDeliberate(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	for _, c := range []struct {
		opt  relock.MutexOption
		says string
	}{
		{relock.WithoutRenewal(), "lease expired: renewal is disabled (WithoutRenewal)"},
		{relock.WithMaxHold(2 * time.Second), "lease expired: maximum hold time reached (WithMaxHold)"},
	} {
		redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
			m := relock.LocksOn(t, b.Client(t)).Mutex(redistest.Key(t), relock.WithTTL(2*time.Second), c.opt)
			locktest.RequireLocked(t, m)
			ctx := m.Context(t.Context())
			redistest.Receive(t, ctx.Done())
			require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
			require.ErrorContains(t, context.Cause(ctx), c.says)
			require.ErrorIs(t, m.Unlock(), relock.ErrLost)
		})
	}
}

func TestLost_ReportsWhyTheLeaseWasNotRenewed(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	relay, rdb := locktest.RelayedTo(t, redistest.Redis(t))
	renewFailed := make(chan struct{}, 100)
	m := relock.LocksOn(t, rdb).Mutex(redistest.Key(t), relock.WithTTL(time.Second), relock.WithHooks(relock.Hooks{RenewFailed: func(relock.Event) { renewFailed <- struct{}{} }}))
	locktest.RequireLocked(t, m)
	ctx := m.Context(t.Context())
	t.Cleanup(func() { locktest.ComesBack(relay) })
	require.NoError(t, relay.Refuse(true))
	relay.Cut()
	redistest.Receive(t, renewFailed)
	redistest.Receive(t, ctx.Done())
	require.ErrorContains(t, context.Cause(ctx), "lease expired before it was renewed: ")
	require.ErrorIs(t, m.Unlock(), relock.ErrLost)
}

func TestWaitError_DoesNotCallAWaitingWriterAHolder(t *testing.T) {
	redistest.Slow(t)
	eachRW(t, func(b *rwBench) {
		claim := b.claims("1 waiting:7:write")
		ctx, cancel := context.WithTimeout(b.t.Context(), 200*time.Millisecond)
		defer cancel()
		err := locktest.OutcomeOf(b.t, b.me.Lock(ctx, b.mutex().Read()))
		require.ErrorIs(b.t, err, context.DeadlineExceeded)
		require.ErrorContains(b.t, err, "still closed to readers by the waiting writer waiting:7:write, lease ends in")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), claim).Err())
	})
}

// Most of those who wait for a lock stand in line, and do not ask Redis themselves.

func TestWaitError_DoesNotBlameRedisForAContextThatEndsTooSoon(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		o := *rdb.Options()
		dial, connect := o.Dialer, make(chan struct{})
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			<-connect
			return dial(ctx, network, addr)
		}
		slow := redis.NewClient(&o)
		t.Cleanup(func() { _ = slow.Close() })
		m := relock.LocksOn(t, slow).Mutex("orders")
		t.Cleanup(func() { close(connect) })
		ctx, giveUp := context.WithCancel(t.Context())
		waiting := locktest.NewActor(t).Lock(ctx, m)
		synctest.Wait()
		giveUp()
		require.EqualError(t, <-waiting, `relock: lock "orders": context canceled`)
	})
}

func TestWaitError_IncludesTheLastAnswerToTheFirstInLine(t *testing.T) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb, key := backend.Client(t), redistest.Key(t)
		locktest.HeldByAnother(t, rdb, key, time.Minute)
		m := relock.LocksOn(t, rdb).Mutex(key)
		first, giveUpFirst := context.WithCancel(t.Context())
		reported := locktest.NewActor(t).Lock(first, m)
		awaitReported(t, m, "another:1")

		second, giveUpSecond := context.WithCancel(t.Context())
		inLine := locktest.NewActor(t).Lock(second, m)
		relock.AwaitWaiters(t, m, key, 2)
		giveUpSecond()
		require.ErrorContains(t, locktest.OutcomeOf(t, inLine), "still held by another:1, lease ends in ")
		giveUpFirst()
		require.ErrorContains(t, locktest.OutcomeOf(t, reported), "still held by another:1, lease ends in ")
	})
}

func TestWaitError_NamesThePreviousHolderDuringARelease(t *testing.T) {
	eachKindOf(t, []string{"plain", "multi", "fair", "write"}, func(t *testing.T, backend *redistest.Backend, kind lockKind) {
		b := newFaultBenchOf(t, kind, backend.Addr)
		b.m = b.mutex(relock.WithLocalHandoffs(0), relock.WithTTL(time.Minute))
		require.NoError(t, b.other.lock(b.ctx, b.m))
		ctx, giveUp := context.WithCancel(b.ctx)
		waiting := b.me.start(func() error { return b.m.Lock(ctx) })
		b.awaitContended()
		var holder string
		for holder = range b.fields() {
		}
		sent, released := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(released) })
		t.Cleanup(release)                                                // before the relay is closed
		b.relay.Before(b.runs(kind.releases()), func(redistest.Command) { // Redis gives it to the waiter when it comes
			close(sent)
			<-released
		})
		unlocked := b.other.start(b.m.Unlock)
		b.awaitStop(sent)
		giveUp()
		err := faultError(t, waiting)
		require.ErrorIs(t, err, context.Canceled)
		who := "held by " + holder + " of this client"
		if kind.name == "fair" && !strings.Contains(err.Error(), who) { // its poll was answered meanwhile: Redis has not received the hand-over yet
			who = "still held by " + holder
		}
		require.ErrorContains(t, err, who)
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
func TestWaitError_NamesTheHolderInAHotLoop(t *testing.T) {
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		c, key := relock.LocksOn(t, backend.Client(t)), redistest.Key(t)
		m, brief := c.Mutex(key), c.Mutex(key, relock.WithWaitTimeout(time.Millisecond))
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
						time.Sleep(time.Millisecond) // it works
						_ = m.Unlock()
					}
				}
			})
		}
		defer busy.Wait()
		defer close(stop)
		awaitReported(t, m, "")
		for n := 0; n < 50; {
			err := brief.Lock(t.Context())
			if err == nil {
				locktest.RequireUnlocked(t, brief)
				continue
			}
			n++
			require.ErrorIs(t, err, relock.ErrTimeout)
			require.Regexp(t, `held by `, err)
		}
	})
}
