package play

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
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
	fixed  bool          // the lease is not renewed for ever, or not at all
	least  time.Duration // its min hold; 0: none
	eager  bool          // it does not wait
	fair   bool          // it is served in order
	read   bool          // others may read, too
	depth  int
	op     int // number of the outermost Lock; 0 before it has returned
	asking int // number of the Lock that is under way

	inCall  *atomic.Bool    // a Lock or Unlock of another level is under way
	hold    context.Context // of the hold, while it is held
	unwatch func()          // ends watching it
}

func (w *worker) use(locks []string, owner string, opts ...relock.MutexOption) *use {
	return w.useOf(w.process.locks, locks, owner, opts...)
}

func (w *worker) useOf(client *relock.Client, locks []string, owner string, opts ...relock.MutexOption) *use {
	u := w.prepare(locks, owner)
	opts = u.options(opts...)
	switch {
	case len(locks) > 1:
		u.m = locker.Mutex{Mutex: client.MultiMutex(locks, opts...)}
	case w.chance(w.plan.Fair):
		u.fair = true
		u.m = locker.Mutex{Mutex: client.FairMutex(locks[0], opts...)}
	default:
		u.m = locker.Mutex{Mutex: client.Mutex(locks[0], opts...)}
	}
	return u
}

// prepare draws what does not depend on the kind of lock.
func (w *worker) prepare(locks []string, owner string) *use {
	u := &use{worker: w, locks: locks, owner: owner, lease: w.plan.TTL, fixed: w.chance(w.plan.Fixed), inCall: new(atomic.Bool)}
	if w.chance(w.plan.OwnLease) {
		u.lease = w.between(w.plan.TTL/2, w.plan.TTL).Truncate(time.Millisecond)
	}
	return u
}

// options adds those of the use.
func (u *use) options(opts ...relock.MutexOption) []relock.MutexOption {
	opts = append(opts, relock.WithHooks(relock.Hooks{Renewed: u.renewed, Contended: u.contended}))
	if u.lease != u.plan.TTL {
		opts = append(opts, relock.WithTTL(u.lease))
	}
	switch {
	case u.fixed && u.chance(0.3):
		opts = append(opts, relock.WithMaxHold(u.between(u.lease+time.Millisecond, 2*u.lease))) // a TTL is rounded up to one
	case u.fixed:
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
	lasts := u.lease - max(u.lease/100, 5*time.Millisecond)
	if u.plan.Servers > 1 {
		lasts -= 2 * time.Millisecond // how exactly servers end leases
	}
	return sent + int64(lasts)
}

// renewed is called by the watchdog's goroutine.
func (u *use) renewed(e relock.Event) {
	now := u.journal.now()
	u.tell(history.Event{At: now, Kind: history.Renewed, Token: e.Token, Until: u.local(now - int64(e.Elapsed))})
}

// contended is called by the goroutine that waits, when it has a place in the line if the lock is a
// fair one. A shared owner is left out: its other goroutine may have asked earlier.
func (u *use) contended(relock.Event) {
	if !u.shared {
		u.tell(history.Event{Op: u.asking, Kind: history.Queued})
	}
}

// lock adds a level.
func (u *use) lock() history.Outcome {
	u.gate()
	ctx, wait, end := u.patience()
	defer end()
	op := int(u.calls.Add(1))
	u.asking = op
	try := u.eager || u.chance(u.plan.Try)
	u.tell(history.Event{Op: op, Kind: history.LockCall, Wait: int64(wait), MinHold: int64(u.least), Fixed: u.fixed, Fair: u.fair && !u.shared && u.depth == 0, Note: kindOf(u, try)})
	held, err := true, error(nil)
	u.inCall.Store(u.depth > 0)
	if try {
		held, err = u.m.TryLock(ctx)
	} else {
		u.waiting.Add(1)
		err = u.m.Lock(ctx)
		u.waiting.Add(-1)
	}
	u.inCall.Store(false)
	u.gate()
	e := history.Event{Op: op, Kind: history.LockReturn, Outcome: locker.OutcomeOf(err), Err: locker.Text(err)}
	switch {
	case err == nil && !held:
		e.Outcome = history.Taken
	case e.Outcome == history.Failed && ctx.Err() != nil:
		e.Outcome = history.Ended
	case e.Outcome == history.OK:
		if u.depth++; u.depth == 1 {
			u.op = op
			u.holding.Add(1)
		}
		e.Token, e.Until = u.m.FencingToken(), u.local(u.journal.now())
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

// kindOf says in a word what is called.
func kindOf(u *use, try bool) string {
	kind := "Mutex"
	switch {
	case u.read:
		kind = "RWMutex, read"
	case u.owner != "" && strings.HasSuffix(u.owner, ".sides"):
		kind = "RWMutex, write"
	case u.fair:
		kind = "FairMutex"
	case len(u.locks) > 1:
		kind = "MultiMutex"
	}
	if try {
		kind += ", try"
	}
	return kind
}

// patience draws how long a Lock may take: for ever, or until its context is cancelled or
// its deadline passes.
func (u *use) patience() (ctx context.Context, wait time.Duration, end func()) {
	switch p := u.Float64(); {
	case p < u.plan.Impatient:
		wait = u.between(time.Millisecond, u.plan.TTL/4)
	case p < 0.85:
		wait = u.between(u.plan.TTL, 4*u.plan.TTL)
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
		if !u.jumps { // by the context it was valid up to now
			u.tell(history.Event{At: u.journal.now() - 1, Kind: history.Held})
		}
		if cause := context.Cause(ctx); errors.Is(cause, relock.ErrLost) {
			if u.plan.Untokened && u.inCall.Load() && !u.jumps {
				// A rename may have proven the hold since it could last be asked: see follows.
				now := u.journal.now()
				u.tell(history.Event{At: now - 1, Kind: history.Renewed, Until: now})
			}
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
	u.gate()
	e := history.Event{At: u.journal.now(), Kind: history.Held, Count: u.m.HoldCount()}
	if e.Count == 0 {
		return false
	}
	if !u.shared {
		e.Depth = u.depth
	}
	u.tell(e)
	u.follows()
	return true
}

// follows records until when the hold is proven, of which no hook tells if a rename has done it: that of a
// hold which followed another one.
func (u *use) follows() {
	until, held := u.m.Deadline()
	if held && !u.jumps {
		now := u.journal.now()
		u.tell(history.Event{At: now, Kind: history.Renewed, Token: u.m.FencingToken(), Until: now + int64(time.Until(until))})
	}
}

// unlock takes one level away.
func (u *use) unlock() {
	u.ask()
	if u.depth == 1 {
		u.unwatch()
	}
	op := int(u.calls.Add(1))
	u.tell(history.Event{Op: op, Kind: history.UnlockCall, Depth: u.depth})
	distrust := u.trust()
	u.inCall.Store(u.depth > 1)
	err := u.m.Unlock()
	u.inCall.Store(false)
	distrust()
	u.gate()
	if u.depth--; u.depth == 0 {
		u.holding.Add(-1)
	}
	e := history.Event{Op: op, Kind: history.UnlockReturn, Outcome: locker.OutcomeOf(err), Err: locker.Text(err), Depth: u.depth}
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

// trust goes by the context of the hold, as work does that was started under the lock, until that ends or
// distrust is called, which records when it was last valid.
func (u *use) trust() (distrust func()) {
	ctx := u.m.Context(u.life)
	if u.jumps || ctx.Err() != nil { // while it does not run, its clock says that no time has passed
		return func() {}
	}
	ended := make(chan int64, 1)
	stop := context.AfterFunc(ctx, func() { ended <- u.journal.now() - 1 })
	return func() {
		last := u.journal.now()
		if !stop() {
			last = <-ended
		}
		u.tell(history.Event{At: last, Kind: history.Held})
	}
}

// spend uses the lock for a time.
func (u *use) spend(d time.Duration) {
	end := time.Now().Add(d)
	if u.plan.Theme == "doubt" && u.chance(0.5) {
		u.compare()
	}
	for again := 0.15; u.valid() && !u.over(); again /= 2 {
		u.act(again)
		left := time.Until(end)
		if left <= 0 {
			break
		}
		u.rest(u.hold, min(u.between(20*time.Millisecond, u.plan.TTL/4), left))
	}
	u.gate()
	if u.hold.Err() != nil && u.chance(0.5) {
		u.write() // as a careless user does, which does not look
	}
	if errors.Is(context.Cause(u.hold), relock.ErrLost) && !u.shared && u.chance(0.5) {
		u.lockLost()
	}
}

// valid asks whether the hold is valid, in one of the two ways in which that is done.
func (u *use) valid() bool {
	if u.chance(0.5) {
		return u.ask()
	}
	return u.hold.Err() == nil
}

// lockLost locks inside a lost hold, which has to be refused.
func (u *use) lockLost() {
	ctx, cancel := context.WithTimeout(u.life, u.plan.TTL)
	defer cancel()
	err := u.m.Lock(ctx)
	u.gate()
	u.expect(err, relock.ErrLost, "Lock inside a lost hold")
}

// act is something that is done under a lock: lock it again, for instance, with the
// probability given.
func (u *use) act(again float64) {
	switch p := u.Float64(); {
	case p < 0.3:
		if u.ask() {
			u.write()
		}
	case p < 0.3+again && u.depth < 3:
		u.lock()
	case p < 0.5 && u.depth > 1:
		u.unlock()
	case p < 0.6:
		u.compare()
	default:
		u.ask()
	}
}

// write writes to what the lock protects, or to each of what several locks do.
func (u *use) write() {
	if u.read || u.plan.Untokened {
		return
	}
	token := u.m.FencingToken()
	for _, lock := range u.locks {
		e := history.Event{Worker: u.id, Owner: u.owner, Lock: lock, Op: u.op, Kind: history.WriteCall, Token: token}
		u.record(e)
		accepted := u.store.write(lock, token, u.between(0, 2*u.plan.Latency))
		u.gate()
		e.Kind, e.Outcome = history.WriteReturn, history.OK
		if !accepted {
			e.Outcome = history.Refused
		}
		u.record(e)
	}
}

// compare records what Redis says of the levels, if the hold is valid before and after.
func (u *use) compare() {
	if len(u.locks) > 1 || u.shared || u.lossy || !u.ask() {
		return
	}
	if u.plan.Untokened && u.depth < 2 {
		return // Redis may not know the hold yet: to lock it again waits for that
	}
	ctx, cancel := context.WithTimeout(u.life, u.plan.TTL)
	defer cancel()
	n, token, err := u.m.OnRedis(ctx)
	u.gate()
	at := u.journal.now() // the hold was valid then, if it is now
	if err == nil && u.ask() {
		u.tell(history.Event{At: at, Kind: history.Counted, Depth: u.depth, Count: n, Token: token})
	}
}
