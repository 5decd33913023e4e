package relock_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

func TestDistress_RefusalIsAnErrorOfItsCallAndPassesWithItsReason(t *testing.T) {
	t.Parallel()
	for name, d := range redistest.Distresses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.RequireVersion(t, d.Since)
			newCourse(t, d, d.Admit(t)).run()
		})
	}
}

// course is what a client of the library goes through with a server in distress. It has a
// hold to be kept, one to be unlocked meanwhile, and a waiter for a lock that is taken.
type course struct {
	*faultBench
	*redistest.Distress
	p *redistest.Patient

	kept, ended, free *relock.Mutex
	failed            chan relock.Event // renewals of kept
	hold              context.Context
}

func newCourse(t *testing.T, d *redistest.Distress, p *redistest.Patient) *course {
	t.Helper()
	b := &faultBench{
		t: t, ctx: t.Context(), relay: p.Relay, key: p.Names("queued")[0], other: newFaultOwner(t),
		renewed: make(chan relock.Event, 4096), contended: make(chan relock.Event, 4096), lost: make(chan relock.Event, 16),
	}
	c := &course{faultBench: b, Distress: d, p: p, failed: make(chan relock.Event, 4096)}
	b.hooks = relock.Hooks{
		Renewed:     func(e relock.Event) { b.renewed <- e },
		RenewFailed: func(e relock.Event) { c.failed <- e },
		Lost:        func(e relock.Event) { b.lost <- e },
		Contended:   func(e relock.Event) { b.contended <- e },
	}
	b.locks = relock.LocksOn(t, p.Rdb, relock.WithSafetyPoll(50*time.Millisecond), relock.WithUnlockTimeout(300*time.Millisecond))
	c.kept = b.locks.MultiMutex(p.Names("kept"), relock.WithOwner("keeper"), relock.WithRenewInterval(50*time.Millisecond), relock.WithHooks(b.hooks))
	c.ended = b.locks.MultiMutex(p.Names("ended"), relock.WithOwner("visitor"))
	c.free = b.locks.MultiMutex(p.Names("free"), relock.WithOwner("visitor"), relock.WithFencing())
	b.m = b.locks.MultiMutex(p.Names("queued"), relock.WithHooks(b.hooks))
	for _, s := range []*redisexec.Script{protocol.AcquireScript, protocol.ReenterScript, protocol.RenewScript, protocol.ReleaseScript} {
		require.NoError(t, p.Admin.ScriptLoad(t.Context(), s.Source()).Err())
	}
	return c
}

func (c *course) run() {
	c.begin()
	c.Strike(c.p)
	c.awaitFailure()
	c.requireErrors()
	c.requireEffectOnHolds()
	waits := c.requireEffectOnWaiter()
	c.Heal(c.p)
	if c.p.Ill != nil {
		redistest.Receive(c.t, c.p.Ill)
	}
	keys := append(c.free.Keys().Keys, c.free.Keys().Counters...)
	redistest.Eventually(c.t, "well", func() bool { return c.p.Admin.HLen(c.t.Context(), keys[0]).Err() == nil })
	for _, key := range keys {
		require.Zero(c.t, c.p.Admin.Exists(c.t.Context(), key).Val(), "%s: something was executed", key)
	}
	c.requireRecovery(waits)
}

// begin takes the locks while all is well.
func (c *course) begin() {
	c.t.Helper()
	locktest.RequireLocked(c.t, c.kept)
	locktest.RequireLocked(c.t, c.ended)
	c.hold = c.kept.Context(c.ctx)
	locktest.HeldByAnother(c.t, c.p.Admin, c.key, time.Hour)
	c.waiting = c.other.start(func() error { return c.m.Lock(c.ctx) })
	c.awaitContended()
	c.await(c.renewed)
}

// awaitFailure waits until a renewal fails of the distress. A command that was on its way
// when the distress began may fail otherwise.
func (c *course) awaitFailure() {
	c.t.Helper()
	redistest.Eventually(c.t, c.Contains, func() bool {
		return c.Refuses == redistest.RefusesGrowth || regexp.MustCompile(c.Contains).MatchString(c.await(c.failed).Err.Error())
	})
}

// requireErrors asserts that who comes now learns what Redis said, and soon, and that nothing of it
// is in doubt. The others share the client's identity, and a command of theirs that the distress cut
// off may be in doubt only now: then it is asked again. A call that is in doubt is so every time.
func (c *course) requireErrors() {
	c.t.Helper()
	for name, lock := range map[string]func() error{
		"Lock":    c.lockFree,
		"TryLock": func() error { _, err := c.free.TryLock(c.ctx); return err },
	} {
		redistest.Eventually(c.t, "nothing in doubt after "+name, func() bool {
			id := c.locks.ID()
			c.requireError(name, lock)
			return c.locks.ID() == id
		})
	}
}

func (c *course) lockFree() error {
	if !c.Passes {
		return c.free.Lock(c.ctx)
	}
	ctx, cancel := context.WithTimeout(c.ctx, 5*locktest.AWhile) // more than the resends take
	defer cancel()
	err := c.free.Lock(ctx)
	require.ErrorIs(c.t, err, context.DeadlineExceeded, "it has not waited")
	return err
}

func (c *course) requireError(name string, lock func() error) {
	c.t.Helper()
	if c.relay != nil {
		c.relay.ResetLog()
	}
	began := time.Now()
	err := lock()
	require.Less(c.t, time.Since(began), 8*time.Second, name)
	require.Error(c.t, err, name)
	require.Regexp(c.t, c.Contains, err.Error(), name)
	require.ErrorContains(c.t, err, c.free.Name(), name)
	require.NotErrorIs(c.t, err, relock.ErrTimeout, name)
	var reply redis.Error
	require.ErrorAs(c.t, err, &reply, name)
	require.Zero(c.t, c.free.HoldCount(), name)
	// On a command of more than ten words without a password Redis hangs up: its answer may be lost.
	if c.relay != nil && !strings.Contains(c.Contains, "unauthenticated") {
		require.Equal(c.t, c.copies(), c.relay.Count(redistest.Scripts.And(redistest.With(c.free.Name()))), name)
	}
}

// copies is how many of an acquisition are sent.
func (c *course) copies() int {
	switch {
	case c.Refuses == redistest.RefusesEntry:
		return 0
	case c.Means.Resend:
		return relock.TryOptions.Attempts
	case c.Contains == "NOPERM":
		return 2 // once more without the line, which the user may not be allowed to use
	default:
		return 1
	}
}

// requireEffectOnHolds asserts what becomes of a renewal and of an Unlock.
func (c *course) requireEffectOnHolds() {
	c.t.Helper()
	for len(c.renewed) > 0 {
		<-c.renewed
	}
	began := time.Now()
	err := c.ended.Unlock()
	require.Less(c.t, time.Since(began), 5*time.Second)
	require.Zero(c.t, c.ended.HoldCount())
	require.ErrorIs(c.t, c.ended.Unlock(), relock.ErrNotHeld)
	if c.Refuses == redistest.RefusesGrowth {
		require.NoError(c.t, err)
		c.await(c.renewed)
		return
	}
	require.Error(c.t, err)
	require.Regexp(c.t, c.Contains, err.Error())
	require.ErrorContains(c.t, err, "not confirmed by Redis")
	require.Regexp(c.t, c.Contains, c.await(c.failed).Err.Error())
	require.NoError(c.t, c.hold.Err(), "the lease is not over")
}

// requireEffectOnWaiter asserts what becomes of the waiter, and reports whether it waits on.
func (c *course) requireEffectOnWaiter() bool {
	c.t.Helper()
	if c.Refuses > redistest.RefusesScripts {
		return true
	}
	c.awaitSilence()
	require.Empty(c.t, c.waiting, "Redis has answered it before: this passes")
	return true
}

// requireRecovery asserts that all goes on as if nothing had been, and leaves nothing.
func (c *course) requireRecovery(waits bool) {
	c.t.Helper()
	for len(c.renewed) > 0 {
		<-c.renewed
	}
	c.await(c.renewed)
	require.NoError(c.t, c.hold.Err())
	require.Empty(c.t, c.lost)
	redistest.Eventually(c.t, "locked again", func() bool {
		held, err := c.free.TryLock(c.ctx)
		return held && err == nil
	})
	require.Positive(c.t, c.free.FencingToken())
	locktest.RequireUnlocked(c.t, c.free)
	locktest.RequireUnlocked(c.t, c.kept)
	require.NoError(c.t, c.p.Admin.Del(c.ctx, c.key).Err())
	if waits {
		locktest.Publishes(c.t, c.p.Admin, c.key)
		require.NoError(c.t, faultError(c.t, c.waiting))
		require.NoError(c.t, c.other.unlock(c.m))
	}
	c.awaitIdle()
	for _, m := range []*relock.Mutex{c.free, c.kept, c.ended, c.m} {
		for _, key := range m.Keys().Keys {
			require.Zero(c.t, c.p.Admin.Exists(c.ctx, key).Val(), key)
		}
	}
}
