package relock

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// undosOf returns undos of a client of their own that settle sees to.
func undosOf(t *testing.T, settle func(undo) bool) *undos {
	t.Helper()
	return newUndos(locksOn(t, redistest.Mini(t).Client(t)), settle)
}

// adds has the name undone, for an hour at most.
func (u *undos) adds(t *testing.T, name string) (settled <-chan struct{}) {
	t.Helper()
	target, err := keys.New("", []string{"key"})
	require.NoError(t, err)
	n := newTally(1)
	u.add(undo{target: target, field: name, until: u.client.now().After(time.Hour), tallies: []*tally{n}})
	return n.settled
}

func TestAnUndoThatIsNotAnsweredKeepsNoOther(t *testing.T) {
	t.Parallel()
	sent, answered := make(chan struct{}), make(chan struct{})
	answer := sync.OnceFunc(func() { close(answered) })
	u := undosOf(t, func(u undo) bool {
		if u.field == "silent" {
			close(sent)
			<-answered
		}
		return true
	})
	t.Cleanup(answer) // before the client is closed
	silent := u.adds(t, "silent")
	receives(t, sent)
	for i := range 100 {
		receives(t, u.adds(t, fmt.Sprint(i)))
	}
	require.False(t, group.Closed(silent))
	answer()
	receives(t, silent)
}

func TestManyUndosAreSentAFewAtATime(t *testing.T) {
	t.Parallel()
	var underWay, most atomic.Int64
	var once sync.Once
	full := make(chan struct{})
	u := undosOf(t, func(undo) bool {
		n := underWay.Add(1)
		defer underWay.Add(-1)
		if n == mostWorkers {
			once.Do(func() { close(full) })
		}
		<-full // so they do meet
		for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		return true
	})
	var all []<-chan struct{}
	for i := range 10 * mostWorkers {
		all = append(all, u.adds(t, fmt.Sprint(i)))
	}
	for _, settled := range all {
		receives(t, settled)
	}
	require.EqualValues(t, mostWorkers, most.Load())
}

func TestUndosAreSentAgainUntilTheyAreSettled(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	sent := make(map[string]int)
	u := undosOf(t, func(u undo) bool {
		mu.Lock()
		defer mu.Unlock()
		sent[u.field]++
		return sent[u.field] == 3
	})
	a, b := u.adds(t, "a"), u.adds(t, "b")
	receives(t, a)
	receives(t, b)
	require.Equal(t, map[string]int{"a": 3, "b": 3}, sent)
}

// The one under way may have been executed before what the newer one is about.
func TestANewerUndoOfANameIsSentThoughAnOlderOneIsUnderWay(t *testing.T) {
	t.Parallel()
	sent, answers := make(chan undo, 2), make(chan bool, 2)
	u := undosOf(t, func(u undo) bool {
		sent <- u
		return <-answers
	})
	t.Cleanup(func() { close(answers) }) // before the client is closed
	older := u.adds(t, "name")
	receives(t, sent)
	newer := u.adds(t, "name")
	receives(t, sent)
	answers <- true
	answers <- true
	receives(t, older)
	receives(t, newer)
}

func TestAnUndoThatWasReplacedWhileItWasUnderWayIsNotTheLastWord(t *testing.T) {
	t.Parallel()
	var u *undos
	times := 0
	var newer <-chan struct{}
	u = undosOf(t, func(undo) bool {
		if times++; times == 1 {
			newer = u.adds(t, "name")
		}
		return true
	})
	u.mu.Lock()
	u.workers = mostWorkers - 1 // one at a time
	u.mu.Unlock()
	receives(t, u.adds(t, "name"))
	receives(t, newer)
	require.Equal(t, 2, times)
}

func TestATallyIsSettledByMostNodes(t *testing.T) {
	t.Parallel()
	for nodes, most := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3} {
		tally := newTally(nodes)
		for i := range nodes {
			require.Equal(t, i >= most, group.Closed(tally.settled), "%d of %d", i, nodes)
			tally.count()
		}
		require.True(t, group.Closed(tally.settled))
	}
}

// Redis answers none of them.
func TestUndosAreBoundedAndTheOldestAreDropped(t *testing.T) {
	t.Parallel()
	answered := make(chan struct{})
	u := undosOf(t, func(undo) bool { <-answered; return true })
	t.Cleanup(func() { close(answered) }) // before the client is closed
	const n = 2 * mostUndos
	var all []<-chan struct{}
	for i := range n {
		all = append(all, u.adds(t, fmt.Sprint(i)))
	}
	u.mu.Lock()
	kept, lines := len(u.pending), len(u.due)+len(u.unheard)
	u.mu.Unlock()
	require.LessOrEqual(t, lines, mostUndos)
	require.LessOrEqual(t, kept, mostUndos+mostWorkers)
	for i := n - mostUndos; i < n; i++ {
		require.False(t, group.Closed(all[i]), "undo %d of %d is a new one", i, n)
	}
	dropped := 0
	for _, settled := range all[:n-mostUndos] {
		if group.Closed(settled) {
			dropped++
		}
	}
	require.GreaterOrEqual(t, dropped, n-mostUndos-mostWorkers, "nothing is left to be done about them")
}

func TestOfTwoLinesOfUndosTheOneWhoseLeaseEndsFirstIsDropped(t *testing.T) {
	t.Parallel()
	u := undosOf(t, func(undo) bool { return true })
	now := u.client.now()
	lasts := func(name string, d time.Duration) *undo {
		target, err := keys.New("", []string{"key"})
		require.NoError(t, err)
		undo := &undo{target: target, field: name, until: now.After(d)}
		u.pending[undo.id()] = undo
		return undo
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.due = append(u.due, lasts("second", 2), lasts("fourth", 4))
	u.unheard = append(u.unheard, lasts("first", 1), lasts("third", 3))
	for _, name := range []string{"first", "second", "third", "fourth"} {
		u.drop()
		for id := range u.pending {
			require.NotEqual(t, name, id.field)
		}
	}
	require.Empty(t, u.pending)
}
