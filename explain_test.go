package relock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// silentWait is a waiter that was told of a stranger before Redis went away.
func silentWait(t *testing.T, away func(relay *redistest.Relay)) (m *Mutex, waiting <-chan error, giveUp context.CancelFunc) {
	t.Helper()
	backend := redistest.Redis(t)
	relay, rdb := relayedTo(t, backend)
	key := redistest.Key(t)
	heldByStranger(t, backend.Client(t), key, time.Minute)
	t.Cleanup(func() { comesBack(relay) })
	ctx, giveUp := context.WithCancel(t.Context())
	m = locksOn(t, rdb).Mutex(key, WithSafetyPoll(200*time.Millisecond))
	waiting = newActor(t).lock(ctx, m)
	awaitTold(t, m, "stranger:1")
	away(relay)
	return m, waiting, giveUp
}

// comesBack ends what keeps Redis from answering: clients close sooner then.
func comesBack(relay *redistest.Relay) {
	relay.BlackHole(false)
	_ = relay.Refuse(false)
	relay.Cut()
}

// learnedOf returns what the client of m has learned of its key.
func learnedOf(m *Mutex) (seen acquire.Sighting, out gate.Outage) {
	if g := m.session.registry.Gate(gateOf(m.target, 0)); g != nil {
		seen, out = g.Learned()
	}
	return seen, out
}

// awaitTold waits until the client of m was told that it is held by holder, or, if that is empty, by
// anybody.
func awaitTold(t *testing.T, m *Mutex, holder string) {
	t.Helper()
	eventually(t, "told who holds it", func() bool {
		seen, _ := learnedOf(m)
		return seen.Holder != "" && (holder == "" || seen.Holder == holder)
	})
}

func TestAWaitThatEndsDuringAnOutageSaysSo(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	m, waiting, giveUp := silentWait(t, func(relay *redistest.Relay) {
		require.NoError(t, relay.Refuse(true))
		relay.Cut()
	})
	eventually(t, "a request has failed", func() bool {
		_, out := learnedOf(m)
		return out.Failure != nil
	})
	giveUp()
	err := outcomeOf(t, waiting)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "no success with Redis for")
	require.ErrorContains(t, err, "before that it was held by stranger:1")
	require.NotContains(t, err.Error(), "still held")
}

func TestAWaitThatEndsDuringASilenceSaysSo(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	m, waiting, giveUp := silentWait(t, func(relay *redistest.Relay) { relay.BlackHole(true) })
	eventually(t, "a request is not answered", func() bool {
		_, out := learnedOf(m)
		return out.Asked != (clock.Instant{}) && m.session.now().Since(out.Asked) > 2*redisexec.MinCopyPatience
	})
	giveUp()
	err := outcomeOf(t, waiting)
	require.ErrorContains(t, err, "from Redis")
	require.ErrorContains(t, err, "before that it was held by stranger:1")
}

func TestALockWithoutAnyAnswerSaysSo(t *testing.T) {
	t.Parallel()
	relay, rdb := relayedTo(t, redistest.Redis(t))
	c := locksOn(t, rdb)
	t.Cleanup(func() { comesBack(relay) })
	relay.BlackHole(true)
	for what, opts := range map[string][]MutexOption{"a goroutine": nil, "an owner": {WithOwner("job")}} {
		m := c.Mutex(redistest.Key(t), append(opts, WithWaitTimeout(100*time.Millisecond))...)
		err := m.Lock(t.Context())
		require.ErrorIs(t, err, ErrTimeout, what)
		require.ErrorContains(t, err, "no answer from Redis for", what)
	}
}

func TestALossSaysWhetherItWasMeant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		opt  MutexOption
		says string
	}{
		{WithoutRenewal(), "the lease ran out, and was not to be renewed (WithoutRenewal)"},
		{WithMaxHold(200 * time.Millisecond), "the lease ran out, and was not to be renewed any more (WithMaxHold)"},
	} {
		m := locksOn(t, redistest.Redis(t).Client(t)).Mutex(redistest.Key(t), WithTTL(200*time.Millisecond), c.opt)
		requireLocked(t, m)
		ctx := m.Context(t.Context())
		receives(t, ctx.Done())
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.ErrorContains(t, context.Cause(ctx), c.says)
		require.ErrorIs(t, m.Unlock(), ErrLost)
	}
}

func TestALossSaysWhyTheLeaseWasNotRenewed(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	relay, rdb := relayedTo(t, redistest.Redis(t))
	renewFailed := make(chan struct{}, 100)
	m := locksOn(t, rdb).Mutex(redistest.Key(t), WithTTL(time.Second), WithHooks(Hooks{RenewFailed: func(Event) { renewFailed <- struct{}{} }}))
	requireLocked(t, m)
	ctx := m.Context(t.Context())
	t.Cleanup(func() { comesBack(relay) })
	require.NoError(t, relay.Refuse(true))
	relay.Cut()
	receives(t, renewFailed)
	receives(t, ctx.Done())
	require.ErrorContains(t, context.Cause(ctx), "the lease ran out before it was renewed: ")
	require.ErrorIs(t, m.Unlock(), ErrLost)
}

func TestAWriterWhoOnlyWaitsIsNotSaidToHoldTheLock(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		claim := b.claims("1 waiting:7:write")
		ctx, cancel := context.WithTimeout(b.t.Context(), 200*time.Millisecond)
		defer cancel()
		err := outcomeOf(b.t, b.me.lock(ctx, toRead(b.mutex())))
		require.ErrorIs(b.t, err, context.DeadlineExceeded)
		require.ErrorContains(b.t, err, "was still kept from readers by waiting:7:write, with")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), claim).Err())
	})
}
