package play

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/history"
)

func TestStuck_PlayNamesTheCallsThatHaveNotReturned(t *testing.T) {
	var res *Result
	p := &play{plan: Draw(1), journal: &journal{}, stuck: func(r *Result) { res = r }}
	for _, e := range []history.Event{
		{At: 1, Process: 1, Worker: 2, Op: 1, Kind: history.LockCall, Lock: "returned"},
		{At: 2, Process: 1, Worker: 2, Op: 1, Kind: history.LockReturn, Lock: "returned", Outcome: history.OK},
		{At: 3, Process: 1, Worker: 3, Op: 2, Kind: history.LockCall, Lock: "asked for"},
		{At: 4, Process: 1, Worker: 2, Op: 3, Kind: history.UnlockCall, Lock: "being released"},
		{At: 5, Process: 2, Worker: 1, Op: 1, Kind: history.LockCall, Lock: "of one that is gone"},
		{At: 6, Process: 2, Kind: history.Killed},
	} {
		p.journal.add(e)
	}
	p.hangs("a goroutine that waits", contains("play.(*play).hangs"))
	require.Equal(t, []string{"I6"}, res.Broken())
	story := res.Story()
	require.Contains(t, story, "a goroutine that waits")
	require.Contains(t, story, "TestStuck_PlayNamesTheCallsThatHaveNotReturned")
	require.Len(t, unreturned(p.journal.soFar()), 2)
	require.Contains(t, story, "process 1, goroutine 3   2: asks for asked for")
	require.Contains(t, story, "process 1, goroutine 2   3: unlocks being released")
}

func TestStuck_ClockWaitsForGoroutinesThatRunOrWaitForAMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		mu.Lock()
		stop := make(chan struct{})
		defer func() {
			mu.Unlock()
			close(stop)
		}()
		go waitFor(&mu)
		go waitForEnd(stop)
		require.True(t, holdsTimeUp(stackOf("[sync.Mutex.Lock", "play.waitFor(")))
		require.False(t, holdsTimeUp(stackOf("[chan receive", "play.waitForEnd(")))
		require.True(t, holdsTimeUp(stackOf("[running", "TestStuck_Clock")))
	})
}

func waitFor(mu *sync.Mutex) {
	mu.Lock()
	defer mu.Unlock()
}

func waitForEnd(of chan struct{}) { <-of }

// stackOf returns the stack of the goroutine in the given status that calls a function, as soon as there is one.
func stackOf(status, function string) string {
	all := make([]byte, 1<<20)
	for {
		stacks := string(all[:runtime.Stack(all, true)])
		for stack := range strings.SplitSeq(stacks, "\n\n") {
			if strings.Contains(stack, status) && strings.Contains(stack, function) {
				return stack
			}
		}
		runtime.Gosched()
	}
}

func TestPlan_LateCommandsComeOneAtATime(t *testing.T) {
	met := 0
	for seed := uint64(1); seed < 300; seed++ {
		p := Draw(seed)
		if p.Theme != "late" {
			continue
		}
		for i, f := range p.Faults {
			require.Equal(t, trap, f.What)
			require.False(t, f.Silent)
			require.Less(t, f.At, p.Lasts)
			if i > 0 {
				require.GreaterOrEqual(t, f.At-p.Faults[i-1].At, 2*p.TTL)
				met++
			}
		}
	}
	require.Positive(t, met)
}
