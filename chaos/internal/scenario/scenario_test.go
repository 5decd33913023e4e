package scenario

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/chaos/internal/worker"
	"github.com/relock-go/relock/internal/redistest"
)

// The tests' binary is a client process, too, when it is started as one.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-client") {
		if err := worker.Run(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	redistest.Main(m)
}

func TestScenario_HasANumberANameAndAnInjection(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range All() {
		for _, id := range []string{strconv.Itoa(s.Number), s.Name} {
			require.False(t, seen[id], id)
			seen[id] = true
		}
		require.NotEmpty(t, s.What)
		require.NotEmpty(t, s.setups, s.Name)
		require.NotEmpty(t, s.Kinds(), s.Name)
		for _, setup := range s.setups {
			require.True(t, setup.Draw != nil || len(setup.Faults) > 0, s.Name)
		}
	}
	for i := 1; i <= 39; i++ {
		require.True(t, seen[strconv.Itoa(i)], "scenario %d", i)
	}
}

func TestScenario_IsChosenByNameNumberOrSelection(t *testing.T) {
	all, err := Choose("all")
	require.NoError(t, err)
	require.Equal(t, general, all)
	two, err := Choose("mix,7")
	require.NoError(t, err)
	require.Equal(t, []string{"mix", "client-paused"}, []string{two[0].Name, two[1].Name})
	turn, err := Choose("2/30")
	require.NoError(t, err)
	require.Equal(t, []*Scenario{general[1], general[31]}, turn)
	_, err = Choose("1,nothing")
	require.ErrorContains(t, err, `no scenario "nothing"`)
}

func TestScenario_IsPlayedAndJudged(t *testing.T) {
	redistest.RequireServer(t)
	s, err := stage.New(1, nil)
	require.NoError(t, err)
	defer s.Close()
	res, err := general[0].Play(t.Context(), s, 500*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, res.Violations)
	require.Positive(t, res.Hits)
	require.Greater(t, res.Holds, 10)
	require.Positive(t, res.LongestWait)
}

func TestMix_EveryDeploymentHasFaults(t *testing.T) {
	for _, k := range mixed {
		faults := faultsOn(k)
		require.Greater(t, len(faults), 10, k)
		for _, f := range faults {
			require.NotEmpty(t, f.Name)
			require.NotNil(t, f.Inject)
			require.False(t, f.Single && (k == deployment.Cluster || k == deployment.Sentinel), "%s on %s", f.Name, k)
		}
	}
	require.NotEqual(t, len(faultsOn(deployment.Standalone)), len(faultsOn(deployment.Cluster)))
}
