package scenario

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/stage"
)

// seenOf returns what is seen of a round with a lease of a second, in which worker 1 of process 1
// held a lock, in milliseconds since the beginning.
func seenOf(returned, called int64, outcome history.Outcome) *stage.Evidence {
	seen := &stage.Evidence{Setup: stage.Setup{Kind: deployment.Standalone, Work: usual()}, Began: history.Now()}
	at := func(ms int64) int64 { return seen.Began + ms*int64(time.Millisecond) }
	for _, e := range []history.Event{
		{At: at(returned) - 1, Op: 1, Kind: history.LockCall, Wait: int64(time.Second)},
		{At: at(returned), Op: 1, Kind: history.LockReturn, Outcome: history.OK},
		{At: at(called), Op: 2, Kind: history.UnlockCall},
		{At: at(called) + 1, Op: 2, Kind: history.UnlockReturn, Outcome: outcome, Err: "said Redis"},
	} {
		e.Process, e.Worker, e.Owner, e.Lock = 1, 1, "p1.w1", "a"
		seen.Events = append(seen.Events, e)
	}
	return seen
}

// during adds a period in which a process, or every one if process is 0, got no answer.
func during(seen *stage.Evidence, process int, from, to int64) *stage.Evidence {
	at := func(ms int64) int64 { return seen.Began + ms*int64(time.Millisecond) }
	seen.Outages = append(seen.Outages, stage.Outage{Process: process, From: at(from), To: at(to)})
	return seen
}

func TestCheck_ImpossibleUnlockIsABreach(t *testing.T) {
	for _, tc := range []struct {
		name     string
		seen     *stage.Evidence
		breaches int
		tested   bool
	}{
		{"succeeded, held through all of it", during(seenOf(100, 2000, history.OK), 0, 200, 1800), 1, true},
		{"succeeded, as soon as the lease was over", during(seenOf(100, 1250, history.OK), 1, 200, 1800), 1, true},
		{"lost", during(seenOf(100, 2000, history.IsLost), 0, 200, 1800), 0, true},
		{"lost as soon as the holder could detect it", during(seenOf(100, 900, history.IsLost), 0, 200, 1800), 0, true},
		{"another process was severed", during(seenOf(100, 2000, history.OK), 2, 200, 1800), 0, false},
		{"for less than the lease", during(seenOf(100, 2000, history.OK), 0, 200, 1100), 0, false},
		{"unlocked within the lease", during(seenOf(100, 1100, history.OK), 0, 200, 1800), 0, false},
		{"locked afterwards", during(seenOf(1900, 3000, history.OK), 0, 200, 1800), 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.tested, lostWhereSevered(tc.seen) == nil)
			require.Len(t, tc.seen.Breaches, tc.breaches)
		})
	}
}

func TestCheck_FindsCallsThatGaveUpDuringAFreeze(t *testing.T) {
	seen := during(seenOf(100, 200, history.OK), 0, 300, 900)
	require.ErrorContains(t, someGaveUpInTime(seen), "nothing was tested")
	call := history.Event{At: seen.Began + int64(400*time.Millisecond), Process: 1, Op: 3, Kind: history.LockCall, Wait: int64(100 * time.Millisecond)}
	seen.Events = append(seen.Events, call)
	call.At, call.Kind, call.Outcome = seen.Began+int64(501*time.Millisecond), history.LockReturn, history.Ended
	seen.Events = append(seen.Events, call)
	require.NoError(t, someGaveUpInTime(seen))
}

func TestCheck_FailureIsABreachWhereNothingMayFail(t *testing.T) {
	seen := seenOf(100, 200, history.Failed)
	require.NoError(t, noCallFailed(seen))
	require.NoError(t, unlocksSucceeded(seen))
	require.Len(t, seen.Breaches, 2)
	require.Contains(t, seen.Breaches[0], "said Redis")
	seen = seenOf(100, 200, history.IsLost)
	require.NoError(t, unlocksSucceeded(seen))
	require.Empty(t, seen.Breaches)
}

func TestCheck_MisuseIsCountedAndAWrongAnswerIsABreach(t *testing.T) {
	seen := seenOf(100, 200, history.OK)
	seen.Setup.Work.Misuse = 1
	seen.Events = append(seen.Events, history.Event{Process: 1, Kind: history.Misused, Outcome: history.OK, Note: "a second Unlock"})
	seen.Events = append(seen.Events, history.Event{Process: 1, Kind: history.Misused, Outcome: history.Failed, Note: "a third", Err: "<nil>, not held"})
	require.NoError(t, misuseWasRefused(seen))
	require.Equal(t, 2, seen.Hits)
	require.Len(t, seen.Breaches, 1)
	require.Contains(t, seen.Breaches[0], "a third")
}

func TestCheck_SidesAreUnlockedInAnyOrder(t *testing.T) {
	event := func(at int64, kind history.Kind, read bool, outcome history.Outcome) history.Event {
		return history.Event{At: at, Process: 1, Worker: 1, Owner: "p1.w1.sides", Lock: "rw", Kind: kind, Read: read, Outcome: outcome}
	}
	spans := spansOf([]history.Event{
		event(1, history.LockReturn, false, history.OK),
		event(2, history.LockReturn, true, history.OK),
		event(3, history.UnlockCall, false, ""),
		event(4, history.UnlockReturn, false, history.IsLost),
		event(5, history.UnlockCall, true, ""),
		event(6, history.UnlockReturn, true, history.OK),
	})
	require.Len(t, spans, 2)
	require.Equal(t, int64(1), spans[0].returned)
	require.Equal(t, history.IsLost, spans[0].outcome)
	require.Equal(t, int64(2), spans[1].returned)
	require.Equal(t, history.OK, spans[1].outcome)
}
