package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/internal/history"
)

// use is a worker's hold of a lock, or of several at once, from the wish for it to its end.
type use struct {
	*worker
	m      locker
	locks  []string
	owner  string
	shared bool // another worker acts as the same owner: the levels are not the worker's alone
	lease  time.Duration
	fixed  bool // the lease is not renewed
	fair   bool // it is served in order
	read   bool // others may read, too
	eager  bool // it does not wait
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
		u.m = mutex{client.MultiMutex(locks, opts...)}
	case w.chance(w.Work.Fair):
		u.fair = true
		u.m = mutex{client.FairMutex(locks[0], opts...)}
	default:
		u.m = mutex{client.Mutex(locks[0], opts...)}
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

// contended is called by the goroutine that waits, when it has a place in the queue if the
// lock is a fair one. What others of its owner ask for may have been asked by them before.
func (u *use) contended(relock.Event) {
	if u.fair && !u.shared {
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
		Op: op, Kind: history.LockCall, Wait: int64(wait), Fixed: u.fixed,
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
	e = history.Event{At: history.Now(), Op: op, Kind: history.LockReturn, Outcome: outcomeOf(err), Err: text(err)}
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
			u.tell(history.Event{Kind: history.Lost, Err: text(cause)})
		}
	})
	u.unwatch = func() {
		if !stop() {
			<-noticed
		}
	}
}

// spend lets d pass under the lock, or less if the hold is lost or the process stops.
func (u *use) spend(d time.Duration) {
	// A re-entry lengthens the lease, too: within a long hold they are rare, so that there
	// is something to renew.
	again := 0.1
	if d > u.lease/4 {
		again = 0.01
	}
	for end := time.Now().Add(d); u.ask() && time.Now().Before(end) && u.hold.Err() == nil && !u.stopped(); {
		u.act(again)
		u.rest(u.hold, min(u.between(2*time.Millisecond, 10*time.Millisecond), time.Until(end)))
	}
	if u.hold.Err() != nil && u.chance(0.5) {
		u.write() // as somebody does who does not look
	}
}

func (u *use) stopped() bool {
	select {
	case <-u.stopping:
		return true
	default:
		return false
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

// act is something that is done under a lock: lock it again, for instance, with the
// probability given.
func (u *use) act(again float64) {
	switch p := u.r.Float64(); {
	case p < 0.3:
		if u.ask() {
			u.write()
		}
	case p < 0.3+again && u.depth < 3:
		u.lock()
	case p < 0.5 && u.depth > 1:
		u.unlock()
	case p < 0.6 && u.Work.Counts:
		u.compare()
	}
}

// write writes to what the lock protects, or to each of what several locks do.
func (u *use) write() {
	if u.resource == nil || u.read {
		return
	}
	token := u.m.FencingToken()
	for _, lock := range u.locks {
		e := history.Event{Worker: u.id, Owner: u.owner, Lock: lock, Op: u.op, Kind: history.WriteCall, Token: token}
		u.record(e)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		accepted, err := u.resource.Write(ctx, lock, token, fmt.Sprintf("%s/%d", u.owner, u.op))
		cancel()
		e.Kind, e.Outcome, e.Err = history.WriteReturn, outcomeOf(err), text(err)
		if err == nil && !accepted {
			e.Outcome = history.Refused
		}
		u.record(e)
	}
}

// compare records what Redis says of the levels, if the hold is valid before and after.
func (u *use) compare() {
	if len(u.locks) > 1 || u.shared || !u.ask() {
		return
	}
	ctx, cancel := context.WithTimeout(u.life, u.Work.TTL)
	defer cancel()
	n, err := u.m.levels(ctx)
	at := history.Now() // the hold was valid then, if it is now
	if err == nil && u.ask() {
		u.tell(history.Event{At: at, Kind: history.Counted, Depth: u.depth, Count: n})
	}
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
	e := history.Event{At: history.Now(), Op: op, Kind: history.UnlockReturn, Outcome: outcomeOf(err), Err: text(err), Depth: u.depth}
	if !u.shared {
		e.Count = u.m.HoldCount()
	}
	u.tell(e)
}

// trust goes by the context of the hold, as work does that was started under the lock,
// until that ends or distrust is called, which records when it was last valid.
func (u *use) trust() (distrust func()) {
	ctx, over := u.m.Context(u.life), make(chan struct{})
	var trusting sync.WaitGroup
	var last int64
	trusting.Go(func() {
		for {
			at := history.Now()
			if ctx.Err() != nil {
				return
			}
			last = at
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() {
		close(over)
		trusting.Wait()
		if last != 0 {
			u.tell(history.Event{At: last, Kind: history.Held})
		}
	}
}

func (u *use) unlockAll() {
	for u.depth > 0 {
		u.unlock()
	}
}

// outcomeOf says how a call ended.
func outcomeOf(err error) history.Outcome {
	switch {
	case err == nil:
		return history.OK
	case errors.Is(err, relock.ErrLost):
		return history.IsLost
	case errors.Is(err, relock.ErrNotHeld):
		return history.NotHeld
	case errors.Is(err, relock.ErrClosed):
		return history.Closed
	default:
		return history.Failed
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
