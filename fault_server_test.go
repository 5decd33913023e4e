package relock_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// newServerBench returns a bench on a server of its own, to be broken.
func newServerBench(t *testing.T, opts ...relock.ClientOption) (*faultBench, *redistest.Server) {
	t.Helper()
	t.Parallel()
	server := redistest.NewServer(t)
	return newFaultBench(t, server.Addr, opts...), server
}

func TestServer_StopShorterThanTheLeaseLosesNothing(t *testing.T) {
	const ttl = 4 * time.Second
	b, server := newServerBench(t, relock.WithTTL(ttl))
	failed := make(chan relock.Event, 64)
	b.hooks.RenewFailed = func(e relock.Event) { failed <- e }
	b.m = b.mutex(relock.WithTTL(ttl), relock.WithRenewInterval(100*time.Millisecond))
	lockOnce(b)
	hold := b.me.holdOf(b.ctx, b.m)
	require.NoError(t, server.Pause())
	b.await(failed)
	require.NoError(t, server.Resume())
	for len(b.renewed) > 0 {
		<-b.renewed
	}
	b.await(b.renewed)
	b.requireHeld(b.me, b.m, 1, hold)
	b.unwind(b.me, b.m, 1, hold)
	b.requireGone()
}

func TestServer_StopLongerThanTheLeaseLosesTheHoldBeforeItsEnd(t *testing.T) {
	const ttl = 600 * time.Millisecond
	b, server := newServerBench(t)
	b.m = b.mutex(relock.WithTTL(ttl))
	lockOnce(b)
	hold := b.me.holdOf(b.ctx, b.m)
	require.NoError(t, server.Pause())
	// The server counts the lease from when it got the last request that it answered, which
	// the relay records.
	b.requireLostBy(hold, b.lastAnswered(protocol.AcquireScript, protocol.RenewScript).Add(ttl))
	require.ErrorIs(t, b.me.unlock(b.m), relock.ErrLost)
	require.NoError(t, server.Resume())
	b.m = b.mutex() // whose lease a busy machine keeps
	b.requireLockable()
}

// requireLostBy asserts that the hold is lost, and that it is not valid any more at end.
func (b *faultBench) requireLostBy(hold context.Context, end time.Time) {
	b.t.Helper()
	for now := time.Now(); hold.Err() == nil; now = time.Now() {
		require.True(b.t, now.Before(end), "valid after the end of its lease")
		<-time.After(faultPoll)
	}
	require.ErrorIs(b.t, context.Cause(hold), relock.ErrLost)
	b.await(b.lost)
}

// lastAnswered returns when the relay forwarded the last run of scripts that was answered.
func (b *faultBench) lastAnswered(scripts ...*redisexec.Script) (at time.Time) {
	b.t.Helper()
	for _, entry := range b.relay.Log() {
		for _, s := range scripts {
			if entry.Reply != "" && b.runs(s)(entry.Command) {
				at = entry.Time
			}
		}
	}
	require.False(b.t, at.IsZero())
	return at
}

// testLostData has the server forget everything. The next renewal finds out.
func testLostData(t *testing.T, forget func(*faultBench, *redistest.Server)) {
	b, server := newServerBench(t)
	b.m = b.mutex(relock.WithTTL(20*time.Second), relock.WithRenewInterval(200*time.Millisecond))
	lockTwice(b)
	hold := b.me.holdOf(b.ctx, b.m)
	forget(b, server)
	began := time.Now()
	require.ErrorIs(t, b.await(b.lost).Err, lockerr.ErrNotOnRedis)
	require.Less(t, time.Since(began), 5*time.Second)
	require.ErrorIs(t, context.Cause(hold), relock.ErrLost)
	b.requireGone()
	require.ErrorIs(t, b.me.lock(b.ctx, b.m), relock.ErrLost)
	require.ErrorIs(t, b.me.unlock(b.m), relock.ErrLost)
	require.ErrorIs(t, b.me.unlock(b.m), relock.ErrLost)
	require.ErrorIs(t, b.me.unlock(b.m), relock.ErrNotHeld)
	b.requireGone()
	b.requireLockable()
}

func TestServer_RestartWithoutDataIsALossAndMakesNoKey(t *testing.T) {
	testLostData(t, func(b *faultBench, server *redistest.Server) { require.NoError(b.t, server.Restart()) })
}

func TestServer_FlushIsALossAndMakesNoKey(t *testing.T) {
	testLostData(t, func(b *faultBench, _ *redistest.Server) {
		require.NoError(b.t, b.server.FlushAll(b.ctx).Err())
	})
}

func TestServer_UnlockAfterLostDataReportsIt(t *testing.T) {
	b, _ := newServerBench(t)
	b.m = b.mutex(relock.WithTTL(20 * time.Second))
	lockOnce(b)
	id := b.name()
	require.NoError(t, b.server.FlushAll(b.ctx).Err())
	require.ErrorIs(t, b.me.unlock(b.m), relock.ErrLost)
	require.NotEqual(t, id, b.locks.ID(), "another owner's command ended the hold: copies of it may follow")
	b.requireLockable()
}

func TestServer_ForgottenScriptsAreSentAgain(t *testing.T) {
	t.Parallel()
	b := newPatientBench(t, redistest.NewServer(t).Addr)
	b.relay.Teach(nil) // the library does it
	id := b.locks.ID()
	afterAFlush := func(steps ...func(*faultBench)) {
		for _, step := range steps {
			require.NoError(t, b.server.ScriptFlush(b.ctx).Err())
			step(b)
		}
	}
	b.m = b.mutex(relock.WithTTL(defaultTTL), relock.WithRenewInterval(100*time.Millisecond))
	afterAFlush(lockOnce, lockOnce, func(b *faultBench) { b.await(b.renewed) }, unlockOnce)
	require.Equal(t, id, b.locks.ID(), "every command was answered")
	afterAFlush(unlockOnce) // which gives up a renewal that is under way, and its identity

	b.m, id = b.mutex(relock.WithTTL(defaultTTL)), b.locks.ID()
	afterAFlush(lockAndQueue, handOverToMe, unlockOnce, lockByRival, forceRival)
	require.Equal(t, id, b.locks.ID(), "every command was answered")
	require.GreaterOrEqual(t, b.relay.Count(redistest.Named("EVAL")), 7)
	b.requireGone()
}

func TestServer_KilledConnectionsLoseNothing(t *testing.T) {
	b, _ := newServerBench(t)
	b.m = b.mutex(relock.WithRenewInterval(100 * time.Millisecond))
	kill := func() { require.NoError(t, b.server.ClientKillByFilter(b.ctx, "TYPE", "normal").Err()) }
	lockOnce(b)
	hold := b.me.holdOf(b.ctx, b.m)
	kill()
	for len(b.renewed) > 0 {
		<-b.renewed
	}
	b.await(b.renewed)
	kill()
	lockOnce(b)
	b.requireHeld(b.me, b.m, 2, hold)
	kill()
	unlockOnce(b)
	kill()
	b.unwind(b.me, b.m, 1, hold)
	b.requireGone()
}

// The message of the release may go to a connection that is dead.
func TestServer_WaiterWithAKilledSubscriptionIsServedSoon(t *testing.T) {
	b, _ := newServerBench(t)
	long := relock.WithTTL(5 * time.Minute) // so that only a message or a lost connection wakes
	rival := faultLocks(t, b.server.Options().Addr).Mutex(b.key, long)
	require.NoError(t, b.other.lock(b.ctx, rival))
	b.m = b.mutex(relock.WithSafetyPoll(5 * time.Minute))
	asleep := b.whenAsleep()
	b.waiting = b.me.start(func() error { return b.m.Lock(b.ctx) })
	b.awaitStop(asleep)
	require.NoError(t, b.server.ClientKillByFilter(b.ctx, "TYPE", "pubsub").Err())
	require.NoError(t, b.other.unlock(rival))
	require.NoError(t, faultError(t, b.waiting))
	unlockOnce(b)
	b.requireGone()
}

func TestServer_DownIsAnErrorOfTheFirstLock(t *testing.T) {
	b, server := newServerBench(t)
	server.Kill()
	for name, lock := range map[string]func(*relock.Mutex) error{
		"Lock":    func(m *relock.Mutex) error { return m.Lock(b.ctx) },
		"TryLock": func(m *relock.Mutex) error { _, err := m.TryLock(b.ctx); return err },
	} {
		c := faultLocks(t, server.Addr, relock.WithTTL(defaultTTL))
		began := time.Now()
		err := lock(c.Mutex(b.key))
		require.Less(t, time.Since(began), 8*time.Second, name)
		var dial *net.OpError
		require.ErrorAs(t, err, &dial, name)
		require.ErrorContains(t, err, "connection refused", name)
		require.ErrorContains(t, err, b.key, name)
		require.NotErrorIs(t, err, relock.ErrTimeout, name)
	}
	require.NoError(t, server.Restart()) // to be closed quickly
}

// go-redis takes its time to find out that nobody listens: longer than a client with short
// leases waits for an answer.
func TestServer_DownIsNamedToAClientWithShortLeases(t *testing.T) {
	b, server := newServerBench(t)
	server.Kill()
	m := faultLocks(t, server.Addr).Mutex(b.key)
	require.ErrorContains(t, b.me.lock(b.ctx, m), "connection refused")
	require.NoError(t, server.Restart()) // to be closed quickly
}

// newPatientBench returns a bench whose client does not doubt what is answered late.
func newPatientBench(t *testing.T, addr string) *faultBench {
	t.Helper()
	b := newFaultBench(t, addr, relock.WithTTL(defaultTTL))
	b.m = b.mutex(relock.WithTTL(defaultTTL))
	return b
}

func TestServer_PassingRefusalsAreWaitedOut(t *testing.T) {
	t.Parallel()
	for _, refusal := range []string{
		"READONLY You can't write against a read only replica.",
		"LOADING Redis is loading the dataset in memory",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"NOREPLICAS Not enough good replicas to write.",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	} {
		t.Run(refusal[:4], func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
				b := newPatientBench(t, backend.Addr)
				id := b.locks.ID()
				refuse := func(s *redisexec.Script) { b.relay.ReplyWith("-"+refusal+"\r\n", b.runs(s)).Times(2) }
				refuse(protocol.AcquireScript)
				lockOnce(b)
				hold := b.me.holdOf(b.ctx, b.m)
				refuse(protocol.ReenterScript)
				lockOnce(b)
				b.requireHeld(b.me, b.m, 2, hold)
				refuse(protocol.ReleaseScript)
				unlockOnce(b)
				b.requireHeld(b.me, b.m, 1, hold)
				refuse(protocol.ReleaseScript)
				b.unwind(b.me, b.m, 1, hold)
				b.requireGone()
				refuse(protocol.RenameScript)
				lockAndQueue(b)
				handOverToMe(b)
				unlockOnce(b)
				b.requireGone()
				refuse(protocol.RenameScript)
				lockAndQueueFirst(b)
				handOverToMe(b)
				unlockOnce(b)
				b.requireGone()
				require.Equal(t, id, b.locks.ID(), "nothing was in doubt")
			})
		})
	}
}

func TestServer_MissingPermissionIsAnErrorAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newPatientBench(t, backend.Addr)
		id, asked := b.locks.ID(), 0
		b.relay.ReplyWith("-NOPERM this user has no permissions to run the 'evalsha' command\r\n",
			b.runs(protocol.AcquireScript).And(func(redistest.Command) bool { asked++; return true })).Always()
		require.ErrorContains(t, b.me.lock(b.ctx, b.m), "NOPERM")
		require.Equal(t, 2, asked, "with the keys of the line, and without")
		require.Equal(t, id, b.locks.ID(), "nothing was in doubt")
		b.awaitIdle()
		require.Zero(t, b.relay.Count(redistest.With(b.key)), "there was nothing to undo")
	})
}
