package relock

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

func TestGate_KeepsTheLatestReport(t *testing.T) {
	g, now := newGate()
	seen, out := g.lastKnown(now)
	require.Equal(t, sighting{}, seen)
	require.Equal(t, outage{}, out)
	for _, reported := range []sighting{
		{at: now, holder: "a", lease: time.Second},
		{at: now.After(time.Second), holder: "b", hold: new(hold), claims: true},
	} {
		g.sees(reported)
		seen, _ = g.lastKnown(now)
		require.Equal(t, reported, seen)
	}
}

// The table of what is known of an outage after what has happened, each a second after the one before.
func TestGate_OutageBeginsWithTheFirstUnansweredRequest(t *testing.T) {
	g, start := newGate()
	second := func(n int) clock.Instant { return start.After(time.Duration(n) * time.Second) }
	type happening = func(g *gate, now clock.Instant)
	asks := func(g *gate, now clock.Instant) { g.asks(now) }
	answered := func(g *gate, _ clock.Instant) { g.answered() }
	fails := func(err error) happening {
		return func(g *gate, now clock.Instant) { g.failsToAsk(now, err) }
	}
	unanswered := func(g *gate, now clock.Instant) { g.unanswered(now) }
	stops := func(g *gate, now clock.Instant) { g.stopsAsking(now) }
	atOnce := func(g *gate, now clock.Instant) {
		g.asks(now)
		g.stopsAsking(now.After(redisexec.MinCopyPatience - 1))
	}
	pass := func(*gate, clock.Instant) {}
	nextGoesOn := func(g *gate, now clock.Instant) {
		g.stopsAsking(now)
		g.asks(now.After(redisexec.MinCopyPatience))
	}
	atOnceAfterAFailure := func(g *gate, now clock.Instant) {
		g.failsToAsk(now, errFirst)
		atOnce(g, now)
	}
	for name, c := range map[string]struct {
		happens []happening
		want    outage
	}{
		"nothing was asked":                        {nil, outage{}},
		"a request is under way":                   {[]happening{asks}, outage{asked: second(1)}},
		"two are":                                  {[]happening{asks, asks}, outage{asked: second(1)}},
		"one was answered":                         {[]happening{asks, answered}, outage{}},
		"one was answered, and the next is not":    {[]happening{asks, answered, asks}, outage{asked: second(3)}},
		"one has failed":                           {[]happening{asks, fails(errFirst)}, outage{asked: second(1), failure: errFirst}},
		"two have failed":                          {[]happening{asks, fails(errFirst), asks, fails(errLast)}, outage{asked: second(1), failure: errLast}},
		"one has failed that was asked before":     {[]happening{asks, answered, fails(errFirst)}, outage{asked: second(3), failure: errFirst}},
		"an answer after failures":                 {[]happening{asks, fails(errFirst), unanswered, answered}, outage{}},
		"failures count from the first":            {[]happening{asks, fails(errFirst), unanswered, unanswered}, outage{asked: second(1), failed: second(3), failure: errFirst}},
		"a caller that had little time":            {[]happening{atOnce}, outage{}},
		"a caller that had time":                   {[]happening{asks, stops}, outage{asked: second(1), left: second(2)}},
		"a caller with little time after failures": {[]happening{atOnceAfterAFailure}, outage{asked: second(1), left: second(1).After(redisexec.MinCopyPatience - 1), failure: errFirst}},
		"the next one goes on at once":             {[]happening{asks, nextGoesOn}, outage{asked: second(1)}},
		"nobody went on":                           {[]happening{asks, stops, pass}, outage{}},
		"nobody went on after a failure":           {[]happening{asks, fails(errFirst), stops, pass}, outage{}},
		"another one comes later":                  {[]happening{asks, stops, asks}, outage{asked: second(3)}},
		"one that never asked has left":            {[]happening{stops}, outage{}},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ = newGate()
			for i, happens := range c.happens {
				happens(g, second(i+1))
			}
			_, out := g.lastKnown(second(len(c.happens)))
			require.Equal(t, c.want, out)
		})
	}
}

func TestGate_OutageCountsFromTheFirstFailure(t *testing.T) {
	g, start := newGate()
	require.Equal(t, start, g.unanswered(start))
	require.Equal(t, start, g.unanswered(start.After(time.Second)))
	g.answered()
	require.Equal(t, start.After(time.Minute), g.unanswered(start.After(time.Minute)))
}

func TestGate_OutageCountsForAWaiterSinceItsArrival(t *testing.T) {
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
		o := outage{asked: c.asked}
		require.Equal(t, c.want, o.since(start, now), name)
	}
}
