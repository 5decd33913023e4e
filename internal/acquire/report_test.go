package acquire

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

// The table of what the end of a wait of five seconds says.
func TestTheEndOfAWaitSaysWhatItWasFor(t *testing.T) {
	sees := func(s Sighting) func(b *trial, h *hold) {
		return func(b *trial, h *hold) {
			s.At = b.env.Now()
			h.places[0].Gate.Sees(s)
		}
	}
	other := Sighting{Holder: "other:1", Lease: 30 * time.Second}
	both := func(first, then func(b *trial, h *hold)) func(b *trial, h *hold) {
		return func(b *trial, h *hold) { first(b, h); then(b, h) }
	}
	asks := func(b *trial, h *hold) { h.places[0].Gate.Asks(b.env.Now()) }
	fails := both(asks, func(b *trial, h *hold) { h.places[0].Gate.FailsToAsk(b.env.Now(), errMissed) })
	for name, c := range map[string]struct {
		happens func(b *trial, h *hold)
		err     error
		want    string
	}{
		"no one was seen":        {func(*trial, *hold) {}, context.Canceled, "context canceled"},
		"the key is held":        {sees(other), context.Canceled, `context canceled; after 5s it was still held by other:1, with 25s left`},
		"for ever":               {sees(Sighting{Holder: "other:1", Lease: -1}), context.Canceled, `context canceled; after 5s it was still held by other:1, without expiry`},
		"by now it may be free":  {sees(Sighting{Holder: "other:1", Lease: time.Second}), context.Canceled, `context canceled; after 5s it was last held by other:1`},
		"a writer waits":         {sees(Sighting{Holder: "other:1", Lease: 30 * time.Second, Claims: true}), context.Canceled, `context canceled; after 5s it was still kept from readers by other:1, with 25s left`},
		"Redis does not answer":  {asks, context.Canceled, "context canceled; no answer from Redis for 5s"},
		"it did not, and held":   {both(sees(other), asks), context.Canceled, "context canceled; no answer from Redis for 5s; before that it was held by other:1"},
		"requests have failed":   {fails, lockerr.ErrTimeout, "relock: wait timed out; no success with Redis for 5s: connection reset"},
		"they failed, and held":  {both(sees(other), fails), lockerr.ErrTimeout, "relock: wait timed out; no success with Redis for 5s: connection reset; before that it was held by other:1"},
		"the failure is the end": {both(sees(other), fails), errMissed, "connection reset; before that it was held by other:1"},
		"a silence is the end":   {sees(other), lockerr.ErrNoAnswer, "no answer from Redis; before that it was held by other:1"},
		"an error of its own":    {sees(other), lockerr.ErrUpgrade, lockerr.ErrUpgrade.Error()},
		"too few replicas":       {sees(other), fmt.Errorf("%w: %w", lockerr.ErrNotReplicated, context.DeadlineExceeded), "relock: not replicated: context deadline exceeded"},
		"its own hold":           {func(b *trial, h *hold) { sees(Sighting{Holder: "me:1", Hold: h, Lease: time.Minute})(b, h) }, context.Canceled, "context canceled"},
		"one of this client": {func(b *trial, h *hold) {
			sees(Sighting{Holder: "mine:1", Hold: &hold{remaining: 3 * time.Second}, Lease: time.Minute})(b, h)
		}, context.Canceled, "context canceled; after 5s it was still held by mine:1, of this client, with 3s left"},
		"one of this client that ended": {func(b *trial, h *hold) {
			sees(Sighting{Holder: "mine:1", Hold: &hold{remaining: -1}, Lease: time.Minute})(b, h)
		}, context.Canceled, "context canceled; after 5s it was last held by mine:1, of this client"},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "key")
				c.happens(b, h)
				time.Sleep(5 * time.Second)
				err := h.attempt.Explain(h.places, c.err)
				require.EqualError(t, err, c.want)
				require.ErrorIs(t, err, c.err)
			})
		})
	}
}

func TestASuccessNeedsNoExplanation(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		h.places[0].Gate.Sees(Sighting{At: b.env.Now(), Holder: "other:1", Lease: time.Minute})
		require.NoError(t, h.attempt.Explain(h.places, nil))
	})
}

// A hold of this client is what the caller can do something about.
func TestOfSeveralKeysTheOneInTheWayIsNamed(t *testing.T) {
	here := &hold{remaining: time.Second}
	for name, c := range map[string]struct {
		a, b *Sighting // of the keys; the second is seen later
		want string
	}{
		"the one that was told of last": {&Sighting{Holder: "x:1", Lease: time.Minute}, &Sighting{Holder: "y:1", Lease: time.Minute}, `"b" was still held by y:1, with 59s left`},
		"the only one":                  {&Sighting{Holder: "x:1", Lease: time.Minute}, nil, `"a" was still held by x:1, with 58s left`},
		"the one of this client":        {&Sighting{Holder: "x:1", Hold: here}, &Sighting{Holder: "y:1", Lease: time.Minute}, `"a" was still held by x:1, of this client, with 1s left`},
		"not one of it that is held no more": {&Sighting{Holder: "x:1", Hold: &hold{remaining: -1}}, &Sighting{Holder: "y:1", Lease: time.Minute},
			`"b" was still held by y:1, with 59s left`},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "a", "b")
				for i, s := range []*Sighting{c.a, c.b} {
					if s != nil {
						s.At = b.env.Now()
						h.places[i].Gate.Sees(*s)
					}
					time.Sleep(time.Second)
				}
				require.EqualError(t, h.attempt.Explain(h.places, context.Canceled), "context canceled; after 2s "+c.want)
			})
		})
	}
}

// The table of what a gate learns of the end of a request.
func TestAGateLearnsHowARequestHasEnded(t *testing.T) {
	for name, c := range map[string]struct {
		out     redisexec.Outcome
		lasts   time.Duration
		failure error
		outage  bool
	}{
		"it was answered":             {redisexec.Outcome{}, time.Second, nil, false},
		"it was refused for good":     {redisexec.Outcome{Err: errMissed, Permanent: true}, time.Second, nil, false},
		"it has failed":               {redisexec.Outcome{Err: errMissed}, time.Second, errMissed, true},
		"its caller had time":         {redisexec.Outcome{Err: context.Canceled}, time.Second, nil, true},
		"its caller had little time":  {redisexec.Outcome{Err: context.Canceled}, time.Millisecond, nil, false},
		"the time of its wait was up": {redisexec.Outcome{Err: lockerr.ErrTimeout}, time.Second, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "a", "b")
				h.attempt.places = h.places
				h.attempt.requestBegins()
				time.Sleep(c.lasts)
				h.attempt.requestEnded(protocol.Grant{}, c.out)
				for _, p := range h.places {
					_, outage := p.Gate.Learned()
					require.Equal(t, c.failure, outage.Failure)
					require.Equal(t, c.outage, outage.Since(h.attempt.started, b.env.Now()) > 0)
				}
			})
		})
	}
}

func TestTheEndOfACallersPatienceIsTold(t *testing.T) {
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
		require.Equal(t, c.want, ByContext(c.err), "%v", c.err)
	}
}
