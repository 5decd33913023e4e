package relock

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// A batch lets holds of one key follow one another in this process under one lease.
//
// The next waiter enters as soon as the holder unlocks. One rename then writes the current owner to Redis, for all
// holds that ended before it was sent: a group commit.
//
//	in step --a hold follows--> behind --a rename is sent--> renaming --answered: ours--> in step, or behind
//	in step, behind --the last hold ends, and none follows: its release or hand-over is sent--> over
//	renaming --answered: neither name--> over, the holder is lost
//	any --the holder is lost, or abandoned--> over: both names are undone
//
// Invariants:
//   - One hold of a batch is valid at a time. Its lease was proven by an answered command for the key, under
//     whichever name.
//   - One command for the key is in flight at a time: all holds of a batch share a slot.
//   - A rename replaces the name on Redis by the name of the hold that is valid when the rename is sent.
//     The names in between never reach Redis.
//   - A command that gives the lock away (a release, a hand-over by Redis) is sent when no hold is valid. No hold
//     begins before it is answered.
//   - An Unlock returns the answer to a command that was sent after its hold ended.
//   - If the outcome of a command is unknown, the names are retired before anyone is notified. A hold may have followed
//     under such a name before: it gets a new one before its name is written, because a delayed copy of the rename would
//     replace the old one.
//   - The names belong to the batch. A rename is repeated until it is answered or the batch is over, even if
//     no Unlock waits for it any more.
//
// What can come late: a delayed copy of a rename, which finds its new name in place, or neither name, because both
// were retired and never come back. The answer to a rename of a batch that is over. A waiter that leaves
// just as it should follow: the next local waiter follows instead.
//
// The idea is group commit (DeWitt and others, Implementation Techniques for Main Memory Database Systems,
// SIGMOD 1984), combined with the hand-over within a cohort of lock cohorting (Dice, Marathe, Shavit, PPoPP 2012).

// batch is a run of holds of one key that follow one another.
type batch struct {
	session *session
	rename  renamer
	target  *keys.Set
	gate    *gate // of the key
	slot    *slot // of all its holds: each takes it for a command for the key
	began   clock.Instant

	mu      sync.Mutex
	holder  *hold     // the valid hold, or the last one that was valid
	name    keys.Name // of the holder
	settled keys.Name // the name on Redis, by the last answer
	sent    keys.Name // the new name of the rename in flight; without a field if there is none
	failure error     // the most informative failure of the rename in flight

	// Each channel is in at most one of these, and receives one answer, from answered, refused or end.
	waiting []chan error // of Unlocks for which no command was sent yet
	asked   []chan error // of Unlocks for which the command in flight counts

	sending bool               // the goroutine that sends renames is running
	last    bool               // the holder has ended, and no hold follows: its own command is the last
	over    bool               // none of its names is in use any more
	stop    context.CancelFunc // ends the rename in flight; nil before the first
}

// newBatch returns a batch that begins with h, which is held.
func newBatch(h *hold) *batch {
	return &batch{
		session: h.session, rename: h.kind.rename, target: h.target, gate: h.queueEntries[0].gate, slot: h.slot, began: h.lease.Acquired(),
		holder: h, name: h.name, settled: h.name,
	}
}

// handOver makes next follow the holder, which has ended, under the name n, if grant gives next the turn. It returns
// a channel for the answer of Redis, or nil if next does not follow because grant refused or the batch is over. Unless an
// Unlock waits for the answer, no command is sent for it, and the channel is closed.
func (b *batch) handOver(next *hold, n keys.Name, waits bool, grant func() bool) (answer <-chan error, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return nil, true
	}
	if !grant() {
		return nil, false
	}
	// Not before grant: if the waiter has left, the holder stays the last valid hold.
	b.holder, b.name, b.last = next, n, false
	if !waits {
		b.send() // an earlier Unlock may wait, for which next's predecessor would have sent the last command
		return unasked, false
	}
	return b.wait(), false
}

// unasked is the answer to no question.
var unasked = func() chan error {
	closed := make(chan error)
	close(closed)
	return closed
}()

// keepLease has the name of the holder written, which renews the lease and asks for the line. A rename that is on its way does
// not count: it may have been executed before a waiter came to the line. The next one does, whoever waits for it.
func (b *batch) keepLease() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over && len(b.waiting) == 0 {
		b.wait()
	}
}

// wait requests a command and returns a channel for its answer. mu is held.
// The channel has a buffer, because the Unlock may have returned, and the sending goroutine does not wait for it.
func (b *batch) wait() <-chan error {
	answer := make(chan error, 1)
	b.waiting = append(b.waiting, answer)
	b.send()
	return answer
}

// send starts the goroutine that sends renames, if an Unlock waits for one. mu is held.
func (b *batch) send() {
	if len(b.waiting) > 0 && !b.sending && !b.last {
		b.sending = true
		b.session.goroutines.Go(b.sendRenames)
	}
}

// yields is how often the sending goroutine yields first, if the turn of the process is limited. Brief holds have all
// ended by then, and the release covers them without a rename before it.
const yields = 4

// sendRenames sends renames, one at a time, while any Unlock waits for one.
func (b *batch) sendRenames() {
	for n := 0; n < yields && !b.goesOn(); n++ {
		runtime.Gosched()
	}
	for b.slot.take(b.session.background) {
		again := b.sendRename()
		b.slot.free()
		if !again {
			return
		}
	}
	b.end(lockerr.Ended(b.session.background))
}

// sendRename sends a rename if an Unlock waits for one, and waits for the answer. The slot is taken.
// One rename counts for all holds that ended since the last command.
func (b *batch) sendRename() (again bool) {
	b.mu.Lock()
	if b.over || b.last || len(b.waiting) == 0 {
		b.sending = false
		b.mu.Unlock()
		return false
	}
	from, to, holder := b.settled, b.name, b.holder
	renamed := to.Field != from.Field && to.Identity != b.session.identities.Current()
	if renamed {
		to = b.session.identities.Current().Of(b.target, holder.owner)
		b.name = to
	}
	b.sent, b.failure = to, nil
	b.asked, b.waiting = b.waiting, nil
	ctx, stop := context.WithCancel(b.session.background)
	b.stop = stop
	b.mu.Unlock()
	defer stop()
	if renamed {
		holder.setName(to)
	}
	b.renameUntilAnswered(ctx, from, to, holder.wantedLease())
	return true
}

// renameOptions are the options of one round of copies of a rename. After each round a failure is reported to a hook.
var renameOptions = redisexec.CallOptions{Attempts: 2}

// renameUntilAnswered repeats a rename until it is answered, or ctx ends. If Redis rejects it for good, and no copy can
// have been executed, the name on Redis stays unchanged.
func (b *batch) renameUntilAnswered(ctx context.Context, from, to keys.Name, lease time.Duration) {
	doubt := false
	for misses := 1; ; misses++ {
		e := renameOptions
		e.Patience = min(b.session.patience, redisexec.PatienceFor(lease))
		ours, waiters, out := b.rename(ctx, e, b.target, from.Field, to.Field, lease)
		if out.Ambiguous {
			doubt = true
			// mutant: batch-unknown-name-reused/1
			b.session.identities.Retire(from.Identity)
			// mutant: batch-unknown-name-reused/2
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
			b.end(lockerr.Ended(ctx)) // unless it is over: the client is closing
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

// answered records that Redis has the lock under the name to. The gate records the answer even if the batch is over,
// because it is news of the key, not of the batch. The lease on Redis now belongs to the current holder.
func (b *batch) answered(to keys.Name, waiters int, out redisexec.Outcome, lease time.Duration) {
	b.gate.answered()
	// If Redis did not say how many wait (-1), some may.
	if b.gate.seesLine(lineIs(waiters != 0), out.Sent); waiters > 0 {
		b.gate.notifyWanted()
	}
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return
	}
	b.settled, b.sent = to, keys.Name{}
	asked, holder := b.asked, b.holder
	b.asked = nil
	b.mu.Unlock()

	// Without mu, because hold.mu comes first in the order of locks.
	holder.renameConfirmed(b, out, lease)
	for _, answer := range asked {
		answer <- nil
	}
}

// failed records a round of copies that were not answered, and reports it to the holder.
func (b *batch) failed(out redisexec.Outcome) {
	b.mu.Lock()
	b.failure = redisexec.MoreInformative(b.failure, out.Err)
	holder := b.holder
	b.mu.Unlock()
	holder.renameFailed(out)
}

// refused gives up a rename that was certainly not executed. Redis keeps the lock under the name from. The owner of
// that name may lock again now, so the name is retired; later renames start from it.
func (b *batch) refused(from keys.Name, err error) {
	b.session.identities.Retire(from.Identity)
	b.mu.Lock()
	asked := b.asked
	b.sent, b.asked = keys.Name{}, nil
	b.mu.Unlock()
	for _, answer := range asked {
		answer <- err
	}
}

// lost ends the batch after Redis answered that the key has neither name. Another owner may have the lock.
// Each Unlock that waits returns ErrLost, and the holder's context ends with it.
func (b *batch) lost() {
	b.end(fmt.Errorf("%w: %w", lockerr.ErrLost, lockerr.ErrNotOnRedis))
	b.mu.Lock()
	holder := b.holder
	b.mu.Unlock()
	holder.lose(lockerr.ErrNotOnRedis)
	b.gate.endLingering(nil) // the holder may be one that lingers
}

// end ends the batch, and sends err, which may be nil, to each Unlock that waits. It interrupts a rename in flight and
// does not wait for it. Since a copy may still be executed, names includes the name of that rename.
// After an error the outcome is unknown. The names are retired before any Unlock returns: its owner may lock again at
// once, and the undo of the batch must not hit that hold.
func (b *batch) end(err error) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if err != nil {
		b.retire()
	}
	b.gate.endBatch(b) // after retire: newName looks for the batch, and then for the identity
	if b.stop != nil {
		b.stop()
	}
	for _, answer := range append(b.asked, b.waiting...) {
		answer <- err
	}
	b.asked, b.waiting = nil, nil
}

// retire ensures that no later hold uses a name that Redis may have for the lock, or may get. mu is held.
func (b *batch) retire() {
	for _, n := range append(b.namesHeld(), b.name) {
		b.session.identities.Retire(n.Identity)
	}
}

// isOver reports whether the batch is over. If the holder of a batch that is over is still valid, no hold can follow
// it: it releases the lock by its own command.
func (b *batch) isOver() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.over
}

// names returns the names that Redis may have for the lock, in the order in which they are to be undone: in the other
// order, a delayed copy of the rename could bring the second name back.
func (b *batch) names() []keys.Name {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.namesHeld()
}

// namesHeld is names. mu is held.
func (b *batch) namesHeld() []keys.Name {
	if b.sent.Field == "" {
		return []keys.Name{b.settled}
	}
	return []keys.Name{b.settled, b.sent}
}

// mayBeOnRedis reports whether field may have been the name of the lock on Redis at the time asked: the name of any hold of
// the batch, if the batch had begun.
func (b *batch) mayBeOnRedis(field string, asked clock.Instant) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ours := b.settled.Identity.Begins(field)
	return b.settled.Field == field || b.sent.Field == field || ours && asked.Since(b.began) >= 0
}

// goesOn reports whether holds may follow one another beyond WithLocalHandoffs.
func (b *batch) goesOn() bool {
	return b != nil && b.gate.forUs(b.session.now())
}

// holderEnds records that the holder has ended and no hold follows: no further rename is sent.
func (b *batch) holderEnds() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = true
}

// unanswered returns the error of a call whose ctx ended before the answer, with what failed meanwhile. The names are
// retired first: the caller may lock again before the answer.
func (b *batch) unanswered(ctx context.Context) error {
	b.mu.Lock()
	b.retire()
	out := redisexec.Outcome{Err: b.failure}
	b.mu.Unlock()
	return out.Abandoned(ctx).Err // without mu: ctx may be the context of a hold, and its Err locks the hold
}

// confirmName requests that the name of h be written to Redis, if h is the holder and Redis has another name. It returns
// a channel for the answer, or nil if nothing needs to be sent.
func (b *batch) confirmName(h *hold) (answer <-chan error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.over, b.holder != h, b.settled == b.name && b.sent.Field == "" && len(b.waiting) == 0:
		return nil
	case b.sent == b.name && len(b.waiting) == 0:
		// The rename in flight writes it. Another rename, after a re-entry by another goroutine of this owner, would
		// reset the count.
		answer := make(chan error, 1)
		b.asked = append(b.asked, answer)
		return answer
	default:
		return b.wait()
	}
}
