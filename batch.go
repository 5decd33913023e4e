package relock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
)

// A batch is the holds of one key that follow one another in this process under one lease. The next
// waiter enters as soon as the holder unlocks. Redis is told afterwards, by one rename for all that
// have ended by the time it can be sent: a group commit.
//
//	told --a hold follows--> behind --a rename is sent--> telling --answered: ours--> told, or behind
//	told, behind --the last unlocks, no one follows: its release is sent, or its hand-over--> over
//	telling --answered: neither name--> over, the holder is lost
//	any --the holder is lost, or given up--> over: both names are undone
//
// Invariants:
//   - One hold of a batch is valid at a time. Its lease was proven by an answered command about the key,
//     whatever name that was sent for.
//   - One command about the key is under way at a time: all holds of a batch share a slot.
//   - A rename goes from the name that Redis knows to that of the hold which is valid when it is sent.
//     Those in between never were on Redis.
//   - What gives the lock away, a release or a hand-over by Redis, is sent when no hold is valid, and no
//     one enters before it is answered.
//   - An Unlock is answered by a command that was sent after its hold had ended.
//   - The names belong to the batch. A rename is sent again until it is answered or the batch is over,
//     whoever still waits for it.
//
// What can come late: a copy of a rename, which finds its new name in place, or neither name: one that
// was in doubt had both retired, so they never come back. The answer to a rename of a batch that is over.
// A waiter that leaves while it is to follow: the next in line follows instead.
//
// The source of the idea is group commit (DeWitt and others, Implementation Techniques for Main Memory
// Database Systems, SIGMOD 1984), and the hand-over within a cohort of lock cohorting (Dice, Marathe,
// Shavit, PPoPP 2012).
type batch struct {
	session *session
	kind    *kind
	target  *keys.Set
	gate    *gate.Gate[*hold]
	slot    *slot // of all its holds
	began   clock.Instant

	mu      sync.Mutex
	holder  *hold // that is valid, or the last that was
	name    name  // of the holder
	settled name  // by which Redis knows the lock, as the last answer says
	sent    name  // that a rename under way makes of it; without a field: none is
	failure error // the most telling one of the rename under way

	waiting []chan error // of those that a command is to be sent for
	asked   []chan error // of those that the command under way was sent for

	telling bool               // a goroutine is there that tells Redis
	last    bool               // the holder has ended, and no one follows: its own command tells for all
	over    bool               // none of its names counts any more
	stop    context.CancelFunc // ends the rename under way; nil if there was none
}

// renamer tells Redis by which name the lock is held now; see [protocol.Plain.Rename].
type renamer func(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, lease time.Duration) (ours bool, waiters int, out redisexec.Outcome)

// handAhead has the next waiter of this process follow h, which has ended, before Redis knows. It
// returns where the answer of Redis will be; nil: no one follows in this way.
func (h *hold) handAhead(s *settings) <-chan error {
	h.mu.Lock()
	single := len(h.places) == 1
	h.mu.Unlock()
	if h.kind.rename == nil || !single || h.settings.replicas.N > 0 || h.isKept() {
		return nil
	}
	for {
		ticket := h.follower(s.localHandoffs)
		if ticket == nil {
			return nil
		}
		if told, done := h.joinBatch().pass(h, ticket); done {
			return told
		}
	}
}

// follower reserves the ticket of the next waiter if that may take h's place under its lease, and it
// is still this process' turn.
func (h *hold) follower(limit int) *queue.Ticket[*hold] {
	h.mu.Lock()
	left, b := h.lease.Left(h.session.now()), h.batch
	h.mu.Unlock()
	first := h.places[0]
	if inRow, _ := first.queue.Handoffs(); inRow >= limit && (limit == 0 || !b.goesOn()) {
		return nil
	}
	return first.ticket.Reserve(func(w *hold) bool {
		w.attempt.offered, w.attempt.handedOver = nil, nil // nothing is sent for it
		return w.target.ID == h.target.ID && w.settings.follows(left)
	})
}

// follows reports whether a hold with the settings s can begin with what is left of a lease: it asks
// for no token and no replicas, its own lease is not shorter, and is renewed, and it need not hurry.
func (s *settings) follows(left time.Duration) bool {
	return !s.Fencing && s.replicas.N == 0 && s.Renewed && left <= s.TTL && left >= s.EntryLease()/3
}

// joinBatch returns the batch of h, which begins with it if there is none.
func (h *hold) joinBatch() *batch {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.batch == nil {
		h.batch = &batch{
			session: h.session, kind: h.kind, target: h.target, gate: h.places[0].gate,
			slot: h.slot, began: h.lease.Acquired(), holder: h, name: h.name, settled: h.name,
		}
	}
	return h.batch
}

// pass has the waiter with the reserved ticket follow h. not done: it has left. A nil channel: the
// batch is over, and h is to find out by itself.
func (b *batch) pass(h *hold, ticket *queue.Ticket[*hold]) (told <-chan error, done bool) {
	next := ticket.Value
	n := b.nameOf(next)
	next.follow(h, n, b)
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		next.forget()
		ticket.Refuse()
		return nil, true
	}
	defer b.mu.Unlock()
	if !h.places[0].ticket.Grant(ticket) {
		return nil, false // its attempt has ended: it is of no more use
	}
	b.holder, b.name, b.last = next, n, false
	return b.wait(), true
}

func (b *batch) nameOf(h *hold) name {
	id := b.session.identity()
	return name{identity: id, field: b.target.Field(string(*id), h.owner)}
}

// follow has h, a waiter, begin with the lease of the hold before.
func (h *hold) follow(before *hold, n name, b *batch) {
	before.mu.Lock()
	l := before.lease
	before.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.name, h.batch, h.slot = n, b, b.slot
	h.lease.Follow(l)
}

// forget has h be known by no name, and in no batch.
func (h *hold) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.name, h.batch, h.slot = name{}, nil, &h.first.slot
}

// wait has a command be sent whose answer will be in the channel. mu is held.
func (b *batch) wait() <-chan error {
	told := make(chan error, 1)
	b.waiting = append(b.waiting, told)
	if !b.telling && !b.last {
		b.telling = true
		b.session.goroutines.Go(b.tell)
	}
	return told
}

// yields is how often the goroutine that tells Redis lets others run first, in a turn that is limited:
// brief holds are all over by then, and the release tells of them, without a rename before it.
const yields = 4

// tell sends renames, one at a time, as long as there is something to tell.
func (b *batch) tell() {
	for n := 0; n < yields && !b.goesOn(); n++ {
		runtime.Gosched()
	}
	for b.slot.take(b.session.background) {
		again := b.tellOnce()
		b.slot.free()
		if !again {
			return
		}
	}
	b.end(lockerr.Ended(b.session.background))
}

// tellOnce sends a rename if there is something to tell. The slot is taken.
func (b *batch) tellOnce() (again bool) {
	b.mu.Lock()
	if b.over || b.last || len(b.waiting) == 0 {
		b.telling = false
		b.mu.Unlock()
		return false
	}
	from, to, holder := b.settled, b.name, b.holder
	b.sent, b.failure = to, nil
	b.asked, b.waiting = b.waiting, nil
	ctx, stop := context.WithCancel(b.session.background)
	b.stop = stop
	b.mu.Unlock()
	defer stop()

	holder.mu.Lock()
	lease := holder.wantedLease()
	holder.mu.Unlock()
	b.rename(ctx, from, to, lease)
	return true
}

// renameEffort is that of one round of copies of a rename; then the holder's hook hears of the failure.
var renameEffort = redisexec.CallOptions{Attempts: 2}

// rename tells Redis until that is answered, or ctx ends. If Redis refuses it for good, and no copy can
// have been executed, it stays as it was.
func (b *batch) rename(ctx context.Context, from, to name, lease time.Duration) {
	doubt := false
	for misses := 1; ; misses++ {
		e := renameEffort
		e.Patience = min(b.session.patience, redisexec.PatienceFor(lease))
		ours, waiters, out := b.kind.rename(ctx, e, b.target, from.field, to.field, lease)
		if out.Ambiguous {
			doubt = true
			b.session.retire(from.identity)
			b.session.retire(to.identity)
		}
		switch {
		case out.Err == nil && !ours:
			b.lost()
			return
		case out.Err == nil:
			b.answered(to, waiters, out, lease)
			return
		case ctx.Err() != nil:
			return // it is over
		}
		b.failed(out)
		if out.Permanent && !doubt {
			b.refused(out.Err)
			return
		}
		clock.Pause(ctx, clock.Backoff(misses))
	}
}

// answered records that Redis knows the lock as to.
func (b *batch) answered(to name, waiters int, out redisexec.Outcome, lease time.Duration) {
	b.gate.Heard()
	b.gate.SetAlone(waiters == 0)
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return
	}
	b.settled, b.sent = to, name{}
	asked, holder := b.asked, b.holder
	b.asked = nil
	b.mu.Unlock()

	holder.mu.Lock()
	if holder.batch == b && (holder.phase == held || holder.phase == acquiring) {
		_ = holder.renewalSettled(out, lease) // there is none
	}
	holder.mu.Unlock()
	for _, told := range asked {
		told <- nil
	}
}

// failed records a round of copies that were not answered, and tells the holder's hook.
func (b *batch) failed(out redisexec.Outcome) {
	b.mu.Lock()
	b.failure = redisexec.MoreTelling(b.failure, out.Err)
	holder := b.holder
	b.mu.Unlock()
	holder.mu.Lock()
	holding := holder.phase == held
	if holding {
		out.Err = holder.renewalSettled(out, 0)
	}
	event, hooks := holder.event(b.session.now().Since(out.Sent), out.Err), *holder.hooks()
	holder.mu.Unlock()
	if holding {
		report(hooks.RenewFailed, holder.owner, event)
	}
}

// refused gives up a rename that has surely not been executed.
func (b *batch) refused(err error) {
	b.mu.Lock()
	asked := b.asked
	b.sent, b.asked = name{}, nil
	b.mu.Unlock()
	for _, told := range asked {
		told <- err
	}
}

// lost ends the batch after Redis has said that it knows neither name.
func (b *batch) lost() {
	b.end(fmt.Errorf("%w: %w", ErrLost, lockerr.ErrNotOnRedis))
	b.mu.Lock()
	holder := b.holder
	b.mu.Unlock()
	holder.lose(lockerr.ErrNotOnRedis)
}

// end ends the batch: err, or nil, is what those hear that wait for Redis.
func (b *batch) end(err error) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if b.stop != nil {
		b.stop()
	}
	for _, told := range append(b.asked, b.waiting...) {
		told <- err
	}
	b.asked, b.waiting = nil, nil
}

// isOver reports whether the batch has ended, though its holder has not.
func (b *batch) isOver() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.over
}

// names returns the names by which Redis may know the lock: it is to be rid of the first before the
// other, or a late copy of the rename could bring the other back.
func (b *batch) names() []name {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent.field == "" {
		return []name{b.settled}
	}
	return []name{b.settled, b.sent}
}

// knows reports whether Redis may have known the lock as field when it was asked: by the name of any hold
// of the batch if that had begun.
func (b *batch) knows(field string, asked clock.Instant) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ours := strings.HasPrefix(field, string(*b.settled.identity)+":")
	return b.settled.field == field || b.sent.field == field || ours && asked.Since(b.began) > 0
}

// goesOn reports whether holds may follow one another beyond the limit.
func (b *batch) goesOn() bool {
	return b != nil && b.gate.Alone() && !b.gate.StrangersDue(b.session.now())
}

// ends says that the holder has ended and no one follows: no further rename is sent.
func (b *batch) ends() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = true
}

// onRedis is the name by which Redis knows the lock. No rename is under way.
func (h *hold) onRedis() name {
	h.mu.Lock()
	n, b := h.name, h.batch
	h.mu.Unlock()
	if b == nil {
		return n
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.settled
}

// known waits until Redis knows the lock by the name of h, the holder: the next command of h needs that.
// waited: there was something to tell, and its lease was proven by that.
func (h *hold) known(ctx context.Context) (waited bool, err error) {
	h.mu.Lock()
	b := h.batch
	h.mu.Unlock()
	if b == nil {
		return false, nil
	}
	b.mu.Lock()
	if b.over || b.holder != h || b.settled == b.name && b.sent.field == "" && len(b.waiting) == 0 {
		b.mu.Unlock()
		return false, nil
	}
	told := b.wait()
	b.mu.Unlock()
	select {
	case err := <-told:
		return true, err
	case <-ctx.Done():
		return true, b.unanswered(ctx)
	}
}

// unanswered says that ctx has ended before Redis answered, and what was learned meanwhile.
func (b *batch) unanswered(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return redisexec.Outcome{Err: b.failure}.Abandoned(ctx).Err
}

// awaitTold waits for the answer to a command that was sent after h had ended.
func (h *hold) awaitTold(ctx context.Context, told <-chan error) (err error) {
	select {
	case err = <-told:
		if err == nil || errors.Is(err, ErrLost) {
			return err
		}
	case <-ctx.Done():
		h.session.retire(h.name.identity) // its owner may come back before the answer
		err = h.batch.unanswered(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unheard(err)
}
