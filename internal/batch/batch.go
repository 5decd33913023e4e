// Package batch lets holds of one key follow one another in this process under one lease.
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
package batch

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
	"github.com/relock-go/relock/internal/slot"
)

// Hold is a hold of a batch, as far as that knows it.
type Hold interface {
	// WantedLease is the lease that the next command is to ask for.
	WantedLease() time.Duration
	// Told says that Redis knows the lock by the name of the hold, or of one after it, for so long.
	Told(b *Batch, out redisexec.Outcome, lease time.Duration)
	// Untold says that a round of copies of a rename was not answered. It waits for no hook: until it returns, no
	// other command about the key can be sent.
	Untold(out redisexec.Outcome)
	// Lose says that Redis does not know the lock by any name of the batch.
	Lose()
}

// Gate is what this process has learned of the key.
type Gate interface {
	Heard()
	SetAlone(alone bool)
	Alone() bool
	StrangersDue(now clock.Instant) bool
}

// Env is what the batches of one kind of lock need of their client.
type Env struct {
	Now        clock.Clock
	Patience   time.Duration // with one copy of a command
	Background context.Context
	Go         func(func())
	Retire     func(*identity.Identity)
	Rename     Renamer
}

// Renamer tells Redis by which name the lock is held now; see [protocol.Plain.Rename].
type Renamer func(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, lease time.Duration) (ours bool, waiters int, out redisexec.Outcome)

// Batch is the holds of one key that follow one another.
type Batch struct {
	env    *Env
	target *keys.Set
	gate   Gate
	slot   *slot.Slot // of all its holds
	began  clock.Instant

	mu      sync.Mutex
	holder  Hold          // that is valid, or the last that was
	name    identity.Name // of the holder
	settled identity.Name // by which Redis knows the lock, as the last answer says
	sent    identity.Name // that a rename under way makes of it; without a field: none is
	failure error         // the most telling one of the rename under way

	// A channel is in one of these at most, and gets one answer: by answered, refused or End.
	waiting []chan error // of those that a command is to be sent for
	asked   []chan error // of those that the command under way tells for

	telling bool               // a goroutine is there that tells Redis
	last    bool               // the holder has ended, and no one follows: its own command tells for all
	over    bool               // none of its names counts any more
	stop    context.CancelFunc // ends the rename under way; nil if there was none
}

// New returns the batch that begins with h, which has had the key of t since began, by the name n. s is the
// slot of h, and of all that follow.
func New(env *Env, h Hold, n identity.Name, t *keys.Set, g Gate, s *slot.Slot, began clock.Instant) *Batch {
	return &Batch{env: env, target: t, gate: g, slot: s, began: began, holder: h, name: n, settled: n}
}

// Target is the key.
func (b *Batch) Target() *keys.Set { return b.target }

// Slot is what each of the holds takes for a command about the key.
func (b *Batch) Slot() *slot.Slot { return b.slot }

// Pass has next, by the name n, follow the holder, which has ended, if grant gives it the turn. It returns
// where the answer of Redis will be; nil: it does not follow, because grant did not, or the batch is over.
func (b *Batch) Pass(next Hold, n identity.Name, grant func() bool) (told <-chan error, over bool) {
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
func (b *Batch) wait() <-chan error {
	told := make(chan error, 1)
	b.waiting = append(b.waiting, told)
	if !b.telling && !b.last {
		b.telling = true
		b.env.Go(b.tell)
	}
	return told
}

// yields is how often the goroutine that tells Redis lets others run first, in a turn that is limited:
// brief holds are all over by then, and the release tells of them, without a rename before it.
const yields = 4

// tell sends renames, one at a time, as long as there is something to tell.
func (b *Batch) tell() {
	for n := 0; n < yields && !b.GoesOn(); n++ {
		runtime.Gosched()
	}
	for b.slot.Take(b.env.Background) {
		again := b.tellOnce()
		b.slot.Free()
		if !again {
			return
		}
	}
	b.End(lockerr.Ended(b.env.Background))
}

// tellOnce sends a rename if there is something to tell. The slot is taken.
// All that ended since the last command are told by this one, however many they are.
func (b *Batch) tellOnce() (again bool) {
	b.mu.Lock()
	if b.over || b.last || len(b.waiting) == 0 {
		b.telling = false
		b.mu.Unlock()
		return false
	}
	from, to, holder := b.settled, b.name, b.holder
	b.sent, b.failure = to, nil
	b.asked, b.waiting = b.waiting, nil
	ctx, stop := context.WithCancel(b.env.Background)
	b.stop = stop
	b.mu.Unlock()
	defer stop()

	b.rename(ctx, from, to, holder.WantedLease())
	return true
}

// renameOptions are those of one round of copies of a rename; then the holder's hook hears of the failure.
var renameOptions = redisexec.CallOptions{Attempts: 2}

// rename tells Redis until that is answered, or ctx ends. If Redis refuses it for good, and no copy can
// have been executed, it stays as it was.
func (b *Batch) rename(ctx context.Context, from, to identity.Name, lease time.Duration) {
	doubt := false
	for misses := 1; ; misses++ {
		e := renameOptions
		e.Patience = min(b.env.Patience, redisexec.PatienceFor(lease))
		ours, waiters, out := b.env.Rename(ctx, e, b.target, from.Field, to.Field, lease)
		if out.Ambiguous {
			doubt = true
			// mutant: batch-doubt-kept/1
			b.env.Retire(from.Identity)
			// mutant: batch-doubt-kept/2
			b.env.Retire(to.Identity)
		}
		switch {
		case out.Err == nil && !ours:
			b.lost()
			return
		case out.Err == nil:
			b.answered(to, waiters, out, lease)
			return
		case ctx.Err() != nil:
			b.End(lockerr.Ended(ctx)) // unless it is over: the client has no more time
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
func (b *Batch) answered(to identity.Name, waiters int, out redisexec.Outcome, lease time.Duration) {
	b.gate.Heard()
	b.gate.SetAlone(waiters == 0)
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
	holder.Told(b, out, lease)
	for _, told := range asked {
		told <- nil
	}
}

// failed records a round of copies that were not answered, and tells the holder.
func (b *Batch) failed(out redisexec.Outcome) {
	b.mu.Lock()
	b.failure = redisexec.MoreTelling(b.failure, out.Err)
	holder := b.holder
	b.mu.Unlock()
	holder.Untold(out)
}

// refused gives up a rename that has surely not been executed. Redis goes on to know the lock as from, whose owner
// may come back now: not by that name, from which later renames go.
func (b *Batch) refused(from identity.Name, err error) {
	b.env.Retire(from.Identity)
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
func (b *Batch) lost() {
	b.End(fmt.Errorf("%w: %w", lockerr.ErrLost, lockerr.ErrNotOnRedis))
	b.mu.Lock()
	holder := b.holder
	b.mu.Unlock()
	holder.Lose()
}

// End ends the batch: err, or nil, is what those hear that wait for Redis. It cuts a rename under way short, and
// does not wait for it: a copy may still be executed, which is why Names tells the name that was sent, too.
// After an error its names are in doubt. They are retired before anyone hears of that: who does may lock again at
// once, and what undoes the batch must not meet that hold.
func (b *Batch) End(err error) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if err != nil {
		for _, n := range append(b.names(), b.name) {
			b.env.Retire(n.Identity)
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

// IsOver reports whether the batch has ended, though its holder has not.
// A holder of a batch that is over cannot be followed: it has to give the lock back by its own command.
func (b *Batch) IsOver() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.over
}

// Names returns the names by which Redis may know the lock: it is to be rid of the first before the
// other, or a late copy of the rename could bring the other back.
func (b *Batch) Names() []identity.Name {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.names()
}

// names is Names. mu is held.
func (b *Batch) names() []identity.Name {
	if b.sent.Field == "" {
		return []identity.Name{b.settled}
	}
	return []identity.Name{b.settled, b.sent}
}

// Knows reports whether Redis may have known the lock as field when it was asked: by the name of any hold
// of the batch if that had begun.
func (b *Batch) Knows(field string, asked clock.Instant) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ours := b.settled.Identity.Begins(field)
	return b.settled.Field == field || b.sent.Field == field || ours && asked.Since(b.began) > 0
}

// GoesOn reports whether holds may follow one another beyond the limit.
func (b *Batch) GoesOn() bool {
	return b != nil && b.gate.Alone() && !b.gate.StrangersDue(b.env.Now())
}

// HolderEnds says that the holder has ended and no one follows: no further rename is sent.
func (b *Batch) HolderEnds() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = true
}

// Unanswered says that ctx has ended before Redis answered, and what was learned meanwhile.
func (b *Batch) Unanswered(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return redisexec.Outcome{Err: b.failure}.Abandoned(ctx).Err
}

// Settled is the name by which Redis knows the lock. No rename is under way.
func (b *Batch) Settled() identity.Name {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.settled
}

// Known has Redis be told the name of h if that is the holder and Redis does not know it. It returns where
// the answer will be; nil: there is nothing to tell.
func (b *Batch) Known(h Hold) (told <-chan error) {
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
