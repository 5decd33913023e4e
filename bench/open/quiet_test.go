package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNoise_SharesOfOthersAndOfTheHypervisorCount(t *testing.T) {
	begin, err := parseMachineTime("cpu  100 0 50 1000 10 3 5 20 0 0\ncpu0 1\n")
	require.NoError(t, err)
	require.Equal(t, machineTime{busy: 1500 * time.Millisecond, stolen: 200 * time.Millisecond, total: 11880 * time.Millisecond}, begin)
	end := begin
	end.total += 100 * time.Second
	end.busy += 40 * time.Second
	end.stolen += time.Second

	require.InDelta(t, 0.41, shareOfOthers(watch{machine: begin}, watch{machine: end}), 1e-9)
	require.InDelta(t, 0.03, shareOfOthers(watch{machine: begin}, watch{machine: end, own: 38 * time.Second}), 1e-9)
	require.Zero(t, shareOfOthers(watch{machine: begin}, watch{machine: end, own: time.Hour}), "ticks are counted at other moments")
	require.Zero(t, shareOfOthers(watch{}, watch{}))

	_, err = parseMachineTime("intr 5\n")
	require.Error(t, err)
}

func TestNoise_OfOneRoundIsEnough(t *testing.T) {
	require.True(t, noise{Before: 0.01, Rounds: []float64{0.02, 0.03}}.quiet())
	require.False(t, noise{Before: 0.01, Rounds: []float64{0.02, 0.05}}.quiet())
	require.False(t, noise{Before: 0.5}.quiet())
}

func TestNoise_TimesOfTheMachineAndOfThisProcessAreRead(t *testing.T) {
	w, err := startWatch()
	require.NoError(t, err)
	require.Positive(t, w.machine.total)
	require.Positive(t, cpuClock(os.Getpid()))
}
