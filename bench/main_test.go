package main

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) {
	if isWorker() { // started by a test
		serve(os.Stdin, os.Stdout)
		return
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // for the workers: the race detector makes exits last a second
	redistest.Main(m)
}

// newTestBench returns a bench on a real server, for cells that are over quickly.
func newTestBench(t *testing.T) *bench {
	b, err := newBench(config{rounds: 1, duration: 20 * time.Millisecond, redis: redistest.Redis(t).Addr}, io.Discard)
	require.NoError(t, err)
	t.Cleanup(b.close)
	return b
}

// longEnough runs f with longer and longer windows, until a contender got the lock in one: how
// long that takes is up to the machine.
func longEnough(t *testing.T, f func(window time.Duration) error) {
	t.Helper()
	for window := 20 * time.Millisecond; ; window *= 4 {
		err := f(window)
		if errors.Is(err, errIdle) && window < 10*time.Second {
			continue
		}
		require.NoError(t, err)
		return
	}
}

func TestContender_LocksAndIsReported(t *testing.T) {
	dir := t.TempDir()
	markdown, picture := filepath.Join(dir, "table.md"), filepath.Join(dir, "bars.svg")
	var out, progress strings.Builder
	// With a name of one's own: under contention some rivals do lose a waiter now and then.
	err := run(t.Context(), []string{"-redis", redistest.Redis(t).Addr, "-rounds", "1", "-duration", "20ms",
		"-scenario", "request,slow-seq", "-markdown", markdown, "-svg", picture}, &out, &progress)
	require.NoError(t, err)

	for _, name := range alone {
		require.Equal(t, 2, strings.Count(out.String(), "\n| "+name+" | **"), "its rows have figures")
	}
	require.NotContains(t, out.String(), "void", "nobody misbehaved:\n%s", progress.String())
	require.Contains(t, out.String(), "| relock | request, 1 goroutine | time ÷ floor | ≤ 1.10 |")
	require.Contains(t, out.String(), "-scenario request,slow-seq", "the command is there")

	saved, err := os.ReadFile(markdown)
	require.NoError(t, err)
	require.Equal(t, out.String(), string(saved))
	svg, err := os.ReadFile(picture)
	require.NoError(t, err)
	requireWellFormed(t, svg)
	require.Equal(t, 1, strings.Count(string(svg), `class="t"`), "charts of what was run")
	require.Contains(t, string(svg), "rueidislock")
}

func requireWellFormed(t *testing.T, text []byte) {
	decoder := xml.NewDecoder(strings.NewReader(string(text)))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			return
		} else {
			require.NoError(t, err)
		}
	}
}

func TestScenario_MeasuresWhatItShows(t *testing.T) {
	b := newTestBench(t)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			small := load{label: "a little", processes: min(2, s.loads[0].processes), goroutines: min(8, s.loads[0].goroutines)}
			shortest := time.Duration(0)
			if s.name == "hold" {
				shortest = 200 * time.Millisecond // its lease is renewed in time on a busy machine, too
			}
			var figures figures
			longEnough(t, func(window time.Duration) (err error) {
				b.duration = max(window, shortest)
				figures, err = b.cell(t.Context(), s, small, s.contenders[0], 0)
				return err
			})
			for _, c := range s.columns {
				require.Contains(t, figures, c.key)
			}
			require.Positive(t, figures[s.columns[0].key]+1, "it is a number")
		})
	}
}

func TestScenario_HoldsOfAllProcessesCount(t *testing.T) {
	b := newTestBench(t)
	c := &cell{bench: b, load: load{processes: 2, goroutines: 3}, addr: b.redis, name: redistest.Key(t)}
	var err error
	c.contender, err = contenderNamed(plainFloor)
	require.NoError(t, err)
	var l *looped
	var h *history
	longEnough(t, func(window time.Duration) (err error) {
		b.duration = window
		if l, err = c.loop(t.Context(), order{}); err == nil {
			h, err = newHistory(l.spans(), l.start, window)
		}
		return err
	})
	require.Len(t, l.answers, 2)
	require.Len(t, l.spans(), 6)
	require.Len(t, h.spans, l.pairs())
	require.Positive(t, h.handoffs())
	require.GreaterOrEqual(t, l.sent(), int64(2*l.pairs()), "a command to take it, and one to give it back")
}

func TestFleet_KeepsItsLockAndIsMeasuredForSomeTurns(t *testing.T) {
	b := newTestBench(t)
	l := load{processes: 2, goroutines: 1, hold: b.duration}
	window := (&cell{bench: b, load: l}).window()
	require.Equal(t, turns*2*l.hold, window)
	require.Equal(t, b.duration, (&cell{bench: b, load: load{processes: 2}}).window(), "without a hold")

	f, err := b.cell(t.Context(), &scenario{measure: measureShared}, l, relockName, 0)
	require.NoError(t, err)
	require.LessOrEqual(t, f["rate"], 1/l.hold.Seconds()+1/window.Seconds(), "one at a time")
	require.Greater(t, f["rate"], 2/window.Seconds(), "and that often")
	require.Greater(t, f["commands"], f["steady"], "the first ones are not held against it")
	require.GreaterOrEqual(t, f["max"], f["mean"])
}

func TestArguments_BadOnesAreRefusedBeforeTheStart(t *testing.T) {
	for _, args := range [][]string{
		{"-scenario", "seq,sequential"},
		{"-contender", "relock,zookeeper"},
		{"-rounds", "0"},
		{"-duration", "1ms"},
		{"seq"},
		{"-verbose"},
	} {
		err := run(t.Context(), args, io.Discard, io.Discard)
		require.Error(t, err, "%v", args)
	}
	require.NoError(t, run(t.Context(), []string{"-help"}, io.Discard, io.Discard))
}

func TestRun_EndsWithAnInterrupt(t *testing.T) {
	b := newTestBench(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	r := newReport(b.config, b.server)
	require.ErrorIs(t, b.measure(ctx, scenarioNamed("seq"), r), stopped)
}

func TestTarget_NamesItsContender(t *testing.T) {
	s := scenarioNamed("wake")
	r := &report{config: config{rounds: 1, scenarios: []*scenario{s}}, samples: make(map[string][]sample)}
	r.add(s, s.loads[0], relockName, sample{figures: figures{s.columns[0].key: 80}})
	r.add(s, s.loads[0], fairName, sample{figures: figures{s.columns[0].key: 80}})
	r.add(s, s.loads[0], "rueidislock", sample{figures: figures{s.columns[0].key: 100}})
	require.Contains(t, r.markdown(), "| relock | wake, idle for 30 ms before | p50 ÷ rueidislock | ≤ 0.95 | **0.80** (0.80–0.80) | met |\n"+
		"| relock fair | wake, idle for 30 ms before | p50 ÷ best library | ≤ 0.75 | **0.80** (0.80–0.80) | missed |")
	require.NotContains(t, r.targets(), "fleet", "which was not measured")
}

func TestTarget_IsOfALoadThatIsMeasured(t *testing.T) {
	for _, target := range targets {
		s := scenarioNamed(target.scenario)
		require.NotNil(t, s, target.scenario)
		require.Contains(t, s.contenders, cmp.Or(target.who, relockName), s.name)
		labels := []string{""} // the first one
		for _, l := range s.loads {
			labels = append(labels, l.label)
		}
		require.Contains(t, labels, target.load, s.name)
	}
}

func TestTarget_ProcessorTimeIsThatOfClientsAndRedis(t *testing.T) {
	s := scenarioNamed("par")
	load := s.loads[0]
	r := &report{samples: make(map[string][]sample)}
	r.add(s, load, relockName, sample{round: 0, figures: figures{"client": 10, "server": 5}})
	r.add(s, load, relockName, sample{round: 1, figures: figures{"client": 1}})
	r.add(s, load, "rueidislock", sample{round: 0, figures: figures{"client": 20, "server": 10}})
	r.add(s, load, "rueidislock", sample{round: 1, figures: figures{"client": 20, "server": 10}})
	f, ok := costAgainst("rueidislock")(r, s, load.label, relockName)
	require.True(t, ok)
	require.Equal(t, spread{0.5, 0.5, 0.5}, f, "a round without one of them does not count")
	f, ok = above("rueidislock", "client")(r, s, load.label, relockName)
	require.True(t, ok)
	require.Equal(t, spread{-14.5, -19, -10}, f)
}

// rueidislock loses a waiter now and then, which makes a cell void.
func TestWake_OfEveryContenderCounts(t *testing.T) {
	b := newTestBench(t)
	for _, name := range []string{"wake", "wake-clients"} {
		s := scenarioNamed(name)
		for _, contender := range s.contenders {
			f, err := b.cell(t.Context(), s, s.loads[0], contender, 0)
			for try := 1; err != nil && contender == "rueidislock" && try < 5; try++ {
				f, err = b.cell(t.Context(), s, s.loads[0], contender, try)
			}
			require.NoError(t, err, "%s of %s", name, contender)
			require.Positive(t, f["p50"], "%s of %s", name, contender)
		}
	}
}

func TestBench_LeavesOutAContenderThatIsHopeless(t *testing.T) {
	b := newTestBench(t)
	b.rounds, b.contenders = 6, []string{relockName, plainFloor}
	lost, measured := errors.New("lost waiters"), make(map[string]int)
	s := &scenario{name: "fake", loads: one, contenders: []string{relockName, plainFloor}}
	s.measure = func(_ context.Context, c *cell) (figures, error) {
		measured[c.contender.name]++
		if c.contender.name == plainFloor && c.round != 1 {
			return nil, lost
		}
		return figures{}, nil
	}
	r := newReport(b.config, b.server)
	require.NoError(t, b.measure(t.Context(), s, r))
	require.Equal(t, map[string]int{relockName: 6, plainFloor: 5}, measured, "not after rounds 2, 3 and 4")
	require.False(t, r.void("fake", one[0].label, plainFloor), "one round counts")
}

func TestPermits_OfAllProcessesStayWithinTheLimit(t *testing.T) {
	b := newTestBench(t)
	l := load{processes: 3, goroutines: 2, hold: 5 * time.Millisecond, limit: 2}
	for _, name := range limits {
		var f figures
		longEnough(t, func(window time.Duration) (err error) {
			b.duration = window
			f, err = b.cell(t.Context(), scenarioNamed("permits"), l, name, 0)
			return err
		})
		require.Zero(t, f["over"], name)
		require.LessOrEqual(t, f["rate"]*l.hold.Seconds(), 2.5, "two at a time: %s", name)
	}
}
