// Package acquire gets keys for a hold: it waits for its turn, asks Redis, and sleeps in between.
//
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
// one object for each attempt. A mutexTurn has its waiters queue here, and the first of them stand in
// the line on Redis for all; a fairTurn has each of them stand there; a multiTurn wants several keys;
// a plainTurn is for a quorum, which has no line; writers and readers have turns of their own.
//
// Invariants:
//   - At most one request of an attempt is under way, under the client's current identity.
//   - A request whose answer is in doubt has its identity retired and its name undone before
//     the next request is sent. So a copy that arrives late meets a name that nothing uses.
//   - A grant counts only while its lease is proven here. One that comes later is undone.
//   - After a failure nothing is left, here or on Redis, that is not being undone.
//
// What can come late: the answer to a request (answered judges it), a hand-over to a waiter
// that has left (its client hands it on), a grant told to a waiter in line that has left (spot.end), and a
// wake-up, which is remembered by the queue until a request that began after it is answered.
package acquire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
	"github.com/relock-go/relock/internal/vain"
)

// CallOptions bound one try to acquire: a few quick resends.
var CallOptions = redisexec.CallOptions{Attempts: 3}

// While no message can be had, a waiter polls: fast while the owner keeps changing, then
// less and less often.
const (
	fastPoll    = 50 * time.Millisecond
	fastPollMax = 250 * time.Millisecond
)

// ErrLate is the failure of a grant that came when its lease was over.
var ErrLate = errors.New("the grant arrived after its lease was over: Redis is too slow for this TTL, use a longer one")

// Turn is how one attempt gets to ask Redis for the keys. All of it runs on the goroutine of
// the attempt.
type Turn interface {
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

// Wish is what an attempt is to get.
type Wish struct {
	Target   *keys.Set
	Protocol protocol.Protocol
	Terms    *protocol.Terms
	Replicas redisexec.Replicas // that are to confirm the grant
}

// Attempt is one acquisition. Its fields belong to the goroutine of the attempt alone, but for those of
// which something else is said.
type Attempt struct {
	// What does not change.
	env      *Env
	hold     Hold
	target   *keys.Set
	protocol protocol.Protocol
	terms    *protocol.Terms
	replicas redisexec.Replicas
	started  clock.Instant
	alarm    queue.Alarm // wakes the waiter

	ctx    context.Context
	waits  bool // Lock, not TryLock
	record Record
	turn   Turn
	places []Place // by the keys of target

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
	wakes   vain.Wakes     // what became of the wake-ups before
	pause   time.Duration  // of a waiter that no message can reach

	mutex mutexTurn // room for the turn of most attempts

	// ticket is that of the queue whose wake-ups are for it; nil: that of its place at the key.
	ticket *Ticket

	// given is the place in the line that it was given together with the turn; nil: none was. It is
	// guarded by the queue, as Offered is.
	given *given

	// Undos are what the caller waits for after a failure: what Redis may have of the attempt is being
	// undone.
	Undos undo.Waits

	// Offered is the hand-over that was sent for this attempt. It is guarded by the queue: written by
	// Reserve, read after the ticket has left.
	Offered Offer
}

// Offer is a hand-over that was sent for a waiter. The zero Offer: none was.
type Offer struct {
	Identity *identity.Identity // under which the waiter is to hold the lock
	Ended    chan struct{}      // closed when the hand-over has ended
}

// Begin makes a the attempt of h to get what w says.
func (a *Attempt) Begin(env *Env, h Hold, w Wish) {
	*a = Attempt{
		env: env, hold: h, target: w.Target, protocol: w.Protocol, terms: w.Terms, replicas: w.Replicas,
		started: env.Now(),
	}
}

// Hold is what it gets the keys for.
func (a *Attempt) Hold() Hold { return a.hold }

// Alarm wakes the waiter.
func (a *Attempt) Alarm() *queue.Alarm { return &a.alarm }

// Ring wakes the waiter.
func (a *Attempt) Ring() { a.alarm.Ring() }

// Run gets the hold the keys, at whose places it stands: it waits for its turn, and then tries until Redis
// grants them. Unless it waits, it tries once, and not at all if another owner of this process is before it;
// false, nil says that the lock is taken. After a failure nothing is left, here or on Redis, that is not
// being undone.
func (a *Attempt) Run(ctx context.Context, places []Place, newTurn NewTurn, waits bool, r Record) (granted bool, err error) {
	a.ctx, a.places, a.waits, a.record = ctx, places, waits, r
	a.turn = newTurn(a)
	defer func() { // also after a panic in a hook
		a.unlisten()
		a.turn.end(granted)
		if err == nil {
			a.Undos.Forget() // of tries on the way
		}
		a.ctx, a.places, a.record, a.turn, a.over, a.mutex, a.ticket, a.given, a.seen = nil, nil, nil, nil, nil, mutexTurn{}, nil, nil, protocol.Grant{}
	}()
	return a.run()
}

// run asks, whenever it may and there is a reason to, until Redis grants the keys.
func (a *Attempt) run() (bool, error) {
	for {
		if ready, err := a.turn.await(); !ready {
			if err == nil {
				err = a.Outage(a.places)
			}
			return false, a.Explain(a.places, err)
		}
		// A turn may come with the lock: then there is nothing to ask.
		if a.hold.Named() { // handed over
			return true, nil
		}
		a.requestBegins()
		g, out := a.turn.ask()
		out.Permanent = out.Permanent && !a.letInBefore(out.Err)
		a.requestEnded(g, out)
		var nap time.Duration
		switch {
		case out.Err != nil:
			if final := a.failed(out); final != nil {
				return false, a.Explain(a.places, final)
			}
			a.wakes.Answered(g, out, false, a.env.Now())
			nap = clock.Backoff(a.misses)
		case g.Held:
			return true, nil
		case !a.waits && (!g.Split || a.splits == TrySplits):
			// A try takes the first answer that says who has the lock. A split vote of a quorum says that no one has.
			return false, nil
		case !a.waits: // no owner has it: to say that it is taken would be wrong
			nap = a.nap(g, out.Sent)
		default:
			a.misses, a.at = 0, g.Key
			a.wakes.Answered(g, out, g.Holder != a.seen.Holder, a.env.Now())
			a.contend()
			nap = a.nap(g, out.Sent)
		}
		if err := a.turn.rest(nap); err != nil {
			return false, a.Explain(a.places, err)
		}
	}
}

// newName is the name of one request, and of the hold that it may lead to.
func (a *Attempt) newName() identity.Name {
	return a.env.Identities.Current().Of(a.target, a.hold.Owner())
}

// callOptions are those of a request for the lock.
func (a *Attempt) callOptions() redisexec.CallOptions {
	return a.paced(a.untilClose()).ConfirmedBy(a.replicas)
}

// untilClose is CallOptions but for a Close meanwhile: that waits for one copy at most.
func (a *Attempt) untilClose() redisexec.CallOptions {
	e := CallOptions
	e.Enough = a.env.Closing
	return e
}

// doubted gives up what a request for n has left in doubt: Redis may have, for as long as
// lasts, what no hold here will own.
func (a *Attempt) doubted(n identity.Name, g protocol.Grant, out redisexec.Outcome, lasts time.Duration) {
	// Ambiguous: a copy may have been carried out of which no answer tells, or may be carried out yet.
	if !out.Ambiguous {
		return
	}
	a.env.Identities.Retire(n.Identity)
	if !g.Held {
		n.Absent, n.Late = g.Absent, out.Late()
		a.undo(n, lasts, out.Unobserved)
	}
}

// answered judges the answer to a request for n: a grant counts if the replicas that it was
// to reach have it, and its lease is proven here. Else it is undone, and a failure.
func (a *Attempt) answered(n identity.Name, g protocol.Grant, out redisexec.Outcome) (protocol.Grant, redisexec.Outcome) {
	if out.Err != nil {
		return protocol.Grant{}, out
	}
	for _, p := range a.places {
		p.Gate.Heard()
	}
	if !g.Held {
		return g, out
	}
	n.Token, n.Absent, n.Late = g.Token, g.Absent, n.Late || out.Late()
	if out.Unconfirmed != nil { // a failover could forget it: it does not count
		a.env.Identities.Retire(n.Identity)
		a.undo(n, a.terms.TTL, false)
		out.Err, out.Permanent = out.Unconfirmed, true
		return protocol.Grant{}, out
	}
	// The lease is counted from before the request was sent: here it ends no later than on Redis.
	a.hold.Receive(n, out.Sent, a.terms.TTL, out.LeaseLeft)
	if a.hold.Late() {
		out.Err = ErrLate
		return protocol.Grant{}, out
	}
	return g, out
}

// failed decides what an error means for the attempt: nil if it goes on. One that has only
// just come learns of the error at once, unless the slot moves, which passes. One that is in line
// rides out an outage of up to one TTL; then all that waited through it get the error together.
func (a *Attempt) failed(out redisexec.Outcome) error {
	a.misses++
	a.polling = false // the sleep to come is a pause after a failure
	// After Close all errors are its doing.
	if a.env.closed() {
		return lockerr.ErrClosed
	}
	if a.ctx.Err() != nil && !errors.Is(out.Err, context.Cause(a.ctx)) {
		return out.Abandoned(a.ctx).Err // it has ended only now
	}
	waiting := a.queued || errors.Is(out.Err, ErrLate) || redisexec.SlotMoves(out.Err) // Redis did answer those
	if a.ctx.Err() != nil || !a.waits || out.Permanent || !waiting {
		return out.Err
	}
	now := a.env.Now()
	// Each waiter may ride out one TTL, from its own beginning or the last answer to anyone, whichever is later.
	since := a.places[a.at].Gate.Unheard(now)
	through := func(h Hold) bool {
		w := h.Attempt()
		return now.Since(clock.Latest(since, w.started)) >= w.terms.TTL
	}
	if !through(a.hold) {
		return nil
	}
	err := fmt.Errorf("no success with Redis for %v: %w", now.Since(since).Round(time.Millisecond), out.Err)
	a.places[a.at].Queue.Fail(err, through)
	return err
}

// letInBefore reports whether Redis has answered this attempt, but err says that it does not let this client in, or not
// touch the key. That passes: a password is being changed, or a new master has not loaded its users yet.
func (a *Attempt) letInBefore(err error) bool {
	return a.queued && redisexec.IsBarred(err)
}

// suspect has the subscription examined if a safety poll found out what a message should
// have told: a release. Another owner may have got the lock by a release or by a hand-over
// within a process, of which no message tells.
func (a *Attempt) suspect(g protocol.Grant) {
	channel := a.target.Channels[a.seen.Key]
	switch {
	case !a.polled:
	case g.Held:
		// A grant that was not announced to a listener: a message was lost for certain.
		a.env.Hub.Missed(channel)
	case g.Holder != a.seen.Holder:
		// Another owner than before: perhaps a message was lost.
		a.env.Hub.Suspect(channel)
	}
}

// nap returns how long to sleep after having been told that the lock is taken, by the answer to a request that was
// sent then: until a message is overdue or the lease runs out.
func (a *Attempt) nap(g protocol.Grant, sent clock.Instant) time.Duration {
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
	return min(d, max(fastPoll, a.longestSleep-a.env.Now().Since(sent)))
}

// TrySplits is how many split votes TryLock tries again after.
const TrySplits = 3

// splitPause is a random pause after the nth split vote in a row: the first to come back,
// by more than a vote takes, wins. It doubles, because a vote may take long, and because the
// lock may be held after all, by the votes of nodes that do not answer here.
func splitPause(n int) time.Duration {
	return clock.N(4 * time.Millisecond << min(n-1, 6))
}
