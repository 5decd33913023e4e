package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// copyOfPages copies what publish writes to, and returns the root of the copy.
func copyOfPages(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, file := range []string{"README.md", "bench/README.md", "docs/scale.md"} {
		text, err := os.ReadFile(filepath.Join("..", file))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, file), text, 0o644))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "docs", "pictures"), 0o755))
	return root
}

var publishedFiles = []string{"README.md", "bench/README.md", "docs/scale.md",
	"docs/pictures/results.svg", "docs/pictures/growth.svg", "docs/pictures/loss.svg"}

func TestPublish_DrawsPagesFromTheSamples(t *testing.T) {
	root := copyOfPages(t)
	require.NoError(t, run(t.Context(), []string{"-publish", root, "-from", "results.json"}, nil, nil))
	for _, file := range publishedFiles {
		drawn, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		shown, err := os.ReadFile(filepath.Join("..", file))
		require.NoError(t, err)
		require.Equal(t, string(drawn), string(shown), "%s is not what `go run -C bench . -publish .. -from results.json` writes", file)
		if strings.HasSuffix(file, ".svg") {
			requireWellFormed(t, drawn)
			require.Contains(t, string(drawn), "prefers-color-scheme:dark")
		}
	}
}

func TestPublish_MeasuresWhatIsShown(t *testing.T) {
	c, err := parse([]string{"-publish", ".."}, nil)
	require.NoError(t, err)
	require.Len(t, c.scenarios, len(publishedScenarios))
	for _, s := range c.scenarios {
		measured := 0
		for _, l := range s.loads {
			if c.measures(s, l) {
				measured++
			}
		}
		if some, chosen := publishedLoads[s.name]; chosen {
			require.Equal(t, len(some), measured, s.name)
		} else {
			require.Len(t, s.loads, measured, s.name)
		}
	}
	for _, table := range tables {
		for _, row := range table.rows {
			s := scenarioNamed(row.scenario)
			require.NotNil(t, s, row.scenario)
			at := slices.IndexFunc(s.loads, func(l load) bool { return l.label == row.load })
			require.NotEqual(t, -1, at, "%s has no load %s", s.name, row.load)
			require.True(t, c.measures(s, s.loads[at]), "%s, %s is shown", s.name, row.load)
			for _, figure := range strings.Split(row.figure, "; ") {
				require.True(t, slices.ContainsFunc(s.columns, func(c column) bool { return c.key == figure }), "%s has no %s", s.name, figure)
			}
			for _, name := range table.contenders {
				require.True(t, !slices.Contains(s.contenders, name) || c.takesPart(s, name), "%s is shown in %s", name, s.name)
			}
		}
	}
	for _, row := range speedRows {
		s := scenarioNamed(row.scenario)
		require.NotNil(t, s, row.scenario)
		at := slices.IndexFunc(s.loads, func(l load) bool { return l.label == row.load })
		require.NotEqual(t, -1, at, "%s has no load %s", s.name, row.load)
		require.True(t, c.measures(s, s.loads[at]), "%s, %s is shown", s.name, row.load)
		require.Contains(t, c.partsOf(s), row.who)
	}
	for _, one := range charts {
		s := scenarioNamed(one.scenario)
		require.NotNil(t, s, one.scenario)
		require.Contains(t, c.scenarios, s)
		at := slices.IndexFunc(s.loads, func(l load) bool { return l.label == one.load })
		require.True(t, at >= 0 && c.measures(s, s.loads[at]), "%s, %s is drawn", one.scenario, one.load)
	}
	_, err = parse([]string{"-publish", "..", "-scenario", "seq"}, nil)
	require.ErrorContains(t, err, "-publish")
	_, err = parse([]string{"-from", "results.json"}, nil)
	require.ErrorContains(t, err, "-from")
}

func TestPublish_TakesLessThan50Minutes(t *testing.T) {
	c, err := parse([]string{"-publish", ".."}, nil)
	require.NoError(t, err)
	require.Equal(t, publishedRounds, c.rounds)
	require.Equal(t, publishedDuration, c.duration)
	require.Less(t, c.takes(), 50*time.Minute)
	require.Greater(t, c.takes(), 30*time.Minute)

	c, err = parse([]string{"-publish", "..", "-rounds", "2", "-duration", "50ms"}, nil)
	require.NoError(t, err)
	require.Equal(t, 2, c.rounds)
	require.Equal(t, 50*time.Millisecond, c.duration)
}

func TestSpeed_NamesEachRivalThatIsFaster(t *testing.T) {
	r := &report{config: config{rounds: 1}, samples: make(map[string][]sample)}
	add := func(scenario, load, name string, f figures) {
		r.samples[key(scenario, load, name)] = []sample{{figures: f}}
	}
	add("par", "64 goroutines", relockName, figures{"ops": 100, "client": 10, "server": 5})
	add("par", "64 goroutines", "rueidislock", figures{"ops": 50, "client": 20, "server": 6})
	require.Contains(t, r.speedBlock(), "| 64 goroutines, a name each: locks per s | 100 | 10; 5 | rueidislock: 50 | 20; 6 | **2.00** (2.00–2.00) |")
	require.Contains(t, r.speedBlock(), "**No rival is faster**")

	add("request", "1 goroutine", relockName, figures{"us": 200})
	add("request", "1 goroutine", "redsync", figures{"us": 100})
	add("request", "1 goroutine", plainFloor, figures{"us": 50}) // no rival
	require.Contains(t, r.speedBlock(), "| one goroutine, one name: µs | 200 | | redsync: 100 | | **0.50** (0.50–0.50) |")
	require.Contains(t, r.speedBlock(), "**A rival is faster** in 1 of 2 rows: redsync (one goroutine, one name).")
}

func TestTable_LeavesOutWhatWasNotMeasured(t *testing.T) {
	r := &report{samples: make(map[string][]sample)}
	table := pageTable{contenders: []string{relockName, "redsync"}, rows: []shown{
		{"time", "request", "1 goroutine", "us", 0},
		{"CPU", "request", "1 goroutine", bothCosts, 1},
		{"rate", "par", "64 goroutines", "ops", 0},
	}}
	require.Equal(t, "This run did not measure it.\n", r.block(table))
	r.samples[key("request", "1 goroutine", relockName)] = []sample{{figures: figures{"us": 1234, "client": 5, "server": 6}}}
	r.samples[key("request", "1 goroutine", "redsync")] = []sample{{err: errIdle}}
	require.Equal(t, "| | relock | redsync |\n|---|--:|--:|\n| time | 1 234 | void |\n| CPU | 5.0; 6.0 | void |\n", r.block(table))
}

func TestSamples_SurviveBeingKept(t *testing.T) {
	r := &report{config: config{rounds: 2, command: "go run"}, redis: "7", machine: "here", versions: []string{"a v1"},
		loss: &timeline{TTL: 3, Renewed: []float64{1}}, samples: map[string][]sample{
			key("seq", "1 goroutine", relockName): {{round: 0, figures: figures{"us": 123456}}, {round: 1, figures: figures{}, err: errIdle}},
		}}
	file := filepath.Join(t.TempDir(), "samples.json")
	require.NoError(t, r.save(file))
	again, err := loadReport(file)
	require.NoError(t, err)
	f, ok := again.figure("seq", "1 goroutine", relockName, "us")
	require.True(t, ok)
	require.InDelta(t, 123460, f.median, 0.1, "five digits are kept")
	require.EqualError(t, again.samples[key("seq", "1 goroutine", relockName)][1].err, errIdle.Error())
	require.Equal(t, r.loss, again.loss)
	require.Equal(t, r.source(), again.source())
}

func TestTimeline_OfALossIsInThePromisedOrder(t *testing.T) {
	loss, err := measureLoss(t.Context(), redistest.NewServer(t).Addr)
	require.NoError(t, err)
	require.NotEmpty(t, loss.Renewed)
	require.NotEmpty(t, loss.Failed)
	require.Less(t, loss.Renewed[len(loss.Renewed)-1], loss.Cut)
	require.Less(t, loss.Cut, loss.Cancelled)
	require.Less(t, loss.Cancelled, loss.Next, "the holder is notified before another process has the lock")
	require.Less(t, loss.Next, loss.Cut+2*loss.TTL)
	requireWellFormed(t, []byte(loss.svg()))
}
