package scale

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // it logs every connection that an outage breaks
	os.Exit(m.Run())
}

// inBubble returns what a measurement finds.
func inBubble[T any](t *testing.T, run func() (T, error)) (res T) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		res, err = run()
		require.NoError(t, err)
	})
	return res
}

func TestScale_HoldTakesTwoCommandsHoweverManyProcessesWait(t *testing.T) {
	f := inBubble(t, Fleet{Processes: 100, Waiters: 1, RoundTrip: 200 * time.Microsecond, Hold: time.Millisecond, Rounds: 4}.Run)
	require.InDelta(t, 2, f.Commands, 0.1)
	require.GreaterOrEqual(t, f.Jain, 0.98)
	require.LessOrEqual(t, f.Max, 2*f.Mean)
	require.LessOrEqual(t, f.Idle, 0.7, "commands per second of a process that waits")
	require.LessOrEqual(t, math.Round(f.Arrival), 15.0, "commands of a process until it waits, with three connections")
}

func TestScale_WaitingGoroutinesCostRedisNothing(t *testing.T) {
	f := inBubble(t, Fleet{Processes: 4, Waiters: 200, RoundTrip: time.Millisecond, Hold: time.Millisecond, Rounds: 1}.Run)
	require.LessOrEqual(t, f.Idle, 0.7, "commands per second of a process")
	require.LessOrEqual(t, f.Commands, 1.2)
	require.LessOrEqual(t, f.Goroutines, 1.1)
	require.GreaterOrEqual(t, f.Jain, 0.98)
}

func TestScale_WaitersForPermitsAreServedWithinTheLeaseOfTheDead(t *testing.T) {
	for _, p := range []Permits{ofPermits(1, 500), ofPermits(20, 5)} {
		t.Run(p.String(), func(t *testing.T) {
			r := inBubble(t, p.Run)
			t.Logf("%#v", r)
			require.LessOrEqual(t, r.Blocked, 30*time.Second+50*time.Millisecond)
			require.LessOrEqual(t, r.Most, p.Limit)
			require.Greater(t, r.Most, 1, "as many as fit are served at once, but one may end before the next message arrives")
			// A process that is new in the line sends two more, and may poll once more than the estimate.
			require.LessOrEqual(t, r.Scripts, 2.05+3/float64(p.Waiters))
			require.LessOrEqual(t, r.Idle, 0.7, "scripts per second of a process")
			if p.Processes == 1 {
				require.LessOrEqual(t, r.Goroutines, 1.1)
			}
		})
	}
}

func TestScale_HeldNameNeedsNoGoroutineAndAnUnlockedOneNothing(t *testing.T) {
	n := inBubble(t, Names{Processes: 2, Workers: 16, RoundTrip: time.Millisecond, Count: 2000}.Run)
	require.LessOrEqual(t, n.Goroutines, 10.0)
	require.LessOrEqual(t, n.LeftGoroutines, 2.0)
	require.Less(t, n.Bytes, 6000.0)
	require.Less(t, n.LeftBytes, 2*n.Bytes/3, "maps of both sides keep their size, and Go keeps what a goroutine was")
	require.InDelta(t, 2000/100/10, n.Renewals, 2, "one command for 100 names, every 10 s")
}

// The bounds are for each process: what all do grows no faster than their number.
func requireNoStorm(t *testing.T, o OutageResult) {
	t.Helper()
	n, scripts := o.Processes, 15
	if o.Silent { // each sends about one per second; all arrive at the end, and are undone, more than once within a second
		scripts = 25
	}
	require.LessOrEqual(t, o.Worst.Dials, 40*n, "dials in a second")
	require.LessOrEqual(t, o.Worst.Scripts, o.Calm.Scripts+scripts*n, "scripts in a second")
	require.LessOrEqual(t, o.Worst.Open, 3*o.Calm.Open/2, "connections")
	require.Zero(t, o.Lost, "names that were held")
}

func TestScale_OutageMakesNoStorm(t *testing.T) {
	t.Parallel()
	o := inBubble(t, outage(8, false).Run)
	requireNoStorm(t, o)
	require.LessOrEqual(t, o.First, time.Second)
	require.LessOrEqual(t, o.Last, o.Round+5*time.Second)
}

func TestScale_SilentRedisMakesNoStorm(t *testing.T) {
	t.Parallel()
	o := inBubble(t, outage(8, true).Run)
	requireNoStorm(t, o)
	// A command that was given up may come after the one that undoes it: then its lease has to be over.
	require.LessOrEqual(t, o.Last, 30*time.Second+o.Round+5*time.Second)
}

func TestReport_MeasuresOnlyWhatIsWantedAndKeepsTheRest(t *testing.T) {
	old := FleetResult{Fleet: fleets[1], Rate: 4711}
	r := &Report{Fleets: []FleetResult{{Fleet: fleets[0], Rate: 4712}, old}}
	var measured []string
	run := func(f func()) { synctest.Test(t, func(*testing.T) { f() }) }
	require.NoError(t, r.Measure(run, regexp.MustCompile("^fleet of 10 × 1, 200µs$"), func(name string, _ time.Duration) error {
		measured = append(measured, name)
		return nil
	}))
	require.Len(t, measured, 1)
	require.Len(t, r.Fleets, 2)
	require.Equal(t, old, r.Fleets[1])
	require.InDelta(t, 800, r.Fleets[0].Rate, 100)
	file := filepath.Join(t.TempDir(), "scale.json")
	require.NoError(t, r.Save(file))
	again, err := Load(file)
	require.NoError(t, err)
	require.Equal(t, r, again)
}

func TestReport_PageShowsWhatWasMeasured(t *testing.T) {
	const repository = "../../.."
	r, err := Load(filepath.Join(repository, "sim", "scale.json"))
	require.NoError(t, err)
	for _, f := range r.Fleets {
		require.Contains(t, fleets, f.Fleet, "it is not measured any more")
	}
	for _, n := range r.Names {
		require.Contains(t, names, n.Names, "it is not measured any more")
	}
	for _, p := range r.Permits {
		require.Contains(t, permits, p.Permits, "it is not measured any more")
		require.LessOrEqual(t, p.Blocked, 30*time.Second+50*time.Millisecond)
		require.LessOrEqual(t, p.Most, p.Limit)
	}
	require.Len(t, r.Fleets, len(fleets))
	require.Len(t, r.Permits, len(permits))
	require.Len(t, r.Names, len(names))
	require.Len(t, r.Outages, len(outages))
	for _, o := range r.Outages {
		require.Contains(t, outages, o.Outage, "it is not measured any more")
		requireNoStorm(t, o)
	}
	copied := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(copied, "docs", "pictures"), 0o755))
	shown := func(root, file string) string {
		text, err := os.ReadFile(filepath.Join(root, "docs", file))
		require.NoError(t, err)
		return string(text)
	}
	require.NoError(t, os.WriteFile(filepath.Join(copied, "docs", "scale.md"), []byte(shown(repository, "scale.md")), 0o644))
	require.NoError(t, r.Publish(copied))
	for _, file := range []string{"scale.md", "pictures/scale.svg"} {
		require.Equal(t, shown(copied, file), shown(repository, file), "%s is not what `%s -only ^$` writes", file, Command)
	}
	for decoder := xml.NewDecoder(strings.NewReader(r.picture())); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			return
		} else {
			require.NoError(t, err)
		}
	}
}
