package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/history"
)

// told returns a round with a lease of a second, in which worker 1 of process 1 held a lock,
// in milliseconds since the beginning.
func told(t *testing.T, returned, called int64, outcome history.Outcome) *round {
	t.Helper()
	c := cast{kind: deployment.Standalone, work: usual()}
	r := newRound(&stage{}, &scenario{}, c, nil, 0)
	at := func(ms int64) int64 { return r.began + ms*int64(time.Millisecond) }
	for _, e := range []history.Event{
		{At: at(returned) - 1, Op: 1, Kind: history.LockCall, Wait: int64(time.Second)},
		{At: at(returned), Op: 1, Kind: history.LockReturn, Outcome: history.OK},
		{At: at(called), Op: 2, Kind: history.UnlockCall},
		{At: at(called) + 1, Op: 2, Kind: history.UnlockReturn, Outcome: outcome, Err: "said Redis"},
	} {
		e.Process, e.Worker, e.Owner, e.Lock = 1, 1, "p1.w1", "a"
		r.record(e)
	}
	return r
}

func (r *round) severedBetween(process int, from, to int64) *round {
	r.severed = append(r.severed, severed{process: process,
		from: r.began + from*int64(time.Millisecond), to: r.began + to*int64(time.Millisecond)})
	return r
}

func TestAnUnlockThatCannotHaveSucceededIsABreach(t *testing.T) {
	for _, tc := range []struct {
		name     string
		round    *round
		breaches int
		tested   bool
	}{
		{"succeeded, held through all of it", told(t, 100, 2000, history.OK).severedBetween(0, 200, 1800), 1, true},
		{"succeeded, as soon as the lease was over", told(t, 100, 1250, history.OK).severedBetween(1, 200, 1800), 1, true},
		{"lost", told(t, 100, 2000, history.IsLost).severedBetween(0, 200, 1800), 0, true},
		{"lost as soon as the holder could tell", told(t, 100, 900, history.IsLost).severedBetween(0, 200, 1800), 0, true},
		{"another process was severed", told(t, 100, 2000, history.OK).severedBetween(2, 200, 1800), 0, false},
		{"for less than the lease", told(t, 100, 2000, history.OK).severedBetween(0, 200, 1100), 0, false},
		{"unlocked within the lease", told(t, 100, 1100, history.OK).severedBetween(0, 200, 1800), 0, false},
		{"locked afterwards", told(t, 1900, 3000, history.OK).severedBetween(0, 200, 1800), 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.tested, lostWhereSevered(tc.round) == nil)
			require.Len(t, tc.round.breaches, tc.breaches)
		})
	}
}

func TestCallsThatGaveUpWhileTheServerWasFrozenAreLookedFor(t *testing.T) {
	r := told(t, 100, 200, history.OK).severedBetween(0, 300, 900)
	require.ErrorContains(t, someGaveUpInTime(r), "nothing was tested")
	call := history.Event{At: r.began + int64(400*time.Millisecond), Process: 1, Op: 3, Kind: history.LockCall, Wait: int64(100 * time.Millisecond)}
	r.record(call)
	call.At, call.Kind, call.Outcome = r.began+int64(501*time.Millisecond), history.LockReturn, history.Ended
	r.record(call)
	require.NoError(t, someGaveUpInTime(r))
}

func TestFailuresAreBreachesWhereNothingMayFail(t *testing.T) {
	r := told(t, 100, 200, history.Failed)
	require.NoError(t, nobodyFailed(r))
	require.NoError(t, unlocksSucceeded(r))
	require.Len(t, r.breaches, 2)
	require.Contains(t, r.breaches[0], "said Redis")
	r = told(t, 100, 200, history.IsLost)
	require.NoError(t, unlocksSucceeded(r))
	require.Empty(t, r.breaches)
}

func TestMisuseIsCountedAndAWrongAnswerIsABreach(t *testing.T) {
	r := told(t, 100, 200, history.OK)
	r.work.Misuse = 1
	r.record(history.Event{Process: 1, Kind: history.Misused, Outcome: history.OK, Note: "a second Unlock"})
	r.record(history.Event{Process: 1, Kind: history.Misused, Outcome: history.Failed, Note: "a third", Err: "<nil>, not held"})
	require.NoError(t, misuseWasRefused(r))
	require.Equal(t, 2, r.faults)
	require.Len(t, r.breaches, 1)
	require.Contains(t, r.breaches[0], "a third")
}

func TestEveryDeploymentOfTheMixHasFaults(t *testing.T) {
	for _, k := range mixed {
		faults := faultsOn(k)
		require.Greater(t, len(faults), 10, k)
		for _, f := range faults {
			require.NotEmpty(t, f.name)
			require.NotNil(t, f.inject)
			require.False(t, f.single && (k == deployment.Cluster || k == deployment.Sentinel), "%s on %s", f.name, k)
		}
	}
	require.NotEqual(t, len(faultsOn(deployment.Standalone)), len(faultsOn(deployment.Cluster)))
}
