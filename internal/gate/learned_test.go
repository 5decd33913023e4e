package gate

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redisexec"
)

var (
	errFirst = errors.New("first")
	errLast  = errors.New("last")
)

func TestAGateKnowsWhatWasLastTold(t *testing.T) {
	g, now := newGate()
	seen, outage := g.Learned()
	require.Equal(t, Sighting[*noHold]{}, seen)
	require.Equal(t, Outage{}, outage)
	for _, told := range []Sighting[*noHold]{
		{At: now, Holder: "a", Lease: time.Second},
		{At: now.After(time.Second), Holder: "b", Hold: new(noHold), Claims: true},
	} {
		g.Sees(told)
		seen, _ = g.Learned()
		require.Equal(t, told, seen)
	}
	require.False(t, g.Alone())
	for _, alone := range []bool{true, false} {
		g.SetAlone(alone)
		require.Equal(t, alone, g.Alone())
	}
}

// The table of what is known of an outage after what has happened, each a second after the one before.
func TestAnOutageLastsFromTheFirstRequestThatWasNotAnswered(t *testing.T) {
	g, start := newGate()
	second := func(n int) clock.Instant { return start.After(time.Duration(n) * time.Second) }
	type happening = func(g *Gate[*noHold], now clock.Instant)
	asks := func(g *Gate[*noHold], now clock.Instant) { g.Asks(now) }
	heard := func(g *Gate[*noHold], _ clock.Instant) { g.Heard() }
	fails := func(err error) happening {
		return func(g *Gate[*noHold], now clock.Instant) { g.FailsToAsk(now, err) }
	}
	unheard := func(g *Gate[*noHold], now clock.Instant) { g.Unheard(now) }
	stops := func(g *Gate[*noHold], now clock.Instant) { g.StopsAsking(now) }
	atOnce := func(g *Gate[*noHold], now clock.Instant) {
		g.Asks(now)
		g.StopsAsking(now.After(redisexec.MinCopyPatience - 1))
	}
	atOnceAfterAFailure := func(g *Gate[*noHold], now clock.Instant) {
		g.FailsToAsk(now, errFirst)
		atOnce(g, now)
	}
	for name, c := range map[string]struct {
		happens []happening
		want    Outage
	}{
		"nothing was asked":                        {nil, Outage{}},
		"a request is under way":                   {[]happening{asks}, Outage{Asked: second(1)}},
		"two are":                                  {[]happening{asks, asks}, Outage{Asked: second(1)}},
		"one was answered":                         {[]happening{asks, heard}, Outage{}},
		"one was answered, and the next is not":    {[]happening{asks, heard, asks}, Outage{Asked: second(3)}},
		"one has failed":                           {[]happening{asks, fails(errFirst)}, Outage{Asked: second(1), Failure: errFirst}},
		"two have failed":                          {[]happening{asks, fails(errFirst), asks, fails(errLast)}, Outage{Asked: second(1), Failure: errLast}},
		"one has failed that was asked before":     {[]happening{asks, heard, fails(errFirst)}, Outage{Asked: second(3), Failure: errFirst}},
		"an answer after failures":                 {[]happening{asks, fails(errFirst), unheard, heard}, Outage{}},
		"failures count from the first":            {[]happening{asks, fails(errFirst), unheard, unheard}, Outage{Asked: second(1), Failed: second(3), Failure: errFirst}},
		"a caller that had little time":            {[]happening{atOnce}, Outage{}},
		"a caller that had time":                   {[]happening{asks, stops}, Outage{Asked: second(1)}},
		"a caller with little time after failures": {[]happening{atOnceAfterAFailure}, Outage{Asked: second(1), Failure: errFirst}},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ = newGate()
			for i, happens := range c.happens {
				happens(g, second(i+1))
			}
			_, outage := g.Learned()
			require.Equal(t, c.want, outage)
		})
	}
}

func TestTheFirstFailureIsWhatAnOutageIsCountedFrom(t *testing.T) {
	g, start := newGate()
	require.Equal(t, start, g.Unheard(start))
	require.Equal(t, start, g.Unheard(start.After(time.Second)))
	g.Heard()
	require.Equal(t, start.After(time.Minute), g.Unheard(start.After(time.Minute)))
}

func TestAnOutageCountsForAWaiterSinceItCame(t *testing.T) {
	_, start := newGate()
	now := start.After(time.Minute)
	for name, c := range map[string]struct {
		asked clock.Instant
		want  time.Duration
	}{
		"Redis answers":               {clock.Instant{}, 0},
		"it began before":             {start.After(-30 * time.Minute), time.Minute},
		"it began after":              {start.After(20 * time.Second), 40 * time.Second},
		"it began at the same moment": {start, time.Minute},
	} {
		o := Outage{Asked: c.asked}
		require.Equal(t, c.want, o.Since(start, now), name)
	}
}
