package relock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// faultStep is one command in the life of a lock.
type faultStep struct {
	name   string
	script *redisexec.Script
	before func(b *faultBench) // leads up to the command
	do     func(b *faultBench) // sends it, and succeeds in spite of the fault
	levels int                 // that b.me holds then
	life   bool                // the command belongs to a life, whose name its doubt retires
	kinds  []string            // that have it; nil: all
}

var faultSteps = []faultStep{
	{name: "acquire", script: protocol.AcquireScript, before: func(*faultBench) {}, do: lockOnce, levels: 1, life: true},
	{name: "reenter", script: protocol.ReenterScript, before: lockOnce, do: lockOnce, levels: 2, life: true},
	{name: "handoff", script: protocol.RenameScript, before: lockAndQueueFirst, do: handOverToMe, levels: 1, life: true, kinds: []string{"plain", "multi", "write"}},
	{name: "rename", script: protocol.RenameScript, before: lockAndQueue, do: handOverToMe, levels: 1, life: true, kinds: []string{"plain"}},
	{name: "renew", script: protocol.RenewScript, before: lockRenewed, do: awaitRenewal, levels: 1, life: true},
	{name: "release", script: protocol.ReleaseScript, before: lockOnce, do: unlockOnce, life: true},
	{name: "release of an inner level", script: protocol.ReleaseScript, before: lockTwice, do: unlockOnce, levels: 1, life: true},
	{name: "undo", script: protocol.ReleaseScript, before: func(*faultBench) {}, do: abandonAcquire},
	{name: "force", script: protocol.ForceScript, before: lockByRival, do: forceRival},
	{name: "place in the queue", script: protocol.AcquireScript, before: lockByRival, do: waitInOrder, levels: 1, kinds: []string{"fair"}},
	{name: "place given up", script: protocol.ReleaseScript, before: queueBehindRival, do: leaveTheQueue, kinds: []string{"fair"}},
	{name: "poll", script: protocol.LinePollScript, before: queueBehindRival, do: pollUntilServed, levels: 1, kinds: []string{"fair"}},
}

func lockOnce(b *faultBench) {
	b.t.Helper()
	require.NoError(b.t, b.me.lock(b.ctx, b.m))
}

// lockAndQueueFirst is lockAndQueue with a client that reports a hand-over to Redis first.
func lockAndQueueFirst(b *faultBench) {
	b.t.Helper()
	b.asksRedisFirst()
	lockAndQueue(b)
}

// lockRenewed locks through a handle that renews often.
func lockRenewed(b *faultBench) {
	b.t.Helper()
	b.m = b.mutex(relock.WithRenewInterval(100 * time.Millisecond))
	lockOnce(b)
}

func lockTwice(b *faultBench) {
	b.t.Helper()
	lockOnce(b)
	lockOnce(b)
}

func unlockOnce(b *faultBench) {
	b.t.Helper()
	require.NoError(b.t, b.me.unlock(b.m))
}

// lockAndQueue has the other goroutine hold the lock and this one wait for it.
func lockAndQueue(b *faultBench) {
	b.t.Helper()
	require.NoError(b.t, b.other.lock(b.ctx, b.m))
	b.waiting = b.me.start(func() error { return b.m.Lock(b.ctx) })
	b.awaitContended()
}

func handOverToMe(b *faultBench) {
	b.t.Helper()
	require.NoError(b.t, b.other.unlock(b.m))
	require.NoError(b.t, faultError(b.t, b.waiting))
}

// awaitRenewal waits until the renewal that met the rule has been answered after all.
func awaitRenewal(b *faultBench) {
	b.t.Helper()
	b.rule.Wait(b.t)
	for len(b.renewed) > 0 {
		<-b.renewed
	}
	b.await(b.renewed)
}

// abandonAcquire gives a Lock up when Redis has executed it, before the client has the reply, and
// waits until that has been undone.
func abandonAcquire(b *faultBench) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.ctx)
	executed, release := b.stopReply(protocol.AcquireScript)
	locking := b.me.start(func() error { return b.m.Lock(ctx) })
	b.awaitStop(executed)
	cancel()
	err := faultError(b.t, locking)
	release()
	require.ErrorIs(b.t, err, context.Canceled)
	b.rule.Wait(b.t)
	b.awaitIdle()
}

func lockByRival(b *faultBench) {
	b.t.Helper()
	require.NoError(b.t, b.other.lock(b.ctx, b.rival))
}

func forceRival(b *faultBench) {
	b.t.Helper()
	forced, err := b.m.ForceUnlock(b.ctx)
	require.NoError(b.t, err)
	require.True(b.t, forced, "the hold that it saw is gone")
	require.ErrorIs(b.t, b.other.unlock(b.rival), relock.ErrLost)
}

// waitInOrder gets into line behind the rival, and is served.
func waitInOrder(b *faultBench) {
	b.t.Helper()
	id := b.locks.ID()
	queueBehindRival(b)
	require.NotEqual(b.t, id, b.locks.ID(), "the name is in doubt")
	pollUntilServed(b)
}

func queueBehindRival(b *faultBench) {
	b.t.Helper()
	if len(b.fields()) == 0 {
		lockByRival(b)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	b.t.Cleanup(cancel)
	b.giveUp = cancel
	b.waiting = b.me.start(func() error { return b.m.Lock(ctx) })
	b.awaitContended()
	locktest.AwaitFairQueue(b.t, b.server, b.key, 1)
}

// leaveTheQueue gives the wait up, and has the rival unlock when Redis has executed that.
func leaveTheQueue(b *faultBench) {
	b.t.Helper()
	b.giveUp()
	require.ErrorIs(b.t, faultError(b.t, b.waiting), context.Canceled)
	b.rule.Wait(b.t)
	locktest.AwaitFairQueue(b.t, b.server, b.key, 0)
	require.NoError(b.t, b.other.unlock(b.rival))
	b.awaitIdle()
}

// pollUntilServed has a poll meet the rule, if there is one for it, before the rival unlocks.
func pollUntilServed(b *faultBench) {
	b.t.Helper()
	if b.rule != nil {
		b.rule.Wait(b.t)
	}
	require.NoError(b.t, b.other.unlock(b.rival))
	require.NoError(b.t, faultError(b.t, b.waiting))
}

// stepsOf are the steps in the life of a lock of that kind.
func stepsOf(kind lockKind) []faultStep {
	var steps []faultStep
	for _, s := range faultSteps {
		if s.kinds == nil || slices.Contains(s.kinds, kind.name) {
			steps = append(steps, s)
		}
	}
	return steps
}

// eachFaultStep runs fn as a subtest for each step on each backend.
func eachFaultStep(t *testing.T, fn func(t *testing.T, b *faultBench, s faultStep), opts ...relock.ClientOption) {
	t.Parallel()
	for _, kind := range lockKinds {
		for _, s := range stepsOf(kind) {
			t.Run(kind.name+" "+s.name, func(t *testing.T) {
				t.Parallel()
				redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
					fn(t, newFaultBenchOf(t, kind, backend.Addr, opts...), s)
				})
			})
		}
	}
}

// run leads up to the step and takes it under the rule that install makes.
func (s faultStep) run(b *faultBench, install func(redistest.Match) *redistest.Rule) {
	b.t.Helper()
	s.before(b)
	id := b.name()
	b.rule = install(b.runs(s.script))
	s.do(b)
	b.rule.Wait(b.t)
	if s.life {
		require.NotEqual(b.t, id, b.locks.ID(), "the name is in doubt")
	}
}

// requireHeld asserts that the owner, and nobody else, has m with so many levels.
func (b *faultBench) requireHeld(owner *faultOwner, m *relock.Mutex, levels int, hold context.Context) {
	b.t.Helper()
	require.Equal(b.t, levels, owner.levels(m))
	require.NoError(b.t, context.Cause(hold))
	b.requireField(owner, levels)
	got, err := b.otherThan(m).TryLock(b.ctx)
	require.NoError(b.t, err)
	require.False(b.t, got, "two holders")
}

// otherThan returns a handle of the client that is not m's.
func (b *faultBench) otherThan(m *relock.Mutex) *relock.Mutex {
	if m == b.rival {
		return b.m
	}
	return b.rival
}

// unwind unlocks n levels of m.
func (b *faultBench) unwind(owner *faultOwner, m *relock.Mutex, n int, hold context.Context) {
	b.t.Helper()
	for range n {
		require.NoError(b.t, owner.unlock(m))
	}
	if n > 0 {
		require.ErrorIs(b.t, context.Cause(hold), relock.ErrReleased)
	}
}

// A command that was executed and whose reply is lost is sent again, to no effect.
func testLostReply(t *testing.T, install func(*redistest.Relay, redistest.Match) *redistest.Rule, opts ...relock.ClientOption) {
	eachFaultStep(t, func(t *testing.T, b *faultBench, s faultStep) {
		s.run(b, func(match redistest.Match) *redistest.Rule { return install(b.relay, match) })
		require.GreaterOrEqual(t, b.relay.Executed(b.runs(s.script)), 2, "sent again")
		hold := b.me.holdOf(b.ctx, b.m)
		if s.levels > 0 {
			b.requireHeld(b.me, b.m, s.levels, hold)
		}
		b.unwind(b.me, b.m, s.levels, hold)
		b.requireGone()
		b.awaitIdle()
	}, opts...)
}

func TestLostReply_WithItsConnectionChangesNothing(t *testing.T) {
	testLostReply(t, (*redistest.Relay).DropReply)
}

func TestLostReply_InSilenceChangesNothing(t *testing.T) {
	testLostReply(t, (*redistest.Relay).LoseReply, hasty)
}

// faultMoments are when a late copy of a command arrives.
var faultMoments = []struct {
	name  string
	reach func(b *faultBench, levels int) (owner *faultOwner, m *relock.Mutex, now int)
}{
	{"in the same hold", func(b *faultBench, levels int) (*faultOwner, *relock.Mutex, int) {
		return b.me, b.m, levels
	}},
	{"after the unlock", func(b *faultBench, levels int) (*faultOwner, *relock.Mutex, int) {
		b.unwind(b.me, b.m, levels, b.me.holdOf(b.ctx, b.m))
		return b.me, b.m, 0
	}},
	{"in the next hold", func(b *faultBench, levels int) (*faultOwner, *relock.Mutex, int) {
		b.unwind(b.me, b.m, levels, b.me.holdOf(b.ctx, b.m))
		lockOnce(b)
		return b.me, b.m, 1
	}},
	{"in the next hold, re-entered", func(b *faultBench, levels int) (*faultOwner, *relock.Mutex, int) {
		b.unwind(b.me, b.m, levels, b.me.holdOf(b.ctx, b.m))
		lockTwice(b)
		return b.me, b.m, 2
	}},
	{"in the next hold of another goroutine", func(b *faultBench, levels int) (*faultOwner, *relock.Mutex, int) {
		b.unwind(b.me, b.m, levels, b.me.holdOf(b.ctx, b.m))
		require.NoError(b.t, b.other.lock(b.ctx, b.m))
		return b.other, b.m, 1
	}},
	{"in a hold of another client", func(b *faultBench, levels int) (*faultOwner, *relock.Mutex, int) {
		b.unwind(b.me, b.m, levels, b.me.holdOf(b.ctx, b.m))
		require.NoError(b.t, b.other.lock(b.ctx, b.rival))
		return b.other, b.rival, 1
	}},
}

// testLateCopy has the first copy of each step's command held back until later.
func testLateCopy(t *testing.T, moments []int, install func(*redistest.Relay, redistest.Match) *redistest.Held, opts ...relock.ClientOption) {
	for _, i := range moments {
		moment := faultMoments[i]
		t.Run(moment.name, func(t *testing.T) {
			eachFaultStep(t, func(t *testing.T, b *faultBench, s faultStep) {
				var held *redistest.Held
				s.run(b, func(match redistest.Match) *redistest.Rule {
					held = install(b.relay, match)
					return held.Rule
				})
				owner, m, levels := moment.reach(b, s.levels)
				hold := owner.holdOf(b.ctx, m)
				before := b.fields()
				b.deliver(held)
				if levels == 0 {
					b.requireFreeAfter(s.script)
					return
				}
				if s.script == protocol.AcquireScript && m == b.m {
					b.dismiss(before)
				}
				require.Equal(t, before, b.fields(), "the late copy changed the hold")
				b.requireHeld(owner, m, levels, hold)
				b.unwind(owner, m, levels, hold)
				b.requireFreeAfter(s.script)
			}, opts...)
		})
	}
}

// dismiss ends what a late copy has acquired beside those who had the lock before: a reader
// of a name that is given up, whose lease would be over in time. Other kinds let nobody in. The library
// may have released it meanwhile.
func (b *faultBench) dismiss(before map[string]string) {
	b.t.Helper()
	if b.kind.against == nil {
		return
	}
	for field := range b.fields() {
		if _, there := before[field]; !there {
			_, out := b.m.Protocol().Release(b.ctx, relock.TryOptions, b.m.Keys(), field, []int{0})
			require.NoError(b.t, out.Err)
			require.NotContains(b.t, b.fields(), field)
		}
	}
}

// deliver has the server execute the copy that was held back.
func (b *faultBench) deliver(held *redistest.Held) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, faultPatience)
	defer cancel()
	reply, err := held.Deliver(ctx)
	require.NoError(b.t, err)
	require.False(b.t, strings.HasPrefix(reply, "-"), reply)
}

// requireFreeAfter asserts that a late copy has left nothing, or for one TTL at most if it
// is one of an acquisition.
func (b *faultBench) requireFreeAfter(s *redisexec.Script) {
	b.t.Helper()
	if s == protocol.AcquireScript {
		b.awaitGone(faultTTL)
	}
	b.requireGone()
	b.awaitIdle()
}

func TestDelayedCopy_AfterACutConnectionDoesNoHarm(t *testing.T) {
	t.Parallel()
	testLateCopy(t, []int{0, 1, 2, 3, 4, 5}, (*redistest.Relay).HoldBack)
}

func TestDelayedCopy_AfterASilentConnectionDoesNoHarm(t *testing.T) {
	t.Parallel()
	testLateCopy(t, []int{2}, (*redistest.Relay).HoldBackSilently, hasty)
}

// Within one hold a late copy can put an old count back. The next command of the hold says
// what is right again.
func TestDelayedCopy_OldCountIsCorrectedByTheNextCommand(t *testing.T) {
	t.Parallel()
	t.Run("re-entry", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
			b := newFaultBench(t, backend.Addr)
			lockOnce(b)
			held := b.relay.HoldBack(b.runs(protocol.ReenterScript))
			lockOnce(b)
			unlockOnce(b)
			b.requireField(b.me, 1)
			b.deliver(held) // the count is 2 again
			hold := b.me.holdOf(b.ctx, b.m)
			require.NoError(t, context.Cause(hold))
			b.requireRefused()
			lockOnce(b)
			b.requireHeld(b.me, b.m, 2, hold)
			b.unwind(b.me, b.m, 2, hold)
			b.requireGone()
		})
	})
	t.Run("release of an inner level", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
			b := newFaultBench(t, backend.Addr)
			lockTwice(b)
			held := b.relay.HoldBack(b.runs(protocol.ReleaseScript))
			unlockOnce(b)
			lockOnce(b)
			b.requireField(b.me, 2)
			b.deliver(held) // the count is 1 again
			hold := b.me.holdOf(b.ctx, b.m)
			b.requireRefused()
			lockOnce(b)
			b.requireHeld(b.me, b.m, 3, hold)
			b.unwind(b.me, b.m, 3, hold)
			b.requireGone()
		})
	})
}

// The one who handed the lock over may get it again: a late copy of the hand-over must not
// take it from that owner.
func TestDelayedCopy_OfAHandOverLeavesTheNextHoldOfTheSender(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		lockAndQueueFirst(b)
		held := b.relay.HoldBack(b.runs(protocol.RenameScript))
		handOverToMe(b)
		unlockOnce(b)
		require.NoError(t, b.other.lock(b.ctx, b.m))
		hold := b.other.holdOf(b.ctx, b.m)
		before := b.fields()
		b.deliver(held)
		require.Equal(t, before, b.fields())
		b.requireHeld(b.other, b.m, 1, hold)
		b.unwind(b.other, b.m, 1, hold)
		b.requireGone()
	})
}

// A hold that was forced open ended by another owner's command. Late copies of it may
// follow: whoever learns of it locks under another name.
func TestDelayedCopy_OfAForceLeavesTheNextHoldOfTheGoroutine(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newFaultBench(t, backend.Addr)
		lockByRival(b)
		held := b.relay.HoldBack(b.runs(protocol.ForceScript))
		forceRival(b)
		require.NoError(t, b.other.lock(b.ctx, b.rival))
		hold := b.other.holdOf(b.ctx, b.rival)
		b.deliver(held)
		b.requireHeld(b.other, b.rival, 1, hold)
		b.unwind(b.other, b.rival, 1, hold)
		b.requireGone()
	})
}

// await returns the next event.
func (b *faultBench) await(events <-chan relock.Event) relock.Event {
	b.t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(faultPatience):
		require.FailNow(b.t, "no such event")
		return relock.Event{}
	}
}
