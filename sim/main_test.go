package main

import (
	"flag"
	"os"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/sim/internal/bubble"
)

// The test program is the child of the crews that it makes.
func TestMain(m *testing.M) {
	child := flag.Bool("child", false, "be a process that plays")
	flag.Parse()
	if *child {
		redis.SetLogger(silent{})
		bubble.Main(serve)
	}
	os.Exit(m.Run())
}

func crewHere(t *testing.T, size int) crew {
	program, err := os.Executable()
	require.NoError(t, err)
	return crew{program, size}
}

func TestChildren_PlayTheSeedsTheyAreGiven(t *testing.T) {
	n, seen := uint64(0), []uint64{}
	err := crewHere(t, 2).play(t.Context(), func() (job, bool) { n++; return job{Seed: n}, n <= 4 }, func(a answer) {
		seen = append(seen, a.Seed)
		require.False(t, a.failed(), "%s%s", a.Story, a.Crash)
		require.Positive(t, a.Holds)
		require.Positive(t, a.Commands)
	})
	require.NoError(t, err)
	require.ElementsMatch(t, []uint64{1, 2, 3, 4}, seen)
}

func TestChildren_DeathIsAFailureAndAnotherGoesOn(t *testing.T) {
	player, err := startChild(t.Context(), crewHere(t, 1).program)
	require.NoError(t, err)
	require.NoError(t, player.cmd.Process.Kill())
	a := player.play(job{Seed: 1})
	require.True(t, a.failed())
	require.Contains(t, a.Crash, "seed 1")
}

func TestShrink_FindsTheFewestFaults(t *testing.T) {
	all := make([]int, 40)
	for i := range all {
		all[i] = i
	}
	for _, needed := range [][]int{{}, {0}, {39}, {3, 17}, {0, 1, 38, 39}, all} {
		calls := 0
		got := fewest(all, func(some []int) bool {
			calls++
			for _, n := range needed {
				if !slices.Contains(some, n) {
					return false
				}
			}
			return true
		})
		require.ElementsMatch(t, needed, got)
		require.Less(t, calls, 400)
	}
}
