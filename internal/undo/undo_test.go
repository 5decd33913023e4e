package undo

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// queueOf returns a queue whose names settle releases. It is waited for when the test is over.
func queueOf(t *testing.T, settle func(Name) bool) *Queue {
	t.Helper()
	var running goroutine.Group
	ctx, end := context.WithCancel(context.Background())
	t.Cleanup(func() {
		end()
		running.Wait(context.Background())
	})
	return New(goroutine.Life{Now: clock.System, Go: running.Go, Ctx: ctx}, settle)
}

// adds has the name undone, for an hour at most.
func (q *Queue) adds(t *testing.T, name string) (settled <-chan struct{}) {
	t.Helper()
	target := new(keys.Set)
	require.NoError(t, target.Init("", []string{"key"}))
	return Add(Name{Keys: target, Field: name, Until: q.life.Now().After(time.Hour)}, q)
}

func TestUndo_UnansweredOneBlocksNoOther(t *testing.T) {
	t.Parallel()
	sent, answered := make(chan struct{}), make(chan struct{})
	answer := sync.OnceFunc(func() { close(answered) })
	q := queueOf(t, func(n Name) bool {
		if n.Field == "silent" {
			close(sent)
			<-answered
		}
		return true
	})
	t.Cleanup(answer) // before the queue is waited for
	silent := q.adds(t, "silent")
	redistest.Receive(t, sent)
	for i := range 100 {
		redistest.Receive(t, q.adds(t, fmt.Sprint(i)))
	}
	require.False(t, goroutine.Closed(silent))
	answer()
	redistest.Receive(t, silent)
}

func TestUndo_ManyAreSentAFewAtATime(t *testing.T) {
	t.Parallel()
	var underWay, most atomic.Int64
	var once sync.Once
	full := make(chan struct{})
	q := queueOf(t, func(Name) bool {
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
		all = append(all, q.adds(t, fmt.Sprint(i)))
	}
	for _, settled := range all {
		redistest.Receive(t, settled)
	}
	require.EqualValues(t, mostWorkers, most.Load())
}

func TestUndo_IsSentAgainUntilSettled(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	sent := make(map[string]int)
	q := queueOf(t, func(n Name) bool {
		mu.Lock()
		defer mu.Unlock()
		sent[n.Field]++
		return sent[n.Field] == 3
	})
	a, b := q.adds(t, "a"), q.adds(t, "b")
	redistest.Receive(t, a)
	redistest.Receive(t, b)
	require.Equal(t, map[string]int{"a": 3, "b": 3}, sent)
}

// The one under way may have been executed before what the newer one is about.
func TestUndo_NewerOneOfANameIsSentBesideAnOlder(t *testing.T) {
	t.Parallel()
	sent, answers := make(chan Name, 2), make(chan bool, 2)
	q := queueOf(t, func(n Name) bool {
		sent <- n
		return <-answers
	})
	t.Cleanup(func() { close(answers) }) // before the queue is waited for
	older := q.adds(t, "name")
	redistest.Receive(t, sent)
	newer := q.adds(t, "name")
	redistest.Receive(t, sent)
	answers <- true
	answers <- true
	redistest.Receive(t, older)
	redistest.Receive(t, newer)
}

func TestUndo_ReplacedInFlightIsNotFinal(t *testing.T) {
	t.Parallel()
	var q *Queue
	times := 0
	var newer <-chan struct{}
	q = queueOf(t, func(Name) bool {
		if times++; times == 1 {
			newer = q.adds(t, "name")
		}
		return true
	})
	q.mu.Lock()
	q.workers = mostWorkers - 1 // one at a time
	q.mu.Unlock()
	redistest.Receive(t, q.adds(t, "name"))
	redistest.Receive(t, newer)
	require.Equal(t, 2, times)
}

func TestUndo_TallyIsSettledByMostNodes(t *testing.T) {
	t.Parallel()
	for nodes, most := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3} {
		tally := newTally(nodes)
		for i := range nodes {
			require.Equal(t, i >= most, goroutine.Closed(tally.settled), "%d of %d", i, nodes)
			tally.count()
		}
		require.True(t, goroutine.Closed(tally.settled))
	}
}

// Redis answers none of them.
func TestUndo_AreBoundedAndTheOldestIsDropped(t *testing.T) {
	t.Parallel()
	answered := make(chan struct{})
	q := queueOf(t, func(Name) bool { <-answered; return true })
	t.Cleanup(func() { close(answered) }) // before the queue is waited for
	const n = 2 * mostUndos
	var all []<-chan struct{}
	for i := range n {
		all = append(all, q.adds(t, fmt.Sprint(i)))
	}
	q.mu.Lock()
	kept, lines := len(q.pending), len(q.due)+len(q.unanswered)
	q.mu.Unlock()
	require.LessOrEqual(t, lines, mostUndos)
	require.LessOrEqual(t, kept, mostUndos+mostWorkers)
	for i := n - mostUndos; i < n; i++ {
		require.False(t, goroutine.Closed(all[i]), "undo %d of %d is a new one", i, n)
	}
	dropped := 0
	for _, settled := range all[:n-mostUndos] {
		if goroutine.Closed(settled) {
			dropped++
		}
	}
	require.GreaterOrEqual(t, dropped, n-mostUndos-mostWorkers, "nothing is left to be done about them")
}

func TestUndo_OfTwoQueuesTheEarliestLeaseIsDropped(t *testing.T) {
	t.Parallel()
	q := queueOf(t, func(Name) bool { return true })
	now := clock.System()
	lasts := func(name string, d time.Duration) *Name {
		target := new(keys.Set)
		require.NoError(t, target.Init("", []string{"key"}))
		n := &Name{Keys: target, Field: name, Until: now.After(d)}
		q.pending[n.id()] = n
		return n
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.due = append(q.due, lasts("second", 2), lasts("fourth", 4))
	q.unanswered = append(q.unanswered, lasts("first", 1), lasts("third", 3))
	for _, name := range []string{"first", "second", "third", "fourth"} {
		q.drop()
		for id := range q.pending {
			require.NotEqual(t, name, id.field)
		}
	}
	require.Empty(t, q.pending)
}

func TestUndo_NameWithADelayedCopyIsReleasedAgainAtDoublingPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		q := queueOf(t, func(n Name) bool {
			at = append(at, time.Since(began))
			require.Equal(t, len(at) == 1, n.Unobserved, "a waiter may have met the copy by the second time")
			return true
		})
		target := new(keys.Set)
		require.NoError(t, target.Init("", []string{"key"}))
		n := Name{Keys: target, Field: "name", Until: q.life.Now().After(4 * time.Second), Unobserved: true, Late: true}
		<-Add(n, q)
		require.Empty(t, q.Pending(), "no one waits for what comes late")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []time.Duration{0, 200 * time.Millisecond, 600 * time.Millisecond, 1400 * time.Millisecond, 3 * time.Second}, at)
		require.Zero(t, q.late)
	})
}

func TestUndo_NameWithADelayedCopyIsNotReleasedAgainAfterClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		released := 0
		ctx, end := context.WithCancel(t.Context())
		var running goroutine.Group
		q := New(goroutine.Life{Now: clock.System, Go: running.Go, Ctx: ctx}, func(Name) bool { released++; return true })
		target := new(keys.Set)
		require.NoError(t, target.Init("", []string{"key"}))
		<-Add(Name{Keys: target, Field: "name", Until: q.life.Now().After(time.Minute), Late: true}, q)
		end()
		running.Wait(t.Context())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 1, released)
	})
}

// Of three nodes one does not answer. What was added to all is settled by the others; what was added to that one is its
// own.
func TestAwait_WaitsForMostQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		frozen := make(chan struct{})
		answer := func(Name) bool { time.Sleep(time.Second); return true }
		queues := []*Queue{queueOf(t, answer), queueOf(t, answer), queueOf(t, func(Name) bool { <-frozen; return true })}
		defer close(frozen)
		target := new(keys.Set)
		require.NoError(t, target.Init("", []string{"key"}))
		n := Name{Keys: target, Field: "one", Until: clock.System().After(time.Hour)}
		Add(n, queues...)
		n.Field = "other"
		queues[2].Add(n)
		began := time.Now()
		Await(t.Context(), queues...)
		require.Equal(t, time.Second, time.Since(began))

		n.Field = "third"
		Add(n, queues[2])
		soon, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began = time.Now()
		Await(soon, queues...)
		require.Equal(t, time.Minute, time.Since(began))
	})
}
