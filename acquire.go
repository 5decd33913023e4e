package relock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// acquireEffort bounds one try to acquire: a few quick resends.
var acquireEffort = effort{attempts: 3}

// While no message can be had, a waiter polls: fast while the owner keeps changing, then
// less and less often.
const (
	fastPoll    = 50 * time.Millisecond
	fastPollMax = 250 * time.Millisecond
)

// turnOfMessage is how long a waiter lets a wake-up that was just published, and that other
// processes act on too, take to arrive.
const turnOfMessage = 20 * time.Millisecond

// errLate is the failure of a grant that came when its lease was over.
var errLate = errors.New("the grant arrived after its lease was over: Redis is too slow for this TTL")

// wait is one acquisition under way: what its tries have found so far.
type wait struct {
	*hold
	ctx     context.Context
	waits   bool       // Lock, not TryLock
	queued  bool       // it has been in line, or was told that the lock is taken
	listens bool       // it is one of the gates' listeners
	at      int        // the key in whose queue it stands
	vain    int        // how often it has not collected all turns
	seen    grant      // the last answer
	entry   *fairEntry // its place in a queue on Redis, for a kind of lock that has one
	attends bool       // it has been listening since before it had that
	claimed *identity  // the identity under which it last claimed the lock, for a kind that can
	writes  bool       // at its last request its owner held the other side, to write
	mark    uint64     // wake-ups of the queue before the last request, for a kind that asks without the turn
	misses  int        // failed tries in a row
	splits  int        // split votes in a row

	polling bool          // the sleep to come is a safety poll's
	polled  bool          // the last sleep was, and no message ended it
	pause   time.Duration // of a waiter whom no message can reach
}

// acquire gets h the keys: it waits for its turn, and then tries until Redis grants them.
// Without `waits` there is one try, and none if somebody of this process is there already;
// false, nil says that the lock is taken. After a failure nothing is left, here or on
// Redis, that is not being undone.
func (h *hold) acquire(ctx context.Context, waits bool) (granted bool, err error) {
	w := &h.asking
	*w = wait{hold: h, ctx: ctx, waits: waits}
	defer func() { // also after a panic in a hook
		w.unlisten()
		w.target.kind.end(w, granted)
		*w = wait{}
		if err == nil {
			h.forgetUndone()
		}
	}()
	return w.run()
}

// run asks, whenever it may and there is a reason to, until Redis grants the keys.
func (w *wait) run() (bool, error) {
	k := w.target.kind
	for {
		if ready, err := k.line(w); !ready {
			return false, w.explain(err)
		}
		if w.named() { // handed over
			return true, nil
		}
		w.requestBegins()
		g, out := k.ask(w)
		w.requestEnded(g, out)
		var nap time.Duration
		switch {
		case out.err != nil:
			if final := w.failed(out); final != nil {
				return false, w.explain(final)
			}
			nap = backoff(w.misses)
		case g.held:
			return true, nil
		case !w.waits && (!g.split || w.splits == trySplits):
			return false, nil
		case !w.waits: // nobody has it: to say that it is taken would be wrong
			nap = w.nap(g)
		default:
			w.misses, w.at = 0, g.key
			w.contend()
			nap = w.nap(g)
		}
		if err := k.rest(w, nap); err != nil {
			return false, w.explain(err)
		}
	}
}

// try is one request. Whatever it leaves in doubt is given up and undone.
func (w *wait) try() (grant, outcome) {
	identity := w.client.identity()
	field := w.target.field(identity, w.owner)
	g, out := w.target.kind.request(w, identity, field)
	if out.doubt {
		w.client.retire(identity)
	}
	waits := out.err == nil && w.entry != nil // in a queue on Redis: an undo would take its place away
	if out.doubt && !g.held && !waits {
		lasts := w.settings.ttl
		if w.entry != nil { // the lease of the place, and then that of the lock
			lasts = max(lasts, 2*w.settings.entryLease())
		}
		w.undo(field, lasts, out.unseen)
	}
	if out.err != nil {
		return grant{}, out
	}
	for _, p := range w.places {
		p.heard()
	}
	if g.held && out.unconfirmed != nil { // a failover could forget it: it does not count
		w.client.retire(identity)
		w.undo(field, w.settings.ttl, false)
		out.err, out.permanent = out.unconfirmed, true
		return grant{}, out
	}
	if g.held {
		w.receive(identity, field, g.token, out.sent, w.settings.ttl)
		if w.late() {
			out.err = errLate
			return grant{}, out
		}
	}
	return g, out
}

// effort is that of a request for the lock.
func (w *wait) effort() effort { return w.paced(acquireEffort).confirmedBy(w.settings.replicas) }

// receive records a grant: that of a request, or of a hand-over by the holder before.
func (h *hold) receive(identity *identity, field string, token int64, sent instant, lease time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.identity, h.field, h.token = identity, field, token
	h.renewed, h.deadline = sent, deadline(sent, lease)
}

// late reports whether the grant that h received is past its deadline; then it is undone,
// and counts as a failed try.
func (h *hold) late() bool {
	h.mu.Lock()
	late := h.client.now().until(h.deadline) <= 0
	h.mu.Unlock()
	if late {
		h.disown()
	}
	return late
}

// disown gives a grant back that does not count.
func (h *hold) disown() {
	h.giveUp()
	h.mu.Lock()
	h.identity, h.field, h.token = nil, "", 0
	h.mu.Unlock()
}

// failed decides what an error means for the wait: nil if it goes on. Who has only just
// come learns of the error at once. Who is in line rides out an outage of up to one TTL;
// then all who waited through it get the error together.
func (w *wait) failed(out outcome) error {
	w.misses++
	w.polling = false // the sleep to come is a pause after a failure
	if w.client.isClosed() {
		return ErrClosed
	}
	if w.ctx.Err() != nil && !errors.Is(out.err, context.Cause(w.ctx)) {
		return out.abandoned(w.ctx).err // it has ended only now
	}
	waiting := w.queued || errors.Is(out.err, errLate) // Redis did answer that one
	if w.ctx.Err() != nil || !w.waits || out.permanent || !waiting {
		return out.err
	}
	now := w.client.now()
	since := w.places[w.at].unheard(now)
	through := func(h *hold) bool { return now.since(latest(since, h.started)) >= h.settings.ttl }
	if !through(w.hold) {
		return nil
	}
	err := fmt.Errorf("no success with Redis for %v: %w", now.since(since).Round(time.Millisecond), out.err)
	w.places[w.at].queue.Fail(err, through)
	return err
}

// suspect has the subscription examined if a safety poll found out what a message should
// have told: a release. Another holder may have got the lock by a release or by a hand-over
// within a process, of which no message tells.
func (w *wait) suspect(g grant) {
	channel := w.target.channels[w.seen.key]
	switch {
	case !w.polled:
	case g.held:
		w.client.hub.Missed(channel)
	case g.holder != w.seen.holder:
		w.client.hub.Suspect(channel)
	}
}

// nap returns how long to sleep after having been told that the lock is taken: until a
// message is overdue or the lease runs out.
func (w *wait) nap(g grant) time.Duration {
	changed := g.holder != w.seen.holder
	w.seen = g
	longest := w.target.kind.longest(w.settings)
	if g.split {
		w.splits++
		w.polling = false
		return min(splitPause(w.splits), longest)
	}
	w.splits = 0
	var d time.Duration
	switch {
	case w.listening():
		// The first sleep is of a random length, so that the waiters of many processes,
		// woken together, do not poll together.
		d, w.pause = longest, 0
		if !w.polled {
			d = jitter(longest)
		}
	case changed:
		w.pause = fastPoll
		d = fastPoll + rand.N(fastPollMax-fastPoll)
	default:
		w.pause = max(fastPoll, min(2*w.pause, longest))
		d = jitter(w.pause)
	}
	w.polling = w.pause == 0
	if g.ttl >= 0 && g.ttl < d {
		d, w.polling = g.ttl+rand.N(4*time.Millisecond), false
	}
	return min(d, longest)
}

// trySplits is how many split votes TryLock tries again after.
const trySplits = 3

// splitPause is a random pause after the nth split vote in a row: whoever comes back first,
// by more than a vote takes, wins. It doubles, because a vote may take long, and because the
// lock may be held after all, by the votes of nodes that do not answer here.
func splitPause(n int) time.Duration {
	return rand.N(4 * time.Millisecond << min(n-1, 6))
}

// rest sleeps until there is news, d has passed, or the wait is over, which it returns.
func (w *wait) rest(d time.Duration) error {
	until := w.client.now().after(d)
	return w.restUntil(func() instant { return until })
}

// restUntil is rest until what due says, which may change; then the alarm has to ring.
func (w *wait) restUntil(due func() instant) error {
	for {
		left := w.client.now().until(due())
		if left <= 0 {
			w.polled = w.polling
			w.news()
			return nil
		}
		if err := w.sleep(left); err != nil {
			return err
		}
		if w.news() {
			w.polled = false
			if ahead := w.places[w.at].queue.Ahead(); ahead > 0 {
				pause(w.ctx, time.Duration(min(ahead, mostAhead))*courtesy)
			}
			return nil
		}
	}
}

// courtesy is how long a waiter holds back after a wake-up for each process whose turn is
// before its own. A process that has just run would win every race against those that
// have to be woken first. Shorter sleeps are rounded up to a millisecond by the runtime.
const (
	courtesy  = time.Millisecond
	mostAhead = 16
)

// sleep waits for the alarm, for d unless that is negative, or for the end of the wait,
// which it returns.
func (w *wait) sleep(d time.Duration) error {
	var timeout <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-w.alarm:
		return nil
	case <-timeout:
		return nil
	case <-w.ctx.Done():
		return ended(w.ctx)
	case <-w.client.closing:
		return ErrClosed
	}
}
