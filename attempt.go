package relock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// An attempt acquires keys for a hold: it waits for its turn, asks Redis, and sleeps in between.
//
// It is one acquisition, of keys that the owner does not hold, until Redis grants them or the attempt gives up.
// hold.acquire is its state machine:
//
//	in line --may ask--> asking --granted--------------------> held
//	   ^  \                |  \--final error, end of ctx------> given up
//	   |   \--handed over--|-----------------------------------> held
//	   |                   | taken, or a temporary error
//	   +-----news--------asleep --end of ctx------------------> given up
//
// Only the goroutine of the attempt changes its state. Others ring the alarm of the hold: the local queue when its turn
// has come, a message, the end of another local hold.
//
// How a waiter gets in line, asks and sleeps depends on the kind of lock. That is its turn, one object for each attempt.
// With a mutexTurn, waiters join the local queue, and the first of them has an entry in the line for all; with a
// fairTurn, each waiter has an entry; a multiTurn is for several keys; a plainTurn is for a quorum, which has no line;
// writers and readers have turns of their own.
//
// Invariants:
//   - At most one request of an attempt is in flight, under the client's current identity.
//   - If the outcome of a request is unknown, its identity is retired and its name is undone before
//     the next request is sent. So a delayed copy meets a name that nothing uses.
//   - A grant counts only while its lease is proven here. If a grant comes later, its name is retired, and
//     released in the background.
//   - After a failure nothing remains, here or on Redis, that is not being undone.
//
// What can come late: the answer to a request (answered judges it), a hand-over to a waiter that has left (its sender
// undoes it), the message of a grant to a waiter that has left (lineWaiter.end), and a
// wake-up, which the queue keeps until a request that began after it is answered.

// tryOptions are the options of one try to acquire: a few quick copies.
var tryOptions = redisexec.CallOptions{Attempts: 3}

// A waiter that cannot receive messages polls: fast while the owner keeps changing, then less and less often.
const (
	fastPoll    = 50 * time.Millisecond
	fastPollMax = 250 * time.Millisecond
)

// errLate is the failure of a grant that arrived after the end of its lease.
var errLate = errors.New("the lock was granted, but the answer arrived after the lease had expired: use a longer TTL")

// turn determines when and how one attempt asks Redis for the keys. All methods run on the goroutine of the attempt.
type turn interface {
	// await waits until the attempt may ask Redis and has a reason to, or was given the lock; then its hold has a name.
	// false, nil: the attempt does not wait, and another waiter is before it.
	await() (bool, error)
	// ask makes one request, or determines the state in another way.
	ask() (protocol.Grant, redisexec.Outcome)
	// rest follows an answer without a grant: without news there is no need to ask for d.
	rest(d time.Duration) error
	// end ends the turn, with or without a grant, and leaves nothing of it.
	end(granted bool)
}

// attempt is the acquisition of one hold. It belongs to the goroutine that acquires the hold. What other goroutines need
// of a waiter is in the hold.
type attempt struct {
	hold   *hold
	ctx    context.Context
	record *record
	turn   turn

	// longestSleep bounds a sleep without messages: the poll of an entry in the line, or, on a quorum, the safety poll.
	longestSleep time.Duration
	// over reports to a waiter in the queue that it need not wait for the turn any more, or returns why waiting is
	// pointless. nil: only the turn ends the wait.
	over func() (bool, error)

	at      int            // the key in whose queue it waits
	queued  bool           // it has been in the queue, or found the lock taken
	listens bool           // it listens for messages about its keys
	polling bool           // the next sleep ends with a safety poll
	polled  bool           // the last sleep ended with a safety poll, not with a message
	seen    protocol.Grant // the last answer
	misses  int            // failed tries in a row
	splits  int            // split votes in a row
	wakes   wakes          // the effect of earlier wake-ups
	pause   time.Duration  // between polls while no message can arrive

	mutex mutexTurn // room for the turn of most attempts

	// ticket belongs to the queue whose wake-ups are for the attempt; nil: its ticket at the key.
	ticket *queue.Ticket[*hold]
}

// acquire gets the keys for h, which has a queue entry for each. It asks, whenever it may and has a reason to,
// until Redis grants them. Unless h waits, it tries once, and not at all if another local owner is before it; false,
// nil means that the lock is taken. After a failure nothing remains, here or on Redis, that is not being undone.
func (h *hold) acquire(ctx context.Context, r *record) (granted bool, err error) {
	a := &attempt{hold: h, ctx: ctx, record: r, longestSleep: h.settings.EntryPoll()}
	a.turn = h.kind.newTurn(a)
	asked := false
	defer func() {
		if asked && !granted {
			now := h.session.now()
			for _, p := range h.queueEntries {
				p.gate.stopsAsking(now)
			}
		}
		if a.listens {
			for _, p := range h.queueEntries {
				p.unlisten()
			}
		}
		a.turn.end(granted)
		if err == nil {
			h.forgetUndos() // of tries on the way
		}
	}()
	for {
		if ready, err := a.turn.await(); !ready {
			if err == nil {
				err = h.outageError()
			}
			return false, h.explain(err)
		}
		// If a turn comes with the lock, there is nothing to ask.
		if h.named() { // handed over
			return true, nil
		}
		began := h.session.now()
		asked = true
		for _, p := range h.queueEntries {
			p.gate.asks(began)
		}
		g, out := a.turn.ask()
		out.Permanent = out.Permanent && !a.letInBefore(out)
		a.recordAnswer(g, out)
		var nap time.Duration
		switch {
		case out.Err != nil:
			if final := a.failed(out); final != nil {
				return false, h.explain(final)
			}
			a.wakes.answered(g, out, false, h.session.now())
			nap = clock.Backoff(a.misses)
		case g.Held:
			return true, nil
		case !h.waits && (!g.Split || a.splits == trySplits):
			// A try returns at the first answer that names a holder. After a split vote of a quorum there is none.
			return false, nil
		case !h.waits: // no owner has it, so it must not be reported as taken
			nap = a.nap(g, out.Sent)
		default:
			a.misses, a.at = 0, g.Key
			a.wakes.answered(g, out, g.Holder != a.seen.Holder, h.session.now())
			a.contend()
			nap = a.nap(g, out.Sent)
		}
		if err := a.turn.rest(nap); err != nil {
			return false, h.explain(err)
		}
	}
}

// newName returns the name for one request, and for the hold that it may lead to. Redis may still have the current name of
// this owner, for a hold that followed in its batch and whose own name need not be written yet. Then the name is retired:
// a request under it, of a TryLock or a FairMutex, would find the lock held by it. If a batch with that name fails meanwhile,
// it has retired the name before its gate forgets the batch, and newName forms another one.
func (a *attempt) newName() keys.Name {
	h := a.hold
	for {
		id := h.session.identities.Current()
		n := id.Of(h.target, h.owner)
		for _, p := range h.queueEntries {
			// mutant: linger-name-reused
			if p.gate.batchHas(n) {
				h.session.identities.Retire(id)
			}
		}
		if id == h.session.identities.Current() {
			return n
		}
	}
}

// callOptions returns the options of a request for the lock. Without an answer the command is sent again. If the first
// copy acquired the lock, a later copy must be answered before the lease ends, or the grant would be useless.
func (a *attempt) callOptions() redisexec.CallOptions {
	return a.hold.session.paced(a.untilClose(), a.hold.settings.TTL).ConfirmedBy(a.hold.settings.replicas)
}

// untilClose returns tryOptions, except that during a Close it waits for one copy at most.
func (a *attempt) untilClose() redisexec.CallOptions {
	e := tryOptions
	e.Enough = a.hold.session.closing
	return e
}

// doubted undoes n after a request with unknown outcome: Redis may hold keys under it, for as long as the lease lasts,
// that no hold here will own.
func (a *attempt) doubted(n keys.Name, g protocol.Grant, out redisexec.Outcome) {
	// Ambiguous: a copy may have been executed without an answer, or may still be executed.
	if !out.Ambiguous {
		return
	}
	a.hold.session.identities.Retire(n.Identity)
	if !g.Held {
		n.Absent, n.Late = g.Absent, out.Late()
		a.hold.undo(a.hold.kind.protocol, a.hold.target.Lacking(n.Absent), n, a.hold.settings.TTL, out.Unobserved)
	}
}

// answered judges the answer to a request for n. A grant counts if the required replicas have it, and its lease is
// proven here. Otherwise it is undone, and a failure: g is empty then, and out has the error.
func (a *attempt) answered(n keys.Name, g *protocol.Grant, out *redisexec.Outcome) {
	if out.Err == nil && g.Held {
		n.Token, n.Absent, n.Late = g.Token, g.Absent, n.Late || out.Late()
		if out.Unconfirmed != nil { // a failover could lose it: it does not count
			a.hold.undoName(n, a.hold.settings.TTL)
			out.Err, out.Permanent = out.Unconfirmed, true
		} else {
			// The lease counts from before the request was sent: it ends here no later than on Redis.
			a.hold.receive(n, out.Sent, a.hold.settings.TTL, out.LeaseLeft)
			if a.hold.late() {
				out.Err = errLate
			}
		}
	}
	if out.Err != nil {
		*g = protocol.Grant{}
	}
}

// failed decides what an error means for the attempt: nil if it goes on. A newcomer returns the error at once, unless it
// is due to a moving slot. An attempt that already waits rides out an outage of up to one TTL; then all waiters that
// waited through it fail together.
func (a *attempt) failed(out redisexec.Outcome) error {
	a.misses++
	a.polling = false // the next sleep is a pause after a failure
	// After Close, all errors are caused by it.
	if a.hold.session.closed() {
		return lockerr.ErrClosed
	}
	if a.ctx.Err() != nil && !errors.Is(out.Err, context.Cause(a.ctx)) {
		return out.Abandoned(a.ctx).Err // ctx has ended just now
	}
	waiting := a.queued || errors.Is(out.Err, errLate) || redisexec.SlotMoves(out.Err) // Redis did answer those
	if a.ctx.Err() != nil || !a.hold.waits || out.Permanent || !waiting {
		return out.Err
	}
	now := a.hold.session.now()
	// Each waiter may ride out one TTL, from its own beginning or the last answer to any waiter, whichever is later.
	since := a.hold.queueEntries[a.at].gate.unanswered(now)
	through := func(w *hold) bool {
		return now.Since(clock.Latest(since, w.started)) >= w.settings.TTL
	}
	if !through(a.hold) {
		return nil
	}
	err := fmt.Errorf("requests to Redis have been failing for %v: %w", now.Since(since).Round(time.Millisecond), out.Err)
	a.hold.queueEntries[a.at].queue.Fail(err, through)
	return err
}

// letInBefore reports whether Redis has answered this attempt before, but now denies access to itself or to the key. That is
// temporary: a password is being changed, or a new master has not loaded its users yet. A WAIT that is denied behind a grant is
// neither: each further try would be a lock that counts for nothing.
func (a *attempt) letInBefore(out redisexec.Outcome) bool {
	return a.queued && out.Unconfirmed == nil && redisexec.IsBarred(out.Err)
}

// suspect has the subscription examined if a safety poll found a change that a message should have announced: a
// release. Another owner may also have got the lock by a hand-over within a process, which no message announces.
func (a *attempt) suspect(g protocol.Grant) {
	channel := a.hold.target.Channels[a.seen.Key]
	switch {
	case !a.polled:
	case g.Held:
		// A grant to a listener was not announced: a message was certainly lost.
		a.hold.session.hub.Missed(channel)
	case g.Holder != a.seen.Holder:
		// The holder has changed: a message may have been lost.
		a.hold.session.hub.Suspect(channel)
	}
}

// nap returns how long to sleep after the answer to a request, sent at sent, that the lock is taken: until a message is
// overdue or the holder's lease ends.
func (a *attempt) nap(g protocol.Grant, sent clock.Instant) time.Duration {
	changed := g.Holder != a.seen.Holder
	a.seen = g
	if g.Split {
		a.splits++
		a.polling = false
		return min(splitPause(a.splits), a.longestSleep)
	}
	a.splits = 0
	var d time.Duration
	switch {
	case a.listening():
		// The first sleep has a random length, so that waiters of many processes that were woken together do not poll
		// together.
		d, a.pause = a.longestSleep, 0
		if !a.polled {
			d = clock.Jitter(a.longestSleep)
		}
	case changed:
		a.pause = fastPoll
		d = fastPoll + clock.N(fastPollMax-fastPoll)
	default:
		a.pause = max(fastPoll, min(2*a.pause, a.longestSleep))
		d = clock.Jitter(a.pause)
	}
	a.polling = a.pause == 0
	// If the holder's lease ends before that, the lock is free without a message.
	if g.TTL >= 0 && g.TTL < d {
		d, a.polling = g.TTL+clock.N(4*time.Millisecond), false
	}
	// If answers are slow, a grant must not count from a request that is much older.
	// mutant: no-poll/1
	return min(d, max(fastPoll, a.longestSleep-a.hold.session.now().Since(sent)))
}

// trySplits is the number of split votes after which TryLock gives up.
const trySplits = 3

// splitPause returns a random pause after the nth split vote in a row: the first owner to come back, by more than the
// duration of a vote, wins. It doubles, because a vote may take long, and because the lock may be
// held after all, by votes of nodes that do not answer here.
func splitPause(n int) time.Duration {
	return clock.N(4 * time.Millisecond << min(n-1, 6))
}
