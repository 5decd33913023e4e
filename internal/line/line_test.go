package line

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// A trial is a line whose clock and messages a test makes.
type trial struct {
	*Line
	queue queue.Queue[string] // for the turn to poll
	t     *testing.T
	hub   *hub
	now   clock.Instant
}

func newTrial(t *testing.T) *trial {
	b := &trial{t: t, hub: newHub(), now: clock.Instant{}.After(time.Hour)}
	b.Line = New(b.hub, func() clock.Instant { return b.now }, "releases", "grants", &b.queue.Bell)
	return b
}

// terms are such that an entry lives for 5 s, and is polled for every 5/3 s.
func terms() *protocol.Terms {
	return &protocol.Terms{TTL: 30 * time.Second, SafetyPoll: 10 * time.Second}
}

const poll = 5 * time.Second / 3

// place is the entry of a waiter, and how often the waiter was notified.
type place struct {
	*Entry
	rung int
}

// enters makes a place whose request is about to be sent.
func (b *trial) enters(ticket uint64, terms *protocol.Terms) *place {
	p := new(place)
	p.Entry = b.Enter(ticket, "field", terms, func() { p.rung++ })
	return p
}

// placed makes a place whose request was answered.
func (b *trial) placed(ticket uint64) *place {
	p := b.enters(ticket, terms())
	b.Placed(p.Entry, 0, redisexec.Outcome{Sent: b.now})
	return p
}

// stands asserts how p stands, and how often its waiter was rung.
func (b *trial) stands(p *place, want protocol.EntryState, rung int) {
	b.t.Helper()
	require.Equal(b.t, want, b.EntryStatus(p.Entry).State)
	require.Equal(b.t, rung, p.rung, "rings")
}

// wakes reports how many wake-ups f causes.
func (b *trial) wakes(f func()) int {
	before := b.queue.Wakes()
	f()
	return int(b.queue.Wakes() - before)
}

const asking = protocol.EntryState(0)

func TestEntry_WaitsOnceItsRequestIsAnswered(t *testing.T) {
	b := newTrial(t)
	p := b.enters(1, terms())
	b.stands(p, asking, 0)
	require.Empty(t, b.Waiting())
	b.Placed(p.Entry, 0, redisexec.Outcome{Sent: b.now})
	b.stands(p, protocol.EntryWaiting, 0)
	require.Equal(t, b.now, b.EntryStatus(p.Entry).Proof)
	require.Equal(t, []*Entry{p.Entry}, b.Waiting())
}

func TestLine_ListsWaitersInOrderOfArrival(t *testing.T) {
	b := newTrial(t)
	var want []*Entry
	for _, ticket := range []uint64{7, 2, 11, 5, 3} {
		b.placed(ticket)
	}
	b.enters(4, terms()) // is not answered yet
	for _, ticket := range []uint64{2, 3, 5, 7, 11} {
		want = append(want, b.entries[ticket])
	}
	require.Equal(t, want, b.Waiting())
	b.Remove(want[2])
	require.Equal(t, append(want[:2:2], want[3:]...), b.Waiting())
}

func TestEntry_IsSettledByAGrantOnce(t *testing.T) {
	b := newTrial(t)
	p, other := b.placed(1), b.placed(2)
	b.message("1 42")
	b.stands(p, protocol.EntryGranted, 1)
	require.Equal(t, int64(42), b.EntryStatus(p.Entry).Token)
	b.stands(other, protocol.EntryWaiting, 0)
	for _, again := range []string{"1 42", "1 43", "1"} {
		b.message(again)
	}
	b.Update([]*Entry{p.Entry}, []protocol.EntryStatus{{State: protocol.EntryGone}}, b.now)
	b.stands(p, protocol.EntryGranted, 1)
	require.Equal(t, int64(42), b.EntryStatus(p.Entry).Token)
}

// notified reports whether a message about a grant has arrived for an entry without an answer.
func (b *trial) notified() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(b.entries)), func(e *Entry) bool { return e.notified })
}

func TestEntry_EarlyMessageIsKeptUntilTheAnswer(t *testing.T) {
	b := newTrial(t)
	p := b.enters(1, terms())
	b.message("1 42")
	b.stands(p, asking, 0)
	require.True(t, b.notified())
	b.Placed(p.Entry, 0, redisexec.Outcome{Sent: b.now})
	b.stands(p, protocol.EntryGranted, 1)
	require.Equal(t, int64(42), b.EntryStatus(p.Entry).Token)
	require.False(t, b.notified())
}

// Each is a reason to ask, and no more.
func TestEntry_UnprovenGrantIsNotTaken(t *testing.T) {
	fenced := terms()
	fenced.Fencing = true
	for name, c := range map[string]struct {
		terms   *protocol.Terms
		out     redisexec.Outcome
		passes  time.Duration
		message string
		granted bool
	}{
		"it is proven": {terms: terms(), message: "1 0", granted: true},
		"a copy of the request may make it again":     {terms: terms(), out: redisexec.Outcome{Ambiguous: true}, message: "1 42"},
		"just before half of its lease is over":       {terms: terms(), passes: 2450*time.Millisecond - 1, message: "1 42", granted: true},
		"half of its lease is over":                   {terms: terms(), passes: 2450 * time.Millisecond, message: "1 42"},
		"a token was wished, and is given":            {terms: fenced, message: "1 42", granted: true},
		"a token was wished, and is not given":        {terms: fenced, message: "1"},
		"a token was wished, and is none":             {terms: fenced, message: "1 none"},
		"no token was wished, and what is given none": {terms: terms(), message: "1 none", granted: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTrial(t)
			p := b.enters(1, c.terms)
			c.out.Sent = b.now
			b.Placed(p.Entry, 0, c.out)
			b.now = b.now.After(c.passes)
			wakes := b.wakes(func() { b.message(c.message) })
			if c.granted {
				b.stands(p, protocol.EntryGranted, 1)
				require.Zero(t, wakes)
				return
			}
			b.stands(p, protocol.EntryWaiting, 0)
			require.Equal(t, 1, wakes, "it is to ask")
			require.Equal(t, []*Entry{p.Entry}, b.Waiting())
		})
	}
}

func TestLine_MeaninglessMessagesChangeNothing(t *testing.T) {
	b := newTrial(t)
	p := b.placed(1)
	for _, payload := range []string{"", "x", "-1 2", "2 42", " 1", "1x 42", "99999999999999999999 1"} {
		require.Zero(t, b.wakes(func() { b.message(payload) }), "%q", payload)
		b.stands(p, protocol.EntryWaiting, 0)
	}
}

func TestLine_BroadcastsWakeAllUnlessForForeignWaiters(t *testing.T) {
	b := newTrial(t)
	for payload, want := range map[string]int{"0": 1, "": 1, "anything": 1, foreignTurn: 0} {
		require.Equal(t, want, b.wakes(func() { b.released(payload) }), "%q", payload)
	}
	require.Equal(t, 1, b.wakes(func() { b.message(ask) }), "the first in line is left waiting")
}

// A poll for which it was too early may have used the wake-up.
func TestLine_WakeUpBetweenRequestAndAnswerIsRepeated(t *testing.T) {
	b := newTrial(t)
	p := b.enters(1, terms())
	require.Zero(t, b.wakes(func() { b.Placed(p.Entry, 0, redisexec.Outcome{Sent: b.now}) }))
	p = b.enters(2, terms())
	b.queue.Wake()
	require.Equal(t, 1, b.wakes(func() { b.Placed(p.Entry, 0, redisexec.Outcome{Sent: b.now}) }))
}

// The table of what a poll may say of a place.
func TestLine_PollSettlesPlacesThatWaitNoMore(t *testing.T) {
	for name, c := range map[string]struct {
		answer  protocol.EntryStatus
		settled bool
	}{
		"it waits":                {protocol.EntryStatus{State: protocol.EntryWaiting}, false},
		"it was granted":          {protocol.EntryStatus{State: protocol.EntryGranted, Token: 7}, true},
		"it was granted long ago": {protocol.EntryStatus{State: protocol.EntryGranted, Late: true}, true},
		"it is gone":              {protocol.EntryStatus{State: protocol.EntryGone}, true},
		"it has failed":           {protocol.EntryStatus{State: protocol.EntryFailed, Err: errRefused}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTrial(t)
			p, other := b.placed(1), b.placed(2)
			sent := b.now.After(time.Second)
			late := b.Update([]*Entry{p.Entry, other.Entry}, []protocol.EntryStatus{c.answer, {State: protocol.EntryWaiting}}, sent)
			require.Equal(t, c.answer.Late, late)
			want := c.answer
			want.Proof = sent
			require.Equal(t, want, b.EntryStatus(p.Entry))
			require.Equal(t, c.settled, p.rung == 1)
			require.Equal(t, c.settled, b.entries[1] == nil)
			b.stands(other, protocol.EntryWaiting, 0)
			require.Equal(t, sent, b.EntryStatus(other.Entry).Proof)
		})
	}
}

func TestLine_PollMovesNoPlaceThatLeft(t *testing.T) {
	b := newTrial(t)
	p, asks := b.placed(1), b.enters(2, terms())
	b.Remove(p.Entry)
	granted := protocol.EntryStatus{State: protocol.EntryGranted, Late: true}
	require.False(t, b.Update([]*Entry{p.Entry, asks.Entry}, []protocol.EntryStatus{granted, granted}, b.now))
	b.stands(p, protocol.EntryWaiting, 0)
	b.stands(asks, asking, 0)
	b.message("1 42")
	b.stands(p, protocol.EntryWaiting, 0)
}

func TestEntry_PassesToAnotherWaiterOfTheProcess(t *testing.T) {
	for name, settledBefore := range map[string]bool{"that waits": false, "that has become the lock by then": true} {
		t.Run(name, func(t *testing.T) {
			b := newTrial(t)
			p := b.placed(1)
			heir := 0
			if settledBefore {
				b.message("1 42")
			}
			before := p.rung
			b.Adopt(p.Entry, func() { heir++ })
			require.Equal(t, settledBefore, heir == 1, "it is notified of what has happened")
			b.message("1 42")
			require.Equal(t, 1, heir)
			require.Equal(t, before, p.rung, "the one before is not notified any more")
		})
	}
}

func TestLine_NextPollSuitsTheShortestLease(t *testing.T) {
	b := newTrial(t)
	p := b.placed(1)
	b.Schedule(p.Entry, time.Second, false)
	require.Equal(t, b.now.After(time.Second), b.Due(), "as the only one says")
	b.Schedule(p.Entry, 1500*time.Millisecond, false)
	require.Equal(t, b.now.After(1500*time.Millisecond), b.Due(), "as the only one says")

	other := b.placed(2)
	b.Schedule(other.Entry, time.Minute, false)
	require.Equal(t, b.now.After(1500*time.Millisecond), b.Due(), "no later than suits those before")
	b.Schedule(other.Entry, 100*time.Millisecond, false)
	require.Equal(t, b.now.After(100*time.Millisecond), b.Due(), "no later than suits the one that has come")

	b.Schedule(p.Entry, time.Minute, true)
	require.Equal(t, b.now.After(poll), b.Due(), "one has just polled for all")
	brief := terms()
	brief.SafetyPoll = 300 * time.Millisecond
	b.enters(3, brief)
	b.Schedule(p.Entry, time.Minute, true)
	require.Equal(t, b.now.After(brief.EntryPoll()), b.Due())
}

func TestLine_PollerChecksWhenAPollIsDueSooner(t *testing.T) {
	b := newTrial(t)
	alarm := new(queue.Alarm)
	require.True(t, b.queue.Ticket("first", alarm).Join())
	p, other := b.placed(1), b.placed(2)
	b.Schedule(p.Entry, time.Second, true)
	b.Schedule(other.Entry, 2*time.Second, false)
	require.Empty(t, alarm.C(), "its poll is no sooner")
	b.Schedule(other.Entry, time.Millisecond, false)
	require.Len(t, alarm.C(), 1)
	require.Zero(t, b.queue.Wakes(), "it is no wake-up: there is no news")
}

func TestLine_OneMessageGrantsSeveralTickets(t *testing.T) {
	b := newTrial(t)
	first, waits, last := b.placed(1), b.placed(2), b.placed(3)
	b.message("1 0 7 0 x 0 3 0")
	b.stands(first, protocol.EntryGranted, 1)
	b.stands(waits, protocol.EntryWaiting, 0)
	b.stands(last, protocol.EntryGranted, 1)
}
