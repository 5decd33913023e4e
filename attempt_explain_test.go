package relock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// remains returns a hold that has so long left.
func (b *trial) remains(left time.Duration) *hold {
	h := &hold{phase: held}
	endsAt(&h.lease, b.session.now().After(left))
	return h
}

// The table of what the end of a wait of five seconds says.
func TestWaitError_ReportsWhatWasWaitedFor(t *testing.T) {
	sees := func(s sighting) func(b *trial, h *asker) {
		return func(b *trial, h *asker) {
			s.at = b.session.now()
			h.queueEntries[0].gate.sees(s)
		}
	}
	other := sighting{holder: "other:1", lease: 30 * time.Second}
	both := func(first, then func(b *trial, h *asker)) func(b *trial, h *asker) {
		return func(b *trial, h *asker) { first(b, h); then(b, h) }
	}
	asks := func(b *trial, h *asker) { h.queueEntries[0].gate.asks(b.session.now()) }
	fails := both(asks, func(b *trial, h *asker) { h.queueEntries[0].gate.failsToAsk(b.session.now(), errMissed) })
	for name, c := range map[string]struct {
		happens func(b *trial, h *asker)
		err     error
		want    string
	}{
		"no one was seen":        {func(*trial, *asker) {}, context.Canceled, "context canceled"},
		"the key is held":        {sees(other), context.Canceled, `context canceled; after 5s still held by other:1, lease ends in 25s`},
		"for ever":               {sees(sighting{holder: "other:1", lease: -1}), context.Canceled, `context canceled; after 5s still held by other:1, without expiry`},
		"by now it may be free":  {sees(sighting{holder: "other:1", lease: time.Second}), context.Canceled, `context canceled; after 5s, last known: held by other:1`},
		"a writer waits":         {sees(sighting{holder: "other:1", lease: 30 * time.Second, claims: true}), context.Canceled, `context canceled; after 5s still closed to readers by the waiting writer other:1, lease ends in 25s`},
		"Redis does not answer":  {asks, context.Canceled, "context canceled; no answer from Redis for 5s"},
		"it did not, and held":   {both(sees(other), asks), context.Canceled, "context canceled; no answer from Redis for 5s; last known: held by other:1"},
		"requests have failed":   {fails, lockerr.ErrTimeout, "relock: wait timed out; requests to Redis have been failing for 5s: connection reset"},
		"they failed, and held":  {both(sees(other), fails), lockerr.ErrTimeout, "relock: wait timed out; requests to Redis have been failing for 5s: connection reset; last known: held by other:1"},
		"the failure is the end": {both(sees(other), fails), errMissed, "connection reset; last known: held by other:1"},
		"a silence is the end":   {sees(other), lockerr.ErrNoAnswer, "no answer from Redis; last known: held by other:1"},
		"an error of its own":    {sees(other), lockerr.ErrUpgrade, lockerr.ErrUpgrade.Error()},
		"too few replicas":       {sees(other), fmt.Errorf("%w: %w", lockerr.ErrNotReplicated, context.DeadlineExceeded), "relock: not replicated: context deadline exceeded"},
		"its own hold":           {func(b *trial, h *asker) { sees(sighting{holder: "me:1", hold: h.hold, lease: time.Minute})(b, h) }, context.Canceled, "context canceled"},
		"one of this client": {func(b *trial, h *asker) {
			sees(sighting{holder: "mine:1", hold: b.remains(8 * time.Second), lease: time.Minute})(b, h)
		}, context.Canceled, "context canceled; after 5s still held by mine:1 of this client, lease ends in 3s"},
		"one of this client that ended": {func(b *trial, h *asker) {
			sees(sighting{holder: "mine:1", hold: new(hold), lease: time.Minute})(b, h)
		}, context.Canceled, "context canceled; after 5s, last known: held by mine:1 of this client"},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "key")
				c.happens(b, h)
				time.Sleep(5 * time.Second)
				err := h.explain(c.err)
				require.EqualError(t, err, c.want)
				require.ErrorIs(t, err, c.err)
			})
		})
	}
}

func TestWaitError_SuccessNeedsNoExplanation(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		h.queueEntries[0].gate.sees(sighting{at: b.session.now(), holder: "other:1", lease: time.Minute})
		require.NoError(t, h.explain(nil))
	})
}

// A hold of this client is what the caller can do something about.
func TestWaitError_NamesTheKeyInTheWay(t *testing.T) {
	here, gone := new(hold), new(hold) // one that has three seconds left, and one that has ended
	for name, c := range map[string]struct {
		a, b *sighting // of the keys; the second is seen later
		want string
	}{
		"the one that was reported last": {&sighting{holder: "x:1", lease: time.Minute}, &sighting{holder: "y:1", lease: time.Minute}, `"b" still held by y:1, lease ends in 59s`},
		"the only one":                   {&sighting{holder: "x:1", lease: time.Minute}, nil, `"a" still held by x:1, lease ends in 58s`},
		"the one of this client":         {&sighting{holder: "x:1", hold: here}, &sighting{holder: "y:1", lease: time.Minute}, `"a" still held by x:1 of this client, lease ends in 1s`},
		"not one of it that is held no more": {&sighting{holder: "x:1", hold: gone}, &sighting{holder: "y:1", lease: time.Minute},
			`"b" still held by y:1, lease ends in 59s`},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "a", "b")
				for i, s := range []*sighting{c.a, c.b} {
					if s != nil {
						if s.hold == here {
							s.hold = b.remains(3 * time.Second)
						}
						s.at = b.session.now()
						h.queueEntries[i].gate.sees(*s)
					}
					time.Sleep(time.Second)
				}
				require.EqualError(t, h.explain(context.Canceled), "context canceled; after 2s "+c.want)
			})
		})
	}
}

// The table of what a gate learns of the end of a request.
func TestGate_RecordsHowARequestEnded(t *testing.T) {
	for name, c := range map[string]struct {
		out     redisexec.Outcome
		lasts   time.Duration // the request
		left    time.Duration // of its caller's ctx, after that
		failure error
		outage  bool
	}{
		"it was answered":             {redisexec.Outcome{}, time.Second, time.Minute, nil, false},
		"it was refused for good":     {redisexec.Outcome{Err: errMissed, Permanent: true}, time.Second, time.Minute, nil, false},
		"it has failed":               {redisexec.Outcome{Err: errMissed}, time.Second, time.Minute, errMissed, true},
		"it was not answered":         {redisexec.Outcome{Err: lockerr.ErrNoAnswer}, time.Second, time.Minute, lockerr.ErrNoAnswer, true},
		"it was not answered quickly": {redisexec.Outcome{Err: lockerr.ErrNoAnswer}, time.Second, time.Second / 2, nil, true},
		"its caller had time":         {redisexec.Outcome{Err: context.Canceled}, time.Second, 0, nil, true},
		"its caller had little time":  {redisexec.Outcome{Err: context.Canceled}, time.Millisecond, 0, nil, false},
		"the time of its wait was up": {redisexec.Outcome{Err: lockerr.ErrTimeout}, time.Second, 0, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "a", "b")
				ctx, cancel := context.WithTimeout(context.Background(), c.lasts+c.left)
				defer cancel()
				a := attempt{hold: h.hold, ctx: ctx}
				for _, p := range h.queueEntries {
					p.gate.asks(b.session.now())
				}
				time.Sleep(c.lasts)
				a.recordAnswer(protocol.Grant{}, c.out)
				for _, p := range h.queueEntries {
					_, outage := p.gate.lastKnown(b.session.now())
					require.Equal(t, c.failure, outage.failure)
					require.Equal(t, c.outage, outage.since(h.started, b.session.now()) > 0)
				}
			})
		})
	}
}

func TestWaitError_ReportsTheEndOfTheCallersPatience(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{context.Canceled, true},
		{fmt.Errorf("of Lock: %w", context.DeadlineExceeded), true},
		{lockerr.ErrTimeout, true},
		{lockerr.ErrClosed, false},
		{errors.New("another"), false},
		{nil, false},
	} {
		require.Equal(t, c.want, byContext(c.err), "%v", c.err)
	}
}

// A waiter may have given up while Redis was slow, and no one has asked since: that is no outage of a lock that is held.
func TestTryLock_BehindAHoldOfItsClientNeedsNoAnswer(t *testing.T) {
	begin(t, func(b *trial) {
		holder, other := b.wants("holder", "a"), b.wants("other", "a")
		ended := holder.tries()
		b.granted(holder)
		b.getsAmongOthers(ended, true)
		holder.mu.Lock()
		holder.setPhase(held)
		holder.mu.Unlock()
		holder.queueEntries[0].gate.asks(b.session.now())
		time.Sleep(trialTTL / 2)
		b.getsAmongOthers(other.tries(), false)
		time.Sleep(trialTTL) // it is held no more, as far as is known
		b.getsAmongOthers(other.tries(), false, lockerr.ErrNoAnswer)
	})
}
