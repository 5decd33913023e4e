package player

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
)

// use is a player's hold of a lock, or of several at once, from the first call to its end.
type use struct {
	*player
	m      Locker
	locks  []string
	owner  string
	shared bool // another player is the same owner, and shares the levels
	lease  time.Duration
	fixed  bool          // the lease is not renewed for ever, or not at all
	least  time.Duration // its min hold; 0: none
	eager  bool          // it does not wait
	fair   bool          // it is served in order
	read   bool          // others may read, too
	weight int           // of a permit; 0: it is a lock
	depth  int
	op     int // number of the outermost Lock; 0 before it has returned
	asking int // number of the Lock in progress

	inCall  *atomic.Int64   // until when a Lock or Unlock of another level was in progress; underWay: it still is
	hold    context.Context // of the hold, while it is held
	unwatch func()          // ends the watch on it
}

// underWay is a time that never comes.
const underWay = math.MaxInt64

// use prepares a hold of locks by owner.
func (p *player) use(locks []string, owner string, opts ...relock.MutexOption) *use {
	u := p.prepare(locks, owner)
	u.of(p.Locks, opts...)
	return u
}

// of sets the locks of a client for the use.
func (u *use) of(client *relock.Client, opts ...relock.MutexOption) {
	opts = u.options(opts...)
	switch {
	case len(u.locks) > 1:
		u.m = Mutex{client.MultiMutex(u.locks, opts...)}
	case u.Chance(u.Fair):
		u.fair = true
		u.m = Mutex{client.FairMutex(u.locks[0], opts...)}
	default:
		u.m = Mutex{client.Mutex(u.locks[0], opts...)}
	}
}

// prepare makes the random choices that do not depend on the kind of lock.
func (p *player) prepare(locks []string, owner string) *use {
	u := &use{player: p, locks: locks, owner: owner, lease: p.TTL, fixed: p.Chance(p.Fixed), inCall: new(atomic.Int64)}
	if p.Chance(p.OwnLease) {
		u.lease = p.Between(p.TTL/6, p.TTL).Truncate(time.Millisecond)
	}
	return u
}

// options adds the options of the use.
func (u *use) options(opts ...relock.MutexOption) []relock.MutexOption {
	opts = append(opts, relock.WithHooks(relock.Hooks{Renewed: u.renewed, Contended: u.contended}))
	if u.lease != u.TTL {
		opts = append(opts, relock.WithTTL(u.lease))
	}
	switch {
	case u.fixed && u.Chance(0.3):
		opts = append(opts, relock.WithMaxHold(u.Between(u.lease+time.Millisecond, 2*u.lease))) // a TTL is rounded up to one
	case u.fixed:
		opts = append(opts, relock.WithoutRenewal())
	}
	return opts
}

// record records e, which is about the outermost Lock unless it has a number.
func (u *use) record(e history.Event) {
	e.Worker, e.Owner, e.Lock, e.Read = u.id, u.owner, strings.Join(u.locks, ","), u.read
	if e.Op == 0 {
		e.Op = u.op
	}
	u.Record(e)
}

// local returns the local deadline of a hold that was confirmed by a request sent at the given time: a hundredth of the lease
// earlier than on Redis.
func (u *use) local(sent int64) int64 {
	lasts := u.lease - max(u.lease/100, 5*time.Millisecond)
	if u.Quorum {
		lasts -= 2 * time.Millisecond // the precision with which servers end leases
	}
	return sent + int64(lasts)
}

// renewed is called by the watchdog's goroutine, which must not access fields that the player changes.
func (u *use) renewed(e relock.Event) {
	now := u.Now()
	u.Record(history.Event{
		At: now, Kind: history.Renewed, Worker: u.id, Owner: u.owner, Lock: strings.Join(u.locks, ","), Read: u.read,
		Token: e.Token, Until: u.local(now - int64(e.Elapsed)),
	})
}

// contended is called by the goroutine that waits. For a fair lock it has an entry in the line then. A shared owner is left out,
// because its other goroutine may have asked earlier.
func (u *use) contended(relock.Event) {
	if !u.shared {
		u.record(history.Event{Op: u.asking, Kind: history.Queued})
	}
}

// lock adds a level.
func (u *use) lock() history.Outcome {
	u.Gate()
	ctx, wait, end := u.patience()
	defer end()
	op := u.number()
	u.asking = op
	try := u.eager || u.weight <= 1 && u.Chance(u.Try)
	u.record(history.Event{
		Op: op, Kind: history.LockCall, Wait: int64(wait), Try: try, MinHold: int64(u.least), Fixed: u.fixed,
		Fair: u.fair && !u.shared && u.depth == 0, Note: u.kind(try), Weight: u.weight, Limit: u.limit(),
	})
	held, err := true, error(nil)
	if u.depth > 0 {
		u.inCall.Store(underWay)
	}
	if try {
		held, err = u.m.TryLock(ctx)
	} else {
		u.Waiting.Add(1)
		err = u.m.Lock(ctx)
		u.Waiting.Add(-1)
	}
	u.inCall.Store(u.Now())
	u.Gate()
	e := history.Event{At: u.Now(), Op: op, Kind: history.LockReturn, Outcome: OutcomeOf(err), Err: Text(err)}
	switch {
	case err == nil && !held:
		e.Outcome = history.Taken
	case e.Outcome == history.Failed && ctx.Err() != nil:
		e.Outcome = history.Ended
	case e.Outcome == history.OK:
		if u.depth++; u.depth == 1 {
			u.op = op
			u.Holding.Add(1)
		}
		e.Token, e.Until = u.m.FencingToken(), u.local(e.At)
		if !u.shared {
			e.Depth, e.Count = u.depth, u.m.HoldCount()
		}
	}
	u.record(e)
	if e.Outcome == history.OK && u.depth == 1 {
		u.watch()
	}
	return e.Outcome
}

// limit returns the limit of the semaphore; 0: it is a lock.
func (u *use) limit() int {
	if u.weight == 0 {
		return 0
	}
	return u.Limit
}

// kind returns the kind of the call.
func (u *use) kind(try bool) string {
	kind := "Mutex"
	switch {
	case u.weight > 0:
		kind = "Semaphore"
	case u.read:
		kind = "RWMutex, read"
	case strings.HasSuffix(u.owner, ".sides"):
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

// patience chooses how long a Lock may take: without limit, or until its context is cancelled or its deadline passes.
func (u *use) patience() (ctx context.Context, wait time.Duration, end func()) {
	switch p := u.Float64(); {
	case p < u.Impatient:
		wait = u.Between(time.Millisecond, u.Impatience)
	case p < 0.85:
		wait = u.Between(u.TTL, 4*u.TTL)
	default:
		return u.Life, 0, func() {}
	}
	if u.Chance(0.5) {
		ctx, cancel := context.WithTimeout(u.Life, wait)
		return ctx, wait, cancel
	}
	ctx, cancel := context.WithCancel(u.Life)
	timer := time.AfterFunc(wait, cancel)
	return ctx, wait, func() { timer.Stop(); cancel() }
}

// watch records the loss of the hold, if it is lost before it is unlocked.
func (u *use) watch() {
	u.hold = u.m.Context(u.Life)
	noticed, ctx := make(chan struct{}), u.hold
	stop := context.AfterFunc(ctx, func() {
		defer close(noticed)
		if u.Exact { // according to the context, it was valid until now
			u.record(history.Event{At: u.Now() - 1, Kind: history.Held})
		}
		if cause := context.Cause(ctx); errors.Is(cause, relock.ErrLost) {
			// A rename may have proven the hold since the last check: see follows. The call may have ended at the same moment as
			// the hold.
			if now := u.Now(); u.Untokened && u.inCall.Load() >= now && u.Exact {
				u.record(history.Event{At: now - 1, Kind: history.Renewed, Until: now})
			}
			u.record(history.Event{Kind: history.Lost, Err: Text(cause)})
		}
	})
	u.unwatch = func() {
		if !stop() {
			<-noticed
		}
	}
	if u.Watches {
		u.watchDemand()
	}
}

// watchDemand records when the library reports that other owners want the lock, as long as it is held. The channel of
// a read lock is closed by writers only, and a permit has none.
func (u *use) watchDemand() {
	m, has := u.m.(interface {
		Wanted(ctx context.Context) <-chan struct{}
	})
	if !has || u.read {
		return
	}
	wanted, e := m.Wanted(u.Life), history.Event{Op: u.op, Kind: history.Wanted}
	u.record(history.Event{Kind: history.Watched})
	hold := u.hold
	go func() {
		select {
		case <-wanted:
			u.record(e)
		case <-hold.Done():
		}
	}()
}

// ask records that the library reports the hold as valid, if it does.
func (u *use) ask() bool {
	u.Gate()
	e := history.Event{At: u.Now(), Kind: history.Held, Count: u.m.HoldCount()}
	if e.Count == 0 {
		return false
	}
	if !u.shared {
		e.Depth = u.depth
	}
	u.record(e)
	u.follows()
	return true
}

// follows records until when the hold is proven. After a local hand-over a rename proves it, which no hook reports.
func (u *use) follows() {
	deadline, held := u.m.Deadline()
	if until, known := u.Shown(deadline); held && known {
		u.record(history.Event{At: u.Now(), Kind: history.Renewed, Token: u.m.FencingToken(), Until: until})
	}
}

// unlock removes one level.
func (u *use) unlock() {
	u.ask()
	if u.depth == 1 {
		u.unwatch()
	}
	op := u.number()
	u.record(history.Event{Op: op, Kind: history.UnlockCall, Depth: u.depth})
	distrust := u.trust()
	if u.depth > 1 {
		u.inCall.Store(underWay)
	}
	err := u.m.Unlock()
	u.inCall.Store(u.Now())
	distrust()
	u.Gate()
	if u.depth--; u.depth == 0 {
		u.Holding.Add(-1)
	}
	e := history.Event{At: u.Now(), Op: op, Kind: history.UnlockReturn, Outcome: OutcomeOf(err), Err: Text(err), Depth: u.depth}
	if !u.shared {
		e.Count = u.m.HoldCount()
	}
	u.record(e)
}

func (u *use) unlockAll() {
	for u.depth > 0 {
		u.unlock()
	}
}

// trust watches the context of the hold, as work under the lock does, until the context ends, or distrust is called, which
// records when it was last valid.
func (u *use) trust() (distrust func()) {
	last := u.Trust(u.m.Context(u.Life))
	return func() {
		if at := last(); at != 0 {
			u.record(history.Event{At: at, Kind: history.Held})
		}
	}
}
