package relock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/vain"
)

// An attempt is one acquisition: from the wish for keys that the owner does not hold, until
// Redis has granted them or the wish is given up. run is its state machine:
//
//	in line --may ask--> asking --granted--------------------> held
//	   ^  \                |  \--final error, end of ctx------> given up
//	   |   \--handed over--|-----------------------------------> held
//	   |                   | taken, or an error that may pass
//	   +-----news--------asleep --end of ctx------------------> given up
//
// Only the goroutine of the attempt moves it. Others ring its alarm: the queue when its turn
// has come, a message, the end of a hold of this process.
//
// How a waiter gets in line, asks and sleeps depends on the kind of lock. That is its turn:
// one object for each attempt, plainTurn, fairTurn, writerTurn or readerTurn.
//
// Invariants:
//   - At most one request of an attempt is under way, under the client's current identity.
//   - A request whose answer is in doubt has its identity retired and its name undone before
//     the next request is sent. So a copy that arrives late meets a name that nothing uses.
//   - A grant counts only while its lease is proven here. One that comes later is undone.
//   - After a failure nothing is left, here or on Redis, that is not being undone.
//
// What can come late: the answer to a request (receive judges it), a hand-over to a waiter
// that has left (passOn), a grant told to a fair waiter that has left (fairTurn.end), and a
// wake-up, which is remembered by the queue until a request that began after it is answered.

// acquireEffort bounds one try to acquire: a few quick resends.
var acquireEffort = redisexec.CallOptions{Attempts: 3}

// While no message can be had, a waiter polls: fast while the owner keeps changing, then
// less and less often.
const (
	fastPoll    = 50 * time.Millisecond
	fastPollMax = 250 * time.Millisecond
)

// errLate is the failure of a grant that came when its lease was over.
var errLate = errors.New("the grant arrived after its lease was over: Redis is too slow for this TTL")

// turn is how one attempt gets to ask Redis for the keys. All of it runs on the goroutine of
// the attempt.
type turn interface {
	// await waits until the attempt may ask Redis and has a reason to, or was given the lock:
	// then its hold has a name. false, nil: it does not wait, and another waiter is before it.
	await() (bool, error)
	// ask makes one request, or finds out otherwise how things stand.
	ask() (protocol.Grant, redisexec.Outcome)
	// rest follows an answer that was no grant: without news there is no need to ask for d.
	rest(d time.Duration) error
	// end ends the turn, by a grant or without one. Then nothing is left of it.
	end(granted bool)
}

// attempt is one acquisition. The fields of the first group belong to its goroutine alone.
type attempt struct {
	hold   *hold
	ctx    context.Context
	waits  bool    // Lock, not TryLock
	record *record // of the Lock that began it
	turn   turn

	// longestSleep is how long it sleeps at most when no message reaches it.
	longestSleep time.Duration
	// over tells a waiter in line that it need not wait for the turn any more, or why that would
	// be in vain. nil: only the turn ends that.
	over func() (bool, error)

	at      int            // the key in whose queue it stands
	queued  bool           // it has been in line, or was told that the lock is taken
	listens bool           // it is one of the listeners of its places
	seen    protocol.Grant // the last answer
	misses  int            // failed tries in a row
	splits  int            // split votes in a row
	wakes   vain.Wakes     // what became of the wake-ups before
	polling bool           // the sleep to come is a safety poll's
	polled  bool           // the last sleep was, and no message ended it
	pause   time.Duration  // of a waiter that no message can reach

	plain plainTurn // room for the turn of most attempts
	mutex mutexTurn // the same

	// ticket is that of the queue whose wake-ups are for it; nil: that of its place at the key.
	ticket *queue.Ticket[*hold]

	// given is the place in the line that it was given together with the turn; nil: none was. It is
	// guarded by the queue, as offered is.
	given *given

	// offered is the identity under which a hand-over to this attempt has been sent, nil if none
	// has, and handedOver is closed when that has ended. Both are guarded by the queue: written by
	// Reserve, read after the ticket has left.
	offered    *identity
	handedOver chan struct{}

	// What follows is guarded by the hold's mu.

	// callers are the Locks of a fixed owner that wait for this attempt. shared is its
	// context, and abort ends that.
	callers int
	shared  context.Context
	abort   context.CancelFunc

	// undone are closed when Redis has nothing more of what is being undone of the attempt.
	undone []<-chan struct{}
}

// acquire gets h the keys: it waits for its turn, and then tries until Redis grants them.
// As a TryLock it tries once, and not at all if another owner of this process is before it;
// false, nil says that the lock is taken. After a failure nothing is left, here or on
// Redis, that is not being undone.
func (h *hold) acquire(ctx context.Context, as call) (granted bool, err error) {
	a := &h.attempt
	a.hold, a.ctx, a.waits, a.record = h, ctx, as.waits, as.record
	a.turn = h.kind.newTurn(a)
	defer func() { // also after a panic in a hook
		a.unlisten()
		a.turn.end(granted)
		a.ctx, a.record, a.turn, a.over, a.plain, a.mutex, a.ticket, a.given, a.seen = nil, nil, nil, nil, plainTurn{}, mutexTurn{}, nil, nil, protocol.Grant{}
		if err == nil {
			h.forgetUndone()
		}
	}()
	return a.run()
}

// run asks, whenever it may and there is a reason to, until Redis grants the keys.
func (a *attempt) run() (bool, error) {
	for {
		if ready, err := a.turn.await(); !ready {
			if err == nil {
				err = a.hold.outage()
			}
			return false, a.hold.explain(err)
		}
		if a.hold.named() { // handed over
			return true, nil
		}
		a.requestBegins()
		g, out := a.turn.ask()
		a.requestEnded(g, out)
		var nap time.Duration
		switch {
		case out.Err != nil:
			if final := a.failed(out); final != nil {
				return false, a.hold.explain(final)
			}
			a.wakes.Answered(g, out, false, a.hold.session.now())
			nap = clock.Backoff(a.misses)
		case g.Held:
			return true, nil
		case !a.waits && (!g.Split || a.splits == trySplits):
			return false, nil
		case !a.waits: // no owner has it: to say that it is taken would be wrong
			nap = a.nap(g)
		default:
			a.misses, a.at = 0, g.Key
			a.wakes.Answered(g, out, g.Holder != a.seen.Holder, a.hold.session.now())
			a.contend()
			nap = a.nap(g)
		}
		if err := a.turn.rest(nap); err != nil {
			return false, a.hold.explain(err)
		}
	}
}

// newName is the name of one request, and of the hold that it may lead to.
func (a *attempt) newName() name {
	id := a.hold.session.identity()
	return name{identity: id, field: a.hold.target.Field(string(*id), a.hold.owner)}
}

// effort is that of a request for the lock.
func (a *attempt) effort() redisexec.CallOptions {
	return a.hold.paced(a.untilClose()).ConfirmedBy(a.hold.settings.replicas)
}

// untilClose is acquireEffort but for a Close meanwhile: that waits for one copy at most.
func (a *attempt) untilClose() redisexec.CallOptions {
	e := acquireEffort
	e.Enough = a.hold.session.closing
	return e
}

// doubted gives up what a request for n has left in doubt: Redis may have, for as long as
// lasts, what no hold here will own.
func (a *attempt) doubted(n name, g protocol.Grant, out redisexec.Outcome, lasts time.Duration) {
	if !out.Ambiguous {
		return
	}
	a.hold.session.retire(n.identity)
	if !g.Held {
		n.absent = g.Absent
		a.hold.undo(n, lasts, out.Unobserved)
	}
}

// answered judges the answer to a request for n: a grant counts if the replicas that it was
// to reach have it, and its lease is proven here. Else it is undone, and a failure.
func (a *attempt) answered(n name, g protocol.Grant, out redisexec.Outcome) (protocol.Grant, redisexec.Outcome) {
	if out.Err != nil {
		return protocol.Grant{}, out
	}
	h := a.hold
	for _, p := range h.places {
		p.gate.Heard()
	}
	if !g.Held {
		return g, out
	}
	n.token, n.absent = g.Token, g.Absent
	if out.Unconfirmed != nil { // a failover could forget it: it does not count
		h.session.retire(n.identity)
		h.undo(n, h.settings.TTL, false)
		out.Err, out.Permanent = out.Unconfirmed, true
		return protocol.Grant{}, out
	}
	h.receive(n, out.Sent, h.settings.TTL)
	h.mu.Lock()
	h.lease.Note(out.LeaseLeft, out.Sent)
	h.mu.Unlock()
	if h.late() {
		out.Err = errLate
		return protocol.Grant{}, out
	}
	return g, out
}

// receive records a grant: that of a request, or of a hand-over by the holder before.
func (h *hold) receive(n name, sent clock.Instant, lasts time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.name = n
	h.lease.Grant(sent, lasts)
}

// late reports whether the grant that h received is past its deadline, or was found not to count;
// then it is undone, and counts as a failed try.
func (h *hold) late() bool {
	h.mu.Lock()
	late := h.lease.Left(h.session.now()) <= 0 || h.batch.isOver()
	h.mu.Unlock()
	if late {
		h.rejectGrant()
	}
	return late
}

// rejectGrant gives a grant back that does not count.
func (h *hold) rejectGrant() {
	h.batch.end(errLate)
	h.retireAndUndo()
	h.forget()
}

// failed decides what an error means for the attempt: nil if it goes on. One that has only
// just come learns of the error at once, unless the slot moves, which passes. One that is in line
// rides out an outage of up to one TTL; then all that waited through it get the error together.
func (a *attempt) failed(out redisexec.Outcome) error {
	a.misses++
	a.polling = false // the sleep to come is a pause after a failure
	h := a.hold
	if h.session.isClosed() {
		return ErrClosed
	}
	if a.ctx.Err() != nil && !errors.Is(out.Err, context.Cause(a.ctx)) {
		return out.Abandoned(a.ctx).Err // it has ended only now
	}
	waiting := a.queued || errors.Is(out.Err, errLate) || redisexec.SlotMoves(out.Err) // Redis did answer those
	if a.ctx.Err() != nil || !a.waits || out.Permanent || !waiting {
		return out.Err
	}
	now := h.session.now()
	since := h.places[a.at].gate.Unheard(now)
	through := func(h *hold) bool { return now.Since(clock.Latest(since, h.started)) >= h.settings.TTL }
	if !through(h) {
		return nil
	}
	err := fmt.Errorf("no success with Redis for %v: %w", now.Since(since).Round(time.Millisecond), out.Err)
	h.places[a.at].queue.Fail(err, through)
	return err
}

// suspect has the subscription examined if a safety poll found out what a message should
// have told: a release. Another owner may have got the lock by a release or by a hand-over
// within a process, of which no message tells.
func (a *attempt) suspect(g protocol.Grant) {
	channel := a.hold.target.Channels[a.seen.Key]
	switch {
	case !a.polled:
	case g.Held:
		a.hold.session.hub.Missed(channel)
	case g.Holder != a.seen.Holder:
		a.hold.session.hub.Suspect(channel)
	}
}

// nap returns how long to sleep after having been told that the lock is taken: until a
// message is overdue or the lease runs out.
func (a *attempt) nap(g protocol.Grant) time.Duration {
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
		// The first sleep is of a random length, so that the waiters of many processes,
		// woken together, do not poll together.
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
	if g.TTL >= 0 && g.TTL < d {
		d, a.polling = g.TTL+clock.N(4*time.Millisecond), false
	}
	return min(d, a.longestSleep)
}

// trySplits is how many split votes TryLock tries again after.
const trySplits = 3

// splitPause is a random pause after the nth split vote in a row: the first to come back,
// by more than a vote takes, wins. It doubles, because a vote may take long, and because the
// lock may be held after all, by the votes of nodes that do not answer here.
func splitPause(n int) time.Duration {
	return clock.N(4 * time.Millisecond << min(n-1, 6))
}

// trackUndo has awaitUndo wait until settled is closed.
func (h *hold) trackUndo(settled <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempt.undone = append(slices.DeleteFunc(h.attempt.undone, group.Closed), settled)
}

// undoGrace is how long a Lock that has failed waits until Redis has nothing of it any more:
// the next to try does not meet that, and no one has to wait for it to end by itself if
// the failure makes the program exit. It is time for a round trip on a slow link.
const undoGrace = 50 * time.Millisecond

// forgetUndone has awaitUndo not wait for what was undone on the way of an attempt that did not fail.
func (h *hold) forgetUndone() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempt.undone = nil
}

// awaitUndo waits for a moment until an attempt that has failed is over, here and on Redis. It is
// over for good, unless another caller of the same owner has made it its hold.
func (h *hold) awaitUndo() {
	timer := time.NewTimer(undoGrace)
	defer timer.Stop()
	for {
		next := h.untidy()
		if next == nil {
			return
		}
		select {
		case <-next:
		case <-timer.C:
			return
		case <-h.session.closing:
			return
		}
	}
}

// untidy returns what awaitUndo has to wait for next; nil if there is nothing.
func (h *hold) untidy() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case len(h.levels) > 0:
		return nil
	case h.phase != gone:
		return h.changes()
	}
	if h.attempt.undone = slices.DeleteFunc(h.attempt.undone, group.Closed); len(h.attempt.undone) > 0 {
		return h.attempt.undone[0]
	}
	return nil
}
