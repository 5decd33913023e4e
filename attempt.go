package relock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// An attempt gets keys for a hold: it waits for its turn, asks Redis, and sleeps in between.
//
// It is one acquisition: from the wish for keys that the owner does not hold, until Redis has granted them or the
// wish is given up. hold.acquire is its state machine:
//
//	in line --may ask--> asking --granted--------------------> held
//	   ^  \                |  \--final error, end of ctx------> given up
//	   |   \--handed over--|-----------------------------------> held
//	   |                   | taken, or an error that may pass
//	   +-----news--------asleep --end of ctx------------------> given up
//
// Only the goroutine of the attempt moves it. Others ring the alarm of the hold: the queue when its turn
// has come, a message, the end of a hold of this process.
//
// How a waiter gets in line, asks and sleeps depends on the kind of lock. That is its turn:
// one object for each attempt. A mutexTurn has its waiters queue here, and the first of them stand in
// the line on Redis for all; a fairTurn has each of them stand there; a multiTurn wants several keys;
// a plainTurn is for a quorum, which has no line; writers and readers have turns of their own.
//
// Invariants:
//   - At most one request of an attempt is under way, under the client's current identity.
//   - A request whose answer is in doubt has its identity retired and its name undone before
//     the next request is sent. So a copy that arrives late meets a name that nothing uses.
//   - A grant counts only while its lease is proven here. One that comes later is rejected: its name is retired, and
//     released in the background.
//   - After a failure nothing is left, here or on Redis, that is not being undone.
//
// What can come late: the answer to a request (answered judges it), a hand-over to a waiter
// that has left (its client hands it on), a grant told to a waiter in line that has left (spot.end), and a
// wake-up, which is remembered by the queue until a request that began after it is answered.

// tryOptions bound one try to acquire: a few quick resends.
var tryOptions = redisexec.CallOptions{Attempts: 3}

// While no message can be had, a waiter polls: fast while the owner keeps changing, then
// less and less often.
const (
	fastPoll    = 50 * time.Millisecond
	fastPollMax = 250 * time.Millisecond
)

// errLate is the failure of a grant that came when its lease was over.
var errLate = errors.New("Redis granted the lock, but the answer arrived after the lease had expired: use a longer TTL")

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

// attempt is the acquisition of one hold. It belongs to the goroutine that acquires that; what others have to do with a
// waiter is in the hold.
type attempt struct {
	hold   *hold
	ctx    context.Context
	waits  bool // Lock, not TryLock
	record *record
	turn   turn

	// longestSleep is how long it sleeps at most when no message reaches it.
	longestSleep time.Duration
	// over tells a waiter in line that it need not wait for the turn any more, or why that would
	// be in vain. nil: only the turn ends that.
	over func() (bool, error)

	at      int            // the key in whose queue it stands
	queued  bool           // it has been in line, or was told that the lock is taken
	listens bool           // it is one of the listeners of its places
	polling bool           // the sleep to come is a safety poll's
	polled  bool           // the last sleep was, and no message ended it
	seen    protocol.Grant // the last answer
	misses  int            // failed tries in a row
	splits  int            // split votes in a row
	wakes   wakes          // what became of the wake-ups before
	pause   time.Duration  // of a waiter that no message can reach

	mutex mutexTurn // room for the turn of most attempts

	// ticket is that of the queue whose wake-ups are for it; nil: that of its place at the key.
	ticket *queue.Ticket[*hold]
}

// acquire gets h the keys, at whose places it stands. It asks, whenever it may and there is a reason to, until Redis
// grants them. Unless it waits, it tries once, and not at all if another owner of this process is before it; false,
// nil says that the lock is taken. After a failure nothing is left, here or on Redis, that is not being undone.
func (h *hold) acquire(ctx context.Context, waits bool, r *record) (granted bool, err error) {
	a := &h.first.attempt
	*a = attempt{hold: h, ctx: ctx, waits: waits, record: r}
	a.turn = h.kind.newTurn(a)
	defer func() { // also after a panic in a hook
		if a.listens {
			for _, p := range h.places {
				p.unlisten()
			}
		}
		a.turn.end(granted)
		if err == nil {
			h.undos.forget() // of tries on the way
		}
		*a = attempt{}
	}()
	for {
		if ready, err := a.turn.await(); !ready {
			if err == nil {
				err = h.outage()
			}
			return false, h.explain(err)
		}
		// A turn may come with the lock: then there is nothing to ask.
		if h.named() { // handed over
			return true, nil
		}
		began := h.session.now()
		for _, p := range h.places {
			p.gate.asks(began)
		}
		g, out := a.turn.ask()
		out.Permanent = out.Permanent && !a.letInBefore(out.Err)
		a.learn(g, out)
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
		case !waits && (!g.Split || a.splits == trySplits):
			// A try takes the first answer that says who has the lock. A split vote of a quorum says that no one has.
			return false, nil
		case !waits: // no owner has it: to say that it is taken would be wrong
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

// newName is the name of one request, and of the hold that it may lead to.
func (a *attempt) newName() identity.Name {
	return a.hold.session.identities.Current().Of(a.hold.target, a.hold.owner)
}

// callOptions are those of a request for the lock. A command is sent again if no answer comes. If the first copy did get
// the lock, the answer to a later copy must come while the lease lasts, or the grant would be worth nothing.
func (a *attempt) callOptions() redisexec.CallOptions {
	return a.hold.session.paced(a.untilClose(), a.hold.settings.TTL).ConfirmedBy(a.hold.settings.replicas)
}

// untilClose is tryOptions but for a Close meanwhile: that waits for one copy at most.
func (a *attempt) untilClose() redisexec.CallOptions {
	e := tryOptions
	e.Enough = a.hold.session.closing
	return e
}

// doubted gives up what a request for n has left in doubt: Redis may have, for as long as the lease lasts, what no hold
// here will own.
func (a *attempt) doubted(n identity.Name, g protocol.Grant, out redisexec.Outcome) {
	// Ambiguous: a copy may have been carried out of which no answer tells, or may be carried out yet.
	if !out.Ambiguous {
		return
	}
	a.hold.session.identities.Retire(n.Identity)
	if !g.Held {
		n.Absent, n.Late = g.Absent, out.Late()
		a.undo(n, a.hold.settings.TTL, out.Unobserved)
	}
}

// answered judges the answer to a request for n: a grant counts if the replicas that it was
// to reach have it, and its lease is proven here. Else it is undone, and a failure.
func (a *attempt) answered(n identity.Name, g protocol.Grant, out redisexec.Outcome) (protocol.Grant, redisexec.Outcome) {
	if out.Err != nil {
		return protocol.Grant{}, out
	}
	if !g.Held {
		return g, out
	}
	n.Token, n.Absent, n.Late = g.Token, g.Absent, n.Late || out.Late()
	if out.Unconfirmed != nil { // a failover could forget it: it does not count
		a.hold.session.identities.Retire(n.Identity)
		a.undo(n, a.hold.settings.TTL, false)
		out.Err, out.Permanent = out.Unconfirmed, true
		return protocol.Grant{}, out
	}
	// The lease is counted from before the request was sent: here it ends no later than on Redis.
	a.hold.receive(n, out.Sent, a.hold.settings.TTL, out.LeaseLeft)
	if a.hold.late() {
		out.Err = errLate
		return protocol.Grant{}, out
	}
	return g, out
}

// failed decides what an error means for the attempt: nil if it goes on. One that has only
// just come learns of the error at once, unless the slot moves, which passes. One that is in line
// rides out an outage of up to one TTL; then all that waited through it get the error together.
func (a *attempt) failed(out redisexec.Outcome) error {
	a.misses++
	a.polling = false // the sleep to come is a pause after a failure
	// After Close all errors are its doing.
	if a.hold.session.closed() {
		return lockerr.ErrClosed
	}
	if a.ctx.Err() != nil && !errors.Is(out.Err, context.Cause(a.ctx)) {
		return out.Abandoned(a.ctx).Err // it has ended only now
	}
	waiting := a.queued || errors.Is(out.Err, errLate) || redisexec.SlotMoves(out.Err) // Redis did answer those
	if a.ctx.Err() != nil || !a.waits || out.Permanent || !waiting {
		return out.Err
	}
	now := a.hold.session.now()
	// Each waiter may ride out one TTL, from its own beginning or the last answer to anyone, whichever is later.
	since := a.hold.places[a.at].gate.unheard(now)
	through := func(w *hold) bool {
		return now.Since(clock.Latest(since, w.started)) >= w.settings.TTL
	}
	if !through(a.hold) {
		return nil
	}
	err := fmt.Errorf("Redis has been failing for %v: %w", now.Since(since).Round(time.Millisecond), out.Err)
	a.hold.places[a.at].queue.Fail(err, through)
	return err
}

// letInBefore reports whether Redis has answered this attempt, but err says that it does not let this client in, or not
// touch the key. That passes: a password is being changed, or a new master has not loaded its users yet.
func (a *attempt) letInBefore(err error) bool {
	return a.queued && redisexec.IsBarred(err)
}

// suspect has the subscription examined if a safety poll found out what a message should
// have told: a release. Another owner may have got the lock by a release or by a hand-over
// within a process, of which no message tells.
func (a *attempt) suspect(g protocol.Grant) {
	channel := a.hold.target.Channels[a.seen.Key]
	switch {
	case !a.polled:
	case g.Held:
		// A grant that was not announced to a listener: a message was lost for certain.
		a.hold.session.hub.Missed(channel)
	case g.Holder != a.seen.Holder:
		// Another owner than before: perhaps a message was lost.
		a.hold.session.hub.Suspect(channel)
	}
}

// nap returns how long to sleep after having been told that the lock is taken, by the answer to a request that was
// sent then: until a message is overdue or the lease runs out.
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
	// The lease of the holder ends before that: then the lock is free without a message.
	if g.TTL >= 0 && g.TTL < d {
		d, a.polling = g.TTL+clock.N(4*time.Millisecond), false
	}
	// Where answers are slow, a grant must not count from a request that is much older.
	// mutant: no-poll/1
	return min(d, max(fastPoll, a.longestSleep-a.hold.session.now().Since(sent)))
}

// trySplits is how many split votes TryLock tries again after.
const trySplits = 3

// splitPause is a random pause after the nth split vote in a row: the first to come back,
// by more than a vote takes, wins. It doubles, because a vote may take long, and because the
// lock may be held after all, by the votes of nodes that do not answer here.
func splitPause(n int) time.Duration {
	return clock.N(4 * time.Millisecond << min(n-1, 6))
}
