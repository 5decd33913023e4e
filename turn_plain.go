package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// plainTurn is the turn of a plain lock: one local waiter at a time has the turn on
// a key. Only that waiter asks Redis, and it keeps the turn for as long as it holds the lock, so
// that it can hand over both to the next.
//
// An attempt that wants several keys waits in one queue at a time: the queue of the key which was
// last found taken. So it delays no other waiter on the other keys. For a try it collects the
// turns on those keys, and keeps them for a bounded time. Without the bound it would delay the
// others; without keeping them it would starve if every key is always in use.
type plainTurn struct {
	a        *attempt
	line     bool // other processes wait in a line: the last holder does not give way to them
	failures int  // how often it failed to collect all turns
}

var _ turn = (*plainTurn)(nil)

// newPlainTurn returns the turn of an attempt of a Mutex or MultiMutex on a quorum.
func newPlainTurn(a *attempt) turn {
	a.longestSleep = a.hold.settings.SafetyPoll
	return &plainTurn{a: a}
}

// await collects the turns on all keys.
func (t *plainTurn) await() (bool, error) {
	a := t.a
	for {
		// With the turn in one queue it asks for the turns in the others. If one is taken, it waits in that queue next.
		if turn, err := t.awaitFirst(); !turn {
			return false, err
		}
		if a.hold.named() {
			// The hand-over counts only if its lease has not ended. Otherwise the attempt asks Redis as a newcomer does.
			if !a.hold.late() {
				return true, nil
			}
			t.releaseTurns()
		}
		if turn, err := t.acquireTurns(); turn || err != nil || !t.a.hold.waits {
			return turn, err
		}
	}
}

func (t *plainTurn) ask() (protocol.Grant, redisexec.Outcome) { return t.askAs(t.a.newName()) }

// askAs asks for all keys under the name n.
func (t *plainTurn) askAs(n keys.Name) (protocol.Grant, redisexec.Outcome) {
	a := t.a
	g, out := a.hold.kind.protocol.Acquire(a.ctx, a.callOptions(), a.hold.target, n.Field, &a.hold.settings.Terms)
	return t.answered(n, g, out)
}

// answered judges the answer to a request for n.
func (t *plainTurn) answered(n keys.Name, g protocol.Grant, out redisexec.Outcome) (protocol.Grant, redisexec.Outcome) {
	a := t.a
	a.doubted(n, g, out)
	if a.answered(n, &g, &out); out.Err != nil {
		return g, out
	}
	// If a poll returns what a message should have announced, the subscription is suspect.
	a.suspect(g)
	if g.Held && a.queued {
		a.hold.queueEntries[a.at].queue.Served()
	}
	return g, out
}

// rest keeps its entry in one queue and sleeps there: a release of that key wakes it.
func (t *plainTurn) rest(d time.Duration) error {
	t.releaseTurns()
	return t.a.sleepFor(d)
}

func (t *plainTurn) end(granted bool) {
	if !granted {
		t.a.hold.leave()
	}
}

// pubsubDelay is the time that a wake-up, which was just published and wakes other processes too, is given to
// arrive.
const pubsubDelay = 20 * time.Millisecond

// gathering is how long the attempt waits for a turn on one key while it keeps those on others. It doubles after
// each failure, up to gatheringMax.
const (
	gathering    = 40 * time.Millisecond
	gatheringMax = 2 * time.Second
)

// awaitFirst waits for the turn in the queue where the attempt waits. It leaves the turns on the other keys to
// acquireTurns, so that a waiting attempt delays others on one key only. Only a hand-over brings the turn on every
// key. false, nil: the attempt is a TryLock, and another waiter has the turn.
func (t *plainTurn) awaitFirst() (bool, error) {
	a := t.a
	ticket := a.hold.queueEntries[a.at].ticket
	if state, _ := ticket.State(); state == queue.Turn {
		return true, nil
	}
	// A try never waits here: awaitHere reports at once whether another waiter has the turn.
	if turn, err := a.awaitHere(ticket); !turn || !a.hold.waits {
		return turn, err
	}
	if a.hold.named() {
		t.takeOver()
		return true, nil
	}
	if !t.line && !a.news() {
		// The last holder released the lock to all, to give way to other processes: compete with them, and wait
		// for the same message.
		// mutant: wakeup-consumed/2
		if err := a.sleepFor(clock.Jitter(2 * pubsubDelay)); err != nil {
			return false, err
		}
	}
	return true, nil
}

// takeOver waits until a hand-over, which comes with the turn on one key, has passed the turns on the other keys. That
// always happens.
func (t *plainTurn) takeOver() {
	for _, p := range t.a.hold.queueEntries {
		for state, _ := p.ticket.State(); state != queue.Turn; state, _ = p.ticket.State() {
			<-t.a.hold.alarm.C()
		}
	}
}

// acquireTurns collects the turns on the other keys, in their order. It waits only for later keys,
// so attempts cannot wait for each other in a circle. If a turn is not available in time, the
// attempt waits in that queue instead.
func (t *plainTurn) acquireTurns() (bool, error) {
	a := t.a
	for i, p := range a.hold.queueEntries {
		if state, _ := p.ticket.State(); state == queue.Turn || p.ticket.TryJoin() {
			continue
		}
		turn, err := false, error(nil)
		// Waiting only for later keys is what breaks circles: see multiTurn, which does the same on Redis.
		if a.hold.waits && i > a.at {
			turn, err = t.awaitOther(p.ticket)
		}
		if !turn {
			a.at = i
			t.releaseTurns()
			return false, err
		}
	}
	return true, nil
}

// awaitOther waits for the turn on another key, for a bounded time.
func (t *plainTurn) awaitOther(ticket *queue.Ticket[*hold]) (bool, error) {
	if ticket.Join() {
		return true, nil
	}
	a := t.a
	a.contend()
	// The time is random, so that two attempts that block each other do not collide again and again.
	until := a.hold.session.now().After(clock.Jitter(min(gathering<<min(t.failures, 10), gatheringMax)))
	for {
		if state, err := ticket.State(); state == queue.Turn || state == queue.Failed {
			return state == queue.Turn, err
		}
		left := a.hold.session.now().Until(until)
		if left <= 0 {
			// It may have received the turn at the last moment, which Quit reports.
			t.failures++
			return ticket.Quit() == queue.Turn, nil
		}
		if err := a.sleep(left); err != nil {
			return false, err
		}
	}
}

// releaseTurns gives up the turns on the keys in whose queues the attempt does not wait, so that other local owners can
// have those keys while it sleeps.
func (t *plainTurn) releaseTurns() {
	for i, p := range t.a.hold.queueEntries {
		if i != t.a.at {
			p.ticket.Leave()
		}
	}
}
