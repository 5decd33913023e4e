package queue_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waiter is the owner of a ticket.
type waiter struct {
	*queue.Ticket[string]
	alarm *queue.Alarm
}

func newWaiter(q *queue.Queue[string], name string) *waiter {
	alarm := new(queue.Alarm)
	return &waiter{q.Ticket(name, alarm), alarm}
}

// line returns waiters that have joined an empty queue, in this order: the first has the turn.
func line(q *queue.Queue[string], names ...string) []*waiter {
	var all []*waiter
	for _, name := range names {
		w := newWaiter(q, name)
		w.Join()
		all = append(all, w)
	}
	return all
}

func (w *waiter) state() queue.State {
	state, _ := w.State()
	return state
}

// rung reports whether the alarm rang since the last look.
func (w *waiter) rung() bool {
	select {
	case <-w.alarm.C():
		return true
	default:
		return false
	}
}

func anyone(string) bool { return true }

func TestQueue_TurnsFollowArrival(t *testing.T) {
	var q queue.Queue[string]
	all := line(&q, "a", "b", "c", "d")
	all[2].Quit()
	for i, w := range []*waiter{all[0], all[1], all[3]} {
		require.Equal(t, queue.Turn, w.state(), i)
		require.Equal(t, i > 0, w.rung(), "only a change by another waiter rings")
		w.Leave()
		require.Equal(t, queue.Gone, w.state(), i)
	}
	require.True(t, newWaiter(&q, "e").Join(), "the queue is empty again")
}

func TestQueue_NobodyPasses(t *testing.T) {
	var q queue.Queue[string]
	require.True(t, newWaiter(&q, "first").TryJoin())
	late := newWaiter(&q, "late")
	require.False(t, late.TryJoin())
	require.Equal(t, queue.Gone, late.state(), "a failed TryJoin leaves nothing behind")
	require.False(t, late.Join())
	require.False(t, newWaiter(&q, "later").TryJoin())
}

func TestQueue_WakeUpIsKeptUntilATryThatBeganAfterIt(t *testing.T) {
	var q queue.Queue[string]
	all := line(&q, "a", "b")
	a, b := all[0], all[1]
	require.True(t, a.News(), "who got the turn tries at once")
	require.False(t, a.News())
	q.Wake() // during the try
	require.True(t, a.rung())
	require.False(t, b.rung(), "who only waits costs nothing")
	require.True(t, a.News())
	require.False(t, a.News())

	q.Wake()
	a.Leave() // without having tried
	require.True(t, b.News())
	require.False(t, b.News())
}

func TestQueue_WakeUpOutlivesALeavingHeadAndAHandOver(t *testing.T) {
	for name, pass := range map[string]func(a, b *waiter){
		"leave":   func(a, _ *waiter) { a.Leave() },
		"handoff": func(a, b *waiter) { a.Reserve(anyone); a.Grant(b.Ticket) },
		"replace": func(a, b *waiter) { b.Quit(); a.Replace(b.Ticket) },
	} {
		t.Run(name, func(t *testing.T) {
			var q queue.Queue[string]
			all := line(&q, "a", "b")
			a, b := all[0], all[1]
			a.News()
			q.Wake()
			pass(a, b)
			require.Equal(t, queue.Turn, b.state())
			require.True(t, b.rung())
			require.True(t, b.News())
			q.Wake()
			require.True(t, b.rung())
			require.True(t, b.News())
		})
	}
}

func TestQueue_WakeUpForNobodyIsNotMissed(t *testing.T) {
	var q queue.Queue[string]
	q.Wake()
	a := line(&q, "a")[0]
	require.True(t, a.News())
	require.False(t, a.News())
}

func TestQueue_GiveWayLetsTheNextWaitForALaterWakeUp(t *testing.T) {
	t.Run("it comes later", func(t *testing.T) {
		var q queue.Queue[string]
		all := line(&q, "a", "b")
		q.Wake()
		all[0].GiveWay(q.Wakes(), 2)
		require.Equal(t, queue.Turn, all[1].state())
		require.True(t, all[1].rung())
		require.False(t, all[1].News(), "it competes with the other processes")
		q.Wake()
		require.True(t, all[1].rung())
		require.True(t, all[1].News())
	})
	t.Run("it came before the turn did", func(t *testing.T) {
		var q queue.Queue[string]
		all := line(&q, "a", "b")
		mark := q.Wakes()
		q.Wake()
		all[0].GiveWay(mark, 2)
		require.True(t, all[1].News())
		require.False(t, all[1].News())
	})
}

func TestQueue_ReservedTicketStaysUntilTheHandOverIsSettled(t *testing.T) {
	var q queue.Queue[string]
	all := line(&q, "a", "b", "c")
	a, b, c := all[0], all[1], all[2]

	require.Nil(t, b.Reserve(anyone), "only who has the turn can pass it on")
	require.Nil(t, a.Reserve(func(string) bool { return false }))
	require.Equal(t, queue.Waiting, b.state())

	require.Same(t, b.Ticket, a.Reserve(anyone))
	require.Equal(t, queue.Reserved, b.state())
	require.Nil(t, a.Reserve(anyone), "one at a time")
	q.Fail(errors.New("outage"), anyone)
	require.Equal(t, queue.Reserved, b.state())
	require.Equal(t, queue.Failed, c.state())

	b.Refuse()
	require.Equal(t, queue.Waiting, b.state())
	require.False(t, b.rung())
	a.Leave()
	require.Equal(t, queue.Turn, b.state(), "it still has its place")
	b.Refuse()
	require.Equal(t, queue.Turn, b.state(), "too late")
}

func TestQueue_HandOverIsGrantedOrQuit(t *testing.T) {
	t.Run("granted first", func(t *testing.T) {
		var q queue.Queue[string]
		all := line(&q, "a", "b")
		require.NotNil(t, all[0].Reserve(anyone))
		require.True(t, all[0].Grant(all[1].Ticket))
		require.Equal(t, queue.Turn, all[1].Quit(), "it learns that it has the lock")
		require.Equal(t, queue.Turn, all[1].state())
		require.Equal(t, queue.Gone, all[0].state())
	})
	t.Run("quit first", func(t *testing.T) {
		var q queue.Queue[string]
		all := line(&q, "a", "b", "c")
		require.NotNil(t, all[0].Reserve(anyone))
		require.Equal(t, queue.Reserved, all[1].Quit())
		require.False(t, all[0].Grant(all[1].Ticket))
		require.Equal(t, queue.Turn, all[0].state())
		require.Equal(t, queue.Gone, all[1].state())
		require.Same(t, all[2].Ticket, all[0].Reserve(anyone))
	})
	t.Run("refused, then granted by mistake", func(t *testing.T) {
		var q queue.Queue[string]
		all := line(&q, "a", "b")
		all[0].Reserve(anyone)
		all[1].Refuse()
		require.False(t, all[0].Grant(all[1].Ticket))
	})
}

func TestQueue_ReplacePassesTheTurnPastTheLine(t *testing.T) {
	var q queue.Queue[string]
	all := line(&q, "a", "b")
	heir := newWaiter(&q, "heir")
	all[0].Replace(heir.Ticket)
	require.Equal(t, queue.Gone, all[0].state())
	require.Equal(t, queue.Turn, heir.state())
	require.True(t, heir.rung())
	require.Equal(t, queue.Waiting, all[1].state())
	all[0].Leave()
	require.Equal(t, queue.Turn, heir.state(), "who is gone cannot give the turn away")
	heir.Leave()
	require.Equal(t, queue.Turn, all[1].state())
}

func TestQueue_FailTakesOnlyTheChosen(t *testing.T) {
	var q queue.Queue[string]
	all := line(&q, "turn", "old", "new", "old")
	outage := errors.New("outage")
	q.Fail(outage, func(name string) bool { return name == "old" || name == "turn" })
	for i, want := range []queue.State{queue.Turn, queue.Failed, queue.Waiting, queue.Failed} {
		state, err := all[i].State()
		require.Equal(t, want, state, i)
		require.Equal(t, want == queue.Failed, all[i].rung(), i)
		if want == queue.Failed {
			require.Same(t, outage, err)
		}
	}
	require.Equal(t, queue.Failed, all[1].Quit())
	all[3].Leave()
	all[0].Leave()
	require.Equal(t, queue.Turn, all[2].state())
	_, waiting := q.Handoffs()
	require.False(t, waiting)
}

func TestQueue_CountsHandOversInARow(t *testing.T) {
	var q queue.Queue[string]
	all := line(&q, "a", "b", "c", "d", "e")
	for i, w := range all[:2] {
		inRow, waiting := q.Handoffs()
		require.Equal(t, i, inRow)
		require.True(t, waiting)
		require.True(t, w.Grant(w.Reserve(anyone)))
	}
	heir := newWaiter(&q, "heir")
	all[2].Replace(heir.Ticket)
	inRow, _ := q.Handoffs()
	require.Equal(t, 2, inRow, "the lock was not free in between")
	heir.GiveWay(q.Wakes(), 2)
	inRow, _ = q.Handoffs()
	require.Zero(t, inRow)
	require.True(t, all[3].Grant(all[3].Reserve(anyone)))
	inRow, waiting := q.Handoffs()
	require.Equal(t, 1, inRow)
	require.False(t, waiting)
	all[4].Leave()
	inRow, _ = q.Handoffs()
	require.Zero(t, inRow)
}

func TestQueue_ProcessThatGaveWayIsLastUntilAllHadATurn(t *testing.T) {
	var q queue.Queue[string]
	all := line(&q, "a", "b")
	require.Zero(t, q.Ahead())
	all[0].GiveWay(q.Wakes(), 3)
	for ahead := 3; ahead > 0; ahead-- {
		require.Equal(t, ahead, q.Ahead())
		q.Wake()
	}
	q.Wake()
	require.Zero(t, q.Ahead())
}

func TestQueue_ProcessThatWasServedLetsNobodyPass(t *testing.T) {
	var q queue.Queue[string]
	all := line(&q, "a", "b")
	all[0].GiveWay(q.Wakes(), 3)
	q.Served()
	require.Zero(t, q.Ahead())
}

func TestQueue_OpeningLetsAllOthersOut(t *testing.T) {
	var q queue.Queue[string]
	all := line(&q, "a", "b", "c", "d")
	require.NotNil(t, all[0].Reserve(anyone)) // even from there
	all[2].Open()
	require.Equal(t, queue.Gone, all[2].state(), "without the turn it leaves alone")
	require.True(t, q.Taken())
	require.Equal(t, queue.Turn, all[0].state())

	all[0].Open()
	require.False(t, q.Taken())
	for _, w := range []*waiter{all[0], all[1], all[3]} {
		require.Equal(t, queue.Gone, w.state())
	}
	require.True(t, all[1].rung())
	require.True(t, all[3].rung())
	require.True(t, all[3].Join(), "it may come again")
	require.False(t, all[1].Join())
	require.True(t, q.Taken())
}
