package lease

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
)

// at is the instant so long after the beginning of a test, on both clocks.
func at(d time.Duration) clock.Instant { return clock.Instant{}.After(d) }

// The table of what moves a deadline, and where to. The lease is granted at 0 for 10 s: less
// the margin of 1 %, that is until 9.9 s.
func TestLease_DeadlineIsThatOfTheLatestAnsweredRequest(t *testing.T) {
	const asked = 10 * time.Second
	for name, c := range map[string]struct {
		happens  func(l *Lease)
		deadline time.Duration
	}{
		"nothing":                               {func(*Lease) {}, 9900 * time.Millisecond},
		"a renewal":                             {func(l *Lease) { l.Prove(at(3*time.Second), asked, asked) }, 12900 * time.Millisecond},
		"a renewal whose answer came late":      {func(l *Lease) { l.Prove(at(-time.Second), asked, asked) }, 9900 * time.Millisecond},
		"a re-entry for longer":                 {func(l *Lease) { l.Prove(at(time.Second), time.Minute, time.Minute) }, 60400 * time.Millisecond},
		"a re-entry for less":                   {func(l *Lease) { l.Prove(at(time.Second), time.Second, asked) }, 9900 * time.Millisecond},
		"a lease that was asked for":            {func(l *Lease) { l.Lengthen(time.Hour) }, 9900 * time.Millisecond},
		"a wish to raise it":                    {func(l *Lease) { l.RaiseSoon(at(time.Second)) }, 9900 * time.Millisecond},
		"another grant":                         {func(l *Lease) { l.Grant(at(time.Minute), asked) }, 69900 * time.Millisecond},
		"a renewal, and the answer to an older": {func(l *Lease) { l.Prove(at(4*time.Second), asked, asked); l.Prove(at(2*time.Second), asked, asked) }, 13900 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			var l Lease
			l.Grant(at(0), asked)
			c.happens(&l)
			require.Equal(t, at(c.deadline), l.deadline)
			require.Equal(t, c.deadline-5*time.Second, l.Left(at(5*time.Second)))
		})
	}
}

func TestLease_ReportsWhatIsDueNext(t *testing.T) {
	const asked, interval = 10 * time.Second, 3 * time.Second
	for name, c := range map[string]struct {
		happens  func(l *Lease)
		now      time.Duration
		interval time.Duration
		wait     time.Duration
		renew    bool
	}{
		"a renewal in an interval":                {func(*Lease) {}, 0, interval, interval, true},
		"a renewal that is overdue":               {func(*Lease) {}, 4 * time.Second, interval, -time.Second, true},
		"nothing until the end, if not wanted":    {func(*Lease) {}, 4 * time.Second, 0, 5900 * time.Millisecond, false},
		"the end":                                 {func(*Lease) {}, 9900 * time.Millisecond, interval, 0, false},
		"a renewal an interval after the last":    {func(l *Lease) { l.Prove(at(3*time.Second), asked, asked) }, 3 * time.Second, interval, interval, true},
		"a renewal a little before, with others":  {func(l *Lease) { l.Prove(at(2*time.Second), asked, asked) }, 2 * time.Second, interval, interval - 200*time.Millisecond, true},
		"one soon, where Java shortens the lease": {func(l *Lease) { l.Note(1500*time.Millisecond, at(0)) }, 0, interval, time.Second / 2, true},
		"no later for a re-entry for less":        {func(l *Lease) { l.Prove(at(2*time.Second), time.Second, asked) }, 2 * time.Second, interval, time.Second, true},
		"the end, before a later renewal":         {func(*Lease) {}, 9 * time.Second, time.Hour, 900 * time.Millisecond, true},
		"soon, to raise a short lease":            {func(l *Lease) { l.RaiseSoon(at(1900 * time.Millisecond)) }, 1900 * time.Millisecond, 0, 500 * time.Millisecond, true},
		"nothing more, when it was raised": {func(l *Lease) {
			l.RaiseSoon(at(0))
			l.Prove(at(time.Second), asked, asked)
		}, time.Second, 0, 9900 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			var l Lease
			l.Grant(at(0), asked)
			c.happens(&l)
			wait, renew := l.Next(at(c.now), c.interval)
			require.Equal(t, c.wait, wait)
			require.Equal(t, c.renew, renew)
		})
	}
}

// Whatever is answered in whichever order, the deadline never moves back within one grant,
// and is never beyond the lease of a request that was answered, less the margin.
func TestLease_DeadlineMovesNeitherBackNorBeyondAnAnsweredRequest(t *testing.T) {
	for range 2000 {
		var l Lease
		random := func(limit time.Duration) time.Duration { return rand.N(limit) }
		sent, lasts := random(time.Minute), 100*time.Millisecond+random(time.Minute)
		l.Grant(at(sent), lasts)
		proven := sent + lasts - clock.Margin(lasts)
		for range 20 {
			before := l.deadline
			switch rand.IntN(4) {
			case 0:
				l.Lengthen(random(time.Hour))
			case 1:
				l.RaiseSoon(at(random(time.Hour)))
			default:
				sent, lasts = random(2*time.Minute), 100*time.Millisecond+random(time.Minute)
				l.Prove(at(sent), lasts, 100*time.Millisecond+random(time.Minute))
				proven = max(proven, sent+lasts-clock.Margin(lasts))
			}
			require.GreaterOrEqual(t, l.deadline.Mono, before.Mono)
			require.Equal(t, at(proven), l.deadline)
		}
	}
}

// The wall clock was set back between two requests: the deadline is the one of one request, on
// both clocks, or a suspension of the machine could go unnoticed.
func TestLease_DeadlineIsOfOneRequestOnBothClocks(t *testing.T) {
	var l Lease
	l.Grant(clock.Instant{Mono: 0, Wall: time.Hour}, 10*time.Second)
	l.Prove(clock.Instant{Mono: time.Second, Wall: time.Minute}, 10*time.Second, 10*time.Second)
	require.Equal(t, clock.Instant{Mono: 10900 * time.Millisecond, Wall: time.Minute + 9900*time.Millisecond}, l.deadline)
}

// A lease that was found to be shorter than it was made is minded for as long as it may be Java's.
func TestLease_ReaderRenewsAtAThirdOfTheLeaseItFinds(t *testing.T) {
	now := clock.System()
	after := func(d time.Duration) clock.Instant { return now.After(d) }
	const interval = 10 * time.Second
	for _, c := range []struct {
		found, since, want time.Duration
	}{
		{0, 0, interval},
		{3 * time.Second, 0, time.Second},
		{3 * time.Second, 5 * time.Second, time.Second},
		{3 * time.Second, 7 * time.Second, interval},
		{19 * time.Second, 0, 19 * time.Second / 3},
		{20 * time.Second, 0, interval}, // it is minded by what is done anyway
		{time.Millisecond, 0, MinRenewInterval},
	} {
		var l Lease
		l.Note(c.found, now)
		l.Note(0, after(c.since))
		require.Equal(t, c.want, l.pressed(interval, after(c.since)), "%+v", c)
	}
}

func TestLease_RenewalsAreDueAtSharedPointsAndNeverLate(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	for _, interval := range []time.Duration{10 * time.Millisecond, 333 * time.Millisecond, 10 * time.Second, century / 3} {
		for _, at := range []time.Duration{0, 1, time.Microsecond, 12345678901234567, -1, -12345678901234567} {
			points := map[time.Duration]bool{}
			for i := range time.Duration(1000) {
				renewed := clock.Instant{Mono: at + interval*i/1000, Wall: interval + at*2}
				due := RenewalDue(renewed, interval)
				wait := due.Since(renewed)
				require.LessOrEqual(t, wait, interval)
				require.Greater(t, wait, interval*9/10-1)
				require.Equal(t, wait, due.Wall-renewed.Wall, "both clocks")
				points[due.Mono] = true
				late := due.After(interval / 100) // as timers and round trips are
				require.Equal(t, due.Mono+interval/10*10, RenewalDue(late, interval/10*10).Mono, "the same point for good")
			}
			require.LessOrEqual(t, len(points), 11)
		}
	}
}
