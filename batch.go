package relock

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// A batch lets holds of one key follow one another in this process under one lease.
//
// The next waiter enters as soon as the holder unlocks. Redis is told afterwards, by one rename for all that
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
//     The names in between never were on Redis.
//   - What gives the lock away, a release or a hand-over by Redis, is sent when no hold is valid, and no
//     one enters before it is answered.
//   - An Unlock is answered by a command that was sent after its hold had ended.
//   - The names are retired before anyone hears that they are in doubt.
//   - The names belong to the batch. A rename is sent again until it is answered or the batch is over,
//     even if no one waits for it any more.
//
// What can come late: a copy of a rename, which finds its new name in place, or neither name: one that
// was in doubt had both retired, so they never come back. The answer to a rename of a batch that is over.
// A waiter that leaves while it is to follow: the next in line follows instead.
//
// The source of the idea is group commit (DeWitt and others, Implementation Techniques for Main Memory
// Database Systems, SIGMOD 1984), and the hand-over within a cohort of lock cohorting (Dice, Marathe,
// Shavit, PPoPP 2012).

// batch is the holds of one key that follow one another.
type batch struct {
	session *session
	rename  renamer
	target  *keys.Set
	gate    *gate // of the key
	slot    *slot // of all its holds: each takes it for a command about the key
	began   clock.Instant

	mu      sync.Mutex
	holder  *hold         // that is valid, or the last that was
	name    identity.Name // of the holder
	settled identity.Name // by which Redis knows the lock, as the last answer says
	sent    identity.Name // that a rename under way makes of it; without a field: none is
	failure error         // the most telling one of the rename under way

	// A channel is in one of these at most, and gets one answer: by answered, refused or end.
	waiting []chan error // of those that a command is to be sent for
	asked   []chan error // of those that the command under way tells for

	telling bool               // a goroutine is there that tells Redis
	last    bool               // the holder has ended, and no one follows: its own command tells for all
	over    bool               // none of its names counts any more
	stop    context.CancelFunc // ends the rename under way; nil if there was none
}

// newBatch returns the batch that begins with h, which is held.
func newBatch(h *hold) *batch {
	return &batch{
		session: h.session, rename: h.kind.rename, target: h.target, gate: h.places[0].gate, slot: h.slot, began: h.lease.Acquired(),
		holder: h, name: h.name, settled: h.name,
	}
}

// pass has next, by the name n, follow the holder, which has ended, if grant gives it the turn. It returns
// where the answer of Redis will be; nil: it does not follow, because grant did not, or the batch is over.
func (b *batch) pass(next *hold, n identity.Name, grant func() bool) (told <-chan error, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return nil, true
	}
	if !grant() {
		return nil, false
	}
	// Only now: the waiter may have left, and then the holder stays the last that was valid.
	b.holder, b.name, b.last = next, n, false
	return b.wait(), false
}

// wait has a command be sent whose answer will be in the channel. mu is held.
// The channel has room for the answer: an Unlock may have left, and the goroutine that tells does not wait for it.
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
// All that ended since the last command are told by this one, however many they are.
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

	b.tellUntilAnswered(ctx, from, to, holder.wantedLease())
	return true
}

// renameOptions are those of one round of copies of a rename; then the holder's hook hears of the failure.
var renameOptions = redisexec.CallOptions{Attempts: 2}

// tellUntilAnswered sends a rename until that is answered, or ctx ends. If Redis refuses it for good, and no copy can
// have been executed, it stays as it was.
func (b *batch) tellUntilAnswered(ctx context.Context, from, to identity.Name, lease time.Duration) {
	doubt := false
	for misses := 1; ; misses++ {
		e := renameOptions
		e.Patience = min(b.session.patience, redisexec.PatienceFor(lease))
		ours, waiters, out := b.rename(ctx, e, b.target, from.Field, to.Field, lease)
		if out.Ambiguous {
			doubt = true
			// mutant: batch-doubt-kept/1
			b.session.identities.Retire(from.Identity)
			// mutant: batch-doubt-kept/2
			b.session.identities.Retire(to.Identity)
		}
		switch {
		case out.Err == nil && !ours:
			b.lost()
			return
		case out.Err == nil:
			b.answered(to, waiters, out, lease)
			return
		case ctx.Err() != nil:
			b.end(lockerr.Ended(ctx)) // unless it is over: the client has no more time
			return
		}
		b.failed(out)
		if out.Permanent && !doubt {
			b.refused(from, out.Err)
			return
		}
		clock.Pause(ctx, clock.Backoff(misses))
	}
}

// answered records that Redis knows the lock as to. The gate learns of it even if the batch is over: it is news of
// Redis, not of the batch.
// The lease that Redis has set is that of the hold that has the lock by now.
func (b *batch) answered(to identity.Name, waiters int, out redisexec.Outcome, lease time.Duration) {
	b.gate.heard()
	b.gate.setAlone(waiters == 0)
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return
	}
	b.settled, b.sent = to, identity.Name{}
	asked, holder := b.asked, b.holder
	b.asked = nil
	b.mu.Unlock()

	// Without mu, because a hold takes its own, which comes first in the order of locks.
	holder.told(b, out, lease)
	for _, told := range asked {
		told <- nil
	}
}

// failed records a round of copies that were not answered, and tells the holder.
func (b *batch) failed(out redisexec.Outcome) {
	b.mu.Lock()
	b.failure = redisexec.MoreTelling(b.failure, out.Err)
	holder := b.holder
	b.mu.Unlock()
	holder.untold(out)
}

// refused gives up a rename that has surely not been executed. Redis goes on to know the lock as from, whose owner
// may come back now: not by that name, from which later renames go.
func (b *batch) refused(from identity.Name, err error) {
	b.session.identities.Retire(from.Identity)
	b.mu.Lock()
	asked := b.asked
	b.sent, b.asked = identity.Name{}, nil
	b.mu.Unlock()
	for _, told := range asked {
		told <- err
	}
}

// lost ends the batch after Redis has said that it knows neither name.
// Another owner may have the lock. Each Unlock that waits for Redis says so, and so does the context of the holder.
func (b *batch) lost() {
	b.end(fmt.Errorf("%w: %w", lockerr.ErrLost, lockerr.ErrNotOnRedis))
	b.mu.Lock()
	holder := b.holder
	b.mu.Unlock()
	holder.lose(lockerr.ErrNotOnRedis)
}

// end ends the batch: err, or nil, is what those hear that wait for Redis. It cuts a rename under way short, and
// does not wait for it: a copy may still be executed, which is why names tells the name that was sent, too.
// After an error its names are in doubt. They are retired before anyone hears of that: who does may lock again at
// once, and what undoes the batch must not meet that hold.
func (b *batch) end(err error) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if err != nil {
		for _, n := range append(b.namesHeld(), b.name) {
			b.session.identities.Retire(n.Identity)
		}
	}
	if b.stop != nil {
		b.stop()
	}
	for _, told := range append(b.asked, b.waiting...) {
		told <- err
	}
	b.asked, b.waiting = nil, nil
}

// isOver reports whether the batch has ended, though its holder has not.
// A holder of a batch that is over cannot be followed: it has to give the lock back by its own command.
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
func (b *batch) names() []identity.Name {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.namesHeld()
}

// namesHeld is names. mu is held.
func (b *batch) namesHeld() []identity.Name {
	if b.sent.Field == "" {
		return []identity.Name{b.settled}
	}
	return []identity.Name{b.settled, b.sent}
}

// knows reports whether Redis may have known the lock as field when it was asked: by the name of any hold
// of the batch if that had begun.
func (b *batch) knows(field string, asked clock.Instant) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ours := b.settled.Identity.Begins(field)
	return b.settled.Field == field || b.sent.Field == field || ours && asked.Since(b.began) > 0
}

// goesOn reports whether holds may follow one another beyond the limit.
func (b *batch) goesOn() bool {
	return b != nil && b.gate.forUs(b.session.now())
}

// holderEnds says that the holder has ended and no one follows: no further rename is sent.
func (b *batch) holderEnds() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = true
}

// unanswered says that ctx has ended before Redis answered, and what was learned meanwhile.
func (b *batch) unanswered(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return redisexec.Outcome{Err: b.failure}.Abandoned(ctx).Err
}

// known has Redis be told the name of h if that is the holder and Redis does not know it. It returns where
// the answer will be; nil: there is nothing to tell.
func (b *batch) known(h *hold) (told <-chan error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.over, b.holder != h, b.settled == b.name && b.sent.Field == "" && len(b.waiting) == 0:
		return nil
	case b.sent == b.name && len(b.waiting) == 0:
		// The rename under way tells it. One more, after a re-entry of another goroutine of this owner, would set
		// its count back.
		told := make(chan error, 1)
		b.asked = append(b.asked, told)
		return told
	default:
		return b.wait()
	}
}
