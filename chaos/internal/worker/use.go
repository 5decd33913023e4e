package worker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/locker"
)

// use is a worker's hold of a lock, or of several at once, from the wish for it to its end.
type use struct {
	*worker
	m      locker.Locker
	locks  []string
	owner  string
	shared bool // another worker acts as the same owner: the levels are not the worker's alone
	lease  time.Duration
	fixed  bool          // the lease is not renewed
	least  time.Duration // its min hold; 0: none
	fair   bool          // it is served in order
	read   bool          // others may read, too
	eager  bool          // it does not wait
	depth  int
	op     int // number of the outermost Lock; 0 before it has returned
	asking int // number of the Lock that is under way

	hold    context.Context // of the hold, while it is held
	unwatch func()          // ends watching it
}

// use prepares a hold of locks by owner.
func (w *worker) use(locks []string, owner string, opts ...relock.MutexOption) *use {
	return w.useOf(w.client.locks, locks, owner, opts...)
}

func (w *worker) useOf(client *relock.Client, locks []string, owner string, opts ...relock.MutexOption) *use {
	u := w.prepare(locks, owner)
	opts = u.options(opts...)
	switch {
	case len(locks) > 1:
		u.m = locker.Mutex{Mutex: client.MultiMutex(locks, opts...)}
	case w.chance(w.Work.Fair):
		u.fair = true
		u.m = locker.Mutex{Mutex: client.FairMutex(locks[0], opts...)}
	default:
		u.m = locker.Mutex{Mutex: client.Mutex(locks[0], opts...)}
	}
	return u
}

// prepare draws what does not depend on the kind of lock.
func (w *worker) prepare(locks []string, owner string) *use {
	return &use{worker: w, locks: locks, owner: owner, lease: w.Work.TTL, fixed: w.chance(w.Work.Fixed)}
}

// options adds those of the use.
func (u *use) options(opts ...relock.MutexOption) []relock.MutexOption {
	opts = append(opts, relock.WithHooks(relock.Hooks{Renewed: u.renewed, Contended: u.contended}))
	if u.fixed {
		opts = append(opts, relock.WithoutRenewal())
	}
	return opts
}

// tell records e, which is about the outermost Lock unless it has a number.
func (u *use) tell(e history.Event) {
	e.Worker, e.Owner, e.Lock, e.Read = u.id, u.owner, strings.Join(u.locks, ","), u.read
	if e.Op == 0 {
		e.Op = u.op
	}
	u.record(e)
}

// local is when a hold is over that was confirmed by a request sent at the given time: it
// is a hundredth earlier than on Redis.
func (u *use) local(sent int64) int64 {
	return sent + int64(u.lease-max(u.lease/100, 5*time.Millisecond))
}

// renewed is called by the watchdog's goroutine.
func (u *use) renewed(e relock.Event) {
	now := history.Now()
	u.record(history.Event{
		At: now, Kind: history.Renewed, Worker: u.id, Owner: u.owner, Lock: strings.Join(u.locks, ","), Read: u.read,
		Token: e.Token, Until: u.local(now - int64(e.Elapsed)),
	})
}

// contended is called by the goroutine that waits, when it has a place in the line if the lock is a
// fair one; another one has that at once. A shared owner is left out: its other goroutine may have asked
// earlier.
func (u *use) contended(relock.Event) {
	if !u.shared {
		u.tell(history.Event{Op: u.asking, Kind: history.Queued})
	}
}

// lock adds a level.
func (u *use) lock() history.Outcome {
	ctx, wait, end := u.patience()
	defer end()
	op := u.number()
	u.asking = op
	try := u.eager || u.chance(0.2)
	e := history.Event{
		Op: op, Kind: history.LockCall, Wait: int64(wait), MinHold: int64(u.least), Fixed: u.fixed,
		Fair: u.fair && !u.shared && u.depth == 0,
	}
	if try {
		e.Note = "try"
	}
	u.tell(e)
	held, err := true, error(nil)
	if try {
		held, err = u.m.TryLock(ctx)
	} else {
		err = u.m.Lock(ctx)
	}
	e = history.Event{At: history.Now(), Op: op, Kind: history.LockReturn, Outcome: locker.OutcomeOf(err), Err: locker.Text(err)}
	switch {
	case err == nil && !held:
		e.Outcome = history.Taken
	case e.Outcome == history.Failed && ctx.Err() != nil:
		e.Outcome = history.Ended
	case e.Outcome == history.OK:
		if u.depth++; u.depth == 1 {
			u.op = op
		}
		e.Token, e.Until = u.m.FencingToken(), u.local(e.At)
		if !u.shared {
			e.Depth, e.Count = u.depth, u.m.HoldCount()
		}
	}
	u.tell(e)
	if e.Outcome == history.OK && u.depth == 1 {
		u.watch()
	}
	return e.Outcome
}

// patience draws how long a Lock may take: for ever, or until its context is cancelled or
// its deadline passes.
func (u *use) patience() (ctx context.Context, wait time.Duration, end func()) {
	p := u.r.Float64()
	switch {
	case p < u.Work.Impatient:
		wait = u.between(time.Millisecond, 200*time.Millisecond)
	case p < 0.85:
		wait = u.between(u.Work.TTL, 4*u.Work.TTL)
	default:
		return u.life, 0, func() {}
	}
	if u.chance(0.5) {
		ctx, cancel := context.WithTimeout(u.life, wait)
		return ctx, wait, cancel
	}
	ctx, cancel := context.WithCancel(u.life)
	timer := time.AfterFunc(wait, cancel)
	return ctx, wait, func() { timer.Stop(); cancel() }
}

// watch records the loss of the hold, if it is lost before it is unlocked.
func (u *use) watch() {
	u.hold = u.m.Context(u.life)
	noticed, ctx := make(chan struct{}), u.hold
	stop := context.AfterFunc(ctx, func() {
		defer close(noticed)
		if cause := context.Cause(ctx); errors.Is(cause, relock.ErrLost) {
			u.tell(history.Event{Kind: history.Lost, Err: locker.Text(cause)})
		}
	})
	u.unwatch = func() {
		if !stop() {
			<-noticed
		}
	}
}

// ask records that the library says that the hold is valid, if it does.
func (u *use) ask() bool {
	e := history.Event{At: history.Now(), Kind: history.Held}
	e.Count = u.m.HoldCount()
	if e.Count == 0 {
		return false
	}
	if !u.shared {
		e.Depth = u.depth
	}
	u.tell(e)
	return true
}

// unlock takes one level away.
func (u *use) unlock() {
	u.ask()
	if u.depth == 1 {
		u.unwatch()
	}
	op := u.number()
	u.tell(history.Event{Op: op, Kind: history.UnlockCall, Depth: u.depth})
	distrust := u.trust()
	err := u.m.Unlock()
	distrust()
	u.depth--
	e := history.Event{At: history.Now(), Op: op, Kind: history.UnlockReturn, Outcome: locker.OutcomeOf(err), Err: locker.Text(err), Depth: u.depth}
	if !u.shared {
		e.Count = u.m.HoldCount()
	}
	u.tell(e)
}

func (u *use) unlockAll() {
	for u.depth > 0 {
		u.unlock()
	}
}
