package relock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// Mutex is a lock on one name, or on several names together, shared by all processes that use the same
// Redis or quorum. It is a cheap handle: any number of handles for one name in one Client are the same
// lock. [Client.Mutex], [Client.FairMutex] and [Client.MultiMutex] return it.
//
// The owner of a hold is the calling goroutine, or the id of [WithOwner]. The owner may lock again,
// which increases the hold count. The lock is released when the owner has unlocked as often as it
// locked. Other goroutines of the same process wait, like any other process.
//
// A hold can be lost: its lease could not be renewed in time, or its key was deleted or forced open. Do
// work under the lock with the context of [Mutex.Context] or [Mutex.Do]. If the lease ends, this
// context is cancelled before another owner can get the lock. If the key was deleted or forced open, it
// is cancelled at the next renewal that Redis answers, or when the lease ends.
//
// All methods are safe for concurrent use.
type Mutex struct {
	session  *session
	kind     *kind
	target   *keys.Set
	settings settings
	err      error // of a bad name or option; every call that would use it returns it
}

// Mutex returns a handle for the lock name. If the name or an option is invalid, the first call that
// uses it returns the error. No round trip.
func (c *Client) Mutex(name string, opts ...MutexOption) *Mutex {
	return c.mutex(c.plain, []string{name}, opts)
}

// mutex makes a handle, together with what it locks: users may make one for each use.
func (c *Client) mutex(k *kind, names []string, opts []MutexOption) *Mutex {
	handle := &struct {
		mutex  Mutex
		target keys.Set
	}{mutex: Mutex{session: c.session, kind: k, settings: c.settings}}
	m := &handle.mutex
	m.target = &handle.target
	if k != nil && k.side == keys.Permits { // these options of the client are for its locks
		m.settings.Fencing, m.settings.reentrant = false, true
	}
	m.settings.apply(opts)
	if k != nil {
		m.target.Side = k.side
		if k.rename != nil {
			m.settings.checkLinger()
		}
	}
	m.err = c.check(m, names)
	return m
}

// check derives the keys of m, and returns why m cannot be used; nil: it can.
func (c *Client) check(m *Mutex, names []string) error {
	if err := m.target.Init(c.prefix, names); err != nil {
		return err
	}
	if m.settings.Fencing {
		m.target.Mints()
	}
	if c.cluster && !m.target.OneSlot() {
		return fmt.Errorf("%w: on a Cluster the names of a MultiMutex need a common {tag}, as in %q",
			ErrInvalidName, "{"+keys.HashTag(m.target.Keys[0])+"}:a")
	}
	if m.settings.err != nil {
		return m.settings.err
	}
	if err := c.supports(&m.settings); err != nil {
		return err
	}
	if m.kind == nil {
		return errNoSuchKind
	}
	return nil
}

// Name returns the name of the lock, without the prefix of [WithPrefix]. For a MultiMutex it returns
// all names as they were given, joined by commas.
func (m *Mutex) Name() string { return m.target.Name }

// Lock acquires the lock. If the owner already holds it, Lock increases the hold count.
//
// Lock blocks until the owner holds the lock, until ctx ends, or for the time of [WithWaitTimeout].
// Waiters of one process are served in the order in which they called Lock, and processes take turns in
// the order in which they asked. A process needs only one entry in the line on Redis for all its
// waiters. The first waiter sleeps until a message grants it the lock. On a quorum, which has no line,
// the first waiters of all processes compete when the lock becomes free.
//
// If Lock fails, existing holds are unchanged. Anything that Redis granted meanwhile is released: Lock
// waits for that for at most 50 ms. If Redis does not answer, the key ends with its TTL.
//
// Errors: the error of ctx with its cause; [ErrTimeout]; [ErrDeadlock], see [WithDeadlockCheck];
// [ErrReentrant]; [ErrNotReplicated]; [ErrClosed]; [ErrInvalidName], [ErrInvalidOption] and
// [ErrUnsupported] for an invalid handle; and errors from Redis. [ErrLost] means that the owner has lost
// this lock and not yet unlocked it. If Redis cannot be reached, a new Lock fails after three tries, in
// at most 9 s with the default TTL; an increase of the hold count may take until the lease ends. A Lock
// that is already waiting survives an outage of one TTL. An
// error that ends a wait names the holder, or the last known holder, and reports for how long Redis has
// not answered.
//
// One round trip if the lock is free, or to increase the hold count; then one more if this process handed
// the lock over a moment ago. None if a holder in this process hands it over. Two, and a
// subscription, if another process holds it. A waiting process then sends one request in each interval:
// a third of 5 s, of twice [WithSafetyPoll], or of the TTL, whichever is shortest; on a quorum, the time
// of [WithSafetyPoll]. If the Redis user has no permission for the keys of the line, each request takes
// one more round trip.
func (m *Mutex) Lock(ctx context.Context) error {
	_, err := m.lock(ctx, true)
	return lockerr.Wrap("lock", m.target.Name, err)
}

// TryLock acquires the lock, or increases the hold count, if this is possible without waiting. It
// returns false without an error if another owner holds the lock, or if a goroutine of this process is
// waiting for it, releasing it, or acquiring it for the same fixed owner.
//
// TryLock blocks for one request. If Redis cannot be reached, it tries three times, for at most 9 s
// with the default TTL, and longer [WithReplicas]. To increase the hold count, it also waits for a
// renewal in flight, at most until the lease ends. It also returns when ctx ends. If Redis cannot be
// reached, TryLock returns an error even if another goroutine of this process is waiting.
//
// The state after a failure and the errors are as for [Mutex.Lock], without [ErrTimeout] and [ErrDeadlock].
// At most one round trip if Redis answers, and one more after a failure. On a quorum it asks up to four times if votes split.
func (m *Mutex) TryLock(ctx context.Context) (bool, error) {
	held, err := m.lock(ctx, false)
	return held, lockerr.Wrap("try lock", m.target.Name, err)
}

// Unlock decreases the hold count. At zero the hold ends, and its context is cancelled with the cause
// [ErrReleased]. The lock then goes to the next waiter of this process, or to the first entry in the
// line on Redis, or it is free. [WithMinHold] can keep it unavailable for a while.
//
// Unlock blocks until Redis has answered, or for the time of [WithUnlockTimeout], and does not depend on
// the context of Lock. With [WithAsyncUnlock] it does not block, and returns fewer errors. For a
// [Client.Mutex] on one Redis, the next waiter of this process does not wait for that answer, unless it
// needs something that only Redis can give: a token, replicas, or a lease of its own.
//
// The hold count decreases even if Unlock returns an error. At zero, an error from Redis means that the
// key may remain for up to one TTL, or that a waiter of this process already has the lock. Above zero, the
// hold goes on, and its next command corrects the count on Redis. A plain defer
// m.Unlock() drops the error, and so hides a loss. Use [Mutex.Do], or join the error to the named
// result of your function:
//
//	defer func() { err = errors.Join(err, m.Unlock()) }()
//
// Errors: [ErrNotHeld] if the owner does not hold the lock, or acquired it through a handle for other
// names; [ErrLost] for every Unlock of a lost hold, even if this call is the first to notice the loss;
// [ErrClosed] for every Unlock of a hold that Close has ended; [ErrInvalidName], [ErrInvalidOption] and
// [ErrUnsupported] for an invalid handle; and errors from Redis.
//
// One round trip. None if the error is known without asking Redis. Two round trips if a local waiter
// takes over while another command for the lock is in flight. Also two on a quorum, if the local waiter
// that takes over locks WithFencing.
func (m *Mutex) Unlock() error {
	if m.err != nil {
		return lockerr.Wrap("unlock", m.Name(), m.err)
	}
	var buf [4]*hold
	o := m.owner()
	holds := m.find(buf[:0], o, m.target)
	if len(holds) == 0 || slices.ContainsFunc(holds, (*hold).isAcquiring) {
		return lockerr.Wrap("unlock", m.Name(), m.notHeld(o))
	}
	var errs []error
	for _, h := range holds {
		if err := h.unlock(m.target, &m.settings); err != nil {
			errs = append(errs, err)
		}
	}
	return lockerr.Wrap("unlock", m.target.Name, lockerr.Join(errs...))
}

// Do locks, runs fn on the calling goroutine with the context of the hold, and unlocks, even if fn
// panics. If Lock fails, or the hold is lost before fn begins, fn does not run. The context that fn
// receives ends when fn returns. fn must unlock only what it locked itself.
//
// Do blocks as Lock, fn and Unlock do. It returns the error of Lock, or the errors of fn and Unlock,
// joined. If the hold was lost before Unlock, [ErrLost] is among them. The round trips are those of
// Lock and Unlock.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	if fn == nil {
		return lockerr.Wrap("do", m.Name(), errNilFunction)
	}
	if err := m.Lock(ctx); err != nil {
		return err
	}
	return m.run(ctx, fn, m.Unlock)
}

// run runs fn with the context of the owner's hold, which has just begun, and ends the hold with unlock.
func (m *Mutex) run(ctx context.Context, fn func(ctx context.Context) error, unlock func() error) (err error) {
	defer func() {
		// A loss that fn has returned already is not reported twice.
		if unlocked := unlock(); !errors.Is(unlocked, ErrLost) || !errors.Is(err, ErrLost) {
			err = lockerr.Join(err, unlocked)
		}
	}()
	above := nearestHoldContext(ctx)
	ctx = m.Context(ctx)
	x, _ := ctx.(*holdContext)
	defer x.endUpTo(above, lockerr.Wrap("do", m.Name(), ErrReleased)) // also if other Locks are open
	if ctx.Err() != nil && m.HoldCount() == 0 {
		return nil // what unlock returns
	}
	return fn(ctx)
}

// Context returns a context that ends when ctx ends, or when the owner's hold of any of the names ends,
// whichever is first. If the hold ends it, the cause wraps [ErrReleased], [ErrLost] or [ErrClosed]. If
// the owner does not hold the lock, the context has already ended with the cause [ErrNotHeld].
//
// The context ends before the lease ends on Redis. Its Err checks the deadline itself and does not
// depend on the watchdog. If the key was deleted or forced open by another process, the context ends at
// the next renewal that Redis answers, or with the lease.
//
// The context uses memory until it ends. Within a long hold, pass a ctx that ends earlier. No round
// trip.
func (m *Mutex) Context(ctx context.Context) context.Context {
	cause := m.err
	if ctx == nil {
		ctx, cause = context.Background(), errNilContext
	}
	var buf [4]*hold
	if cause == nil {
		if holds := m.covering(buf[:0]); holds != nil {
			return contextOfAll(ctx, holds, m.target)
		}
		cause = notHeld(m.owner())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(lockerr.Wrap("context", m.Name(), cause))
	return ctx
}

// Wanted returns a channel that is closed when another owner waits for the lock that the caller holds, in
// this process or in another one. It is for work that can give way: a batch job that pauses, an upload
// that ends early, a leader that hands over. A TryLock of another owner does not close it.
//
// Wanted does not block. A waiter that comes later closes the channel with its first request. If a waiter
// waits already, its next poll closes the channel, within a third of 5 s, of twice [WithSafetyPoll], or of
// its TTL. The channel is a hint: the waiter may have left since. Waiters of Redisson do not close it, nor do
// waiters of other processes on a quorum, or without permission for the channels relock_wanted:* or the line.
//
// All calls during one hold return the same channel. If the names of the handle are only some names of the
// hold, or belong to several holds, each call returns a new channel, which is watched until ctx ends. The
// channel stays open when the hold ends, or ctx ends. It stays open, too, if the caller does not hold the
// lock. So wait for the context of the hold as well:
//
//	select {
//	case <-m.Wanted(ctx):
//	case <-m.Context(ctx).Done():
//	}
//
// No round trip; the first call for a lock subscribes to a channel until the lock is no longer used.
func (m *Mutex) Wanted(ctx context.Context) <-chan struct{} {
	wanted := make(chan struct{})
	if ctx == nil {
		ctx = context.Background()
	}
	var buf [4]*hold
	holds := m.covering(buf[:0])
	if holds == nil {
		return wanted
	}
	if len(holds) == 1 && holds[0].wanting().ID == m.target.ID {
		return holds[0].wantedChannel()
	}
	once, held := sync.OnceFunc(func() { close(wanted) }), contextOfAll(ctx, holds, m.target)
	for _, h := range holds {
		h.mu.Lock()
		h.watchDemand(held.Context, m.target, once) // The Err of held.Context does not lock h.mu. The Err of held does.
		h.mu.Unlock()
	}
	return wanted
}

// HoldCount returns how many Unlocks the owner's hold still needs. It returns 0 if the owner does not
// hold the lock, or has lost it. The count includes Locks through handles for other names, which Unlock
// of this handle does not undo. For a MultiMutex it is the lowest count of its names. No round trip.
func (m *Mutex) HoldCount() int {
	var buf [4]*hold
	holds := m.covering(buf[:0])
	if holds == nil {
		return 0
	}
	count := holds[0].count(m.target)
	for _, h := range holds[1:] {
		count = min(count, h.count(m.target))
	}
	return count
}

// Deadline returns the wall-clock time until which the owner's hold is proven; for a MultiMutex, the
// earliest of its names. At that time the hold is lost, unless a renewal or a re-entry extends it. So
// call Deadline again instead of storing the result. It does not detect a key that another process
// deleted or forced open. It returns false if the owner does not hold all of the names, or has lost
// one. No round trip.
func (m *Mutex) Deadline() (time.Time, bool) {
	var buf [4]*hold
	holds := m.covering(buf[:0])
	if holds == nil {
		return time.Time{}, false
	}
	now := m.session.now()
	left := holds[0].left(m.target, now)
	for _, h := range holds[1:] {
		left = min(left, h.left(m.target, now))
	}
	if left == 0 {
		return time.Time{}, false
	}
	return now.After(left).Time(), true
}

// FencingToken returns the fencing token of the owner's hold. It returns 0 if the owner does not hold
// all of the names, or if one of them was never locked [WithFencing] during its hold. A lost hold
// keeps its token until it is unlocked, so that the resource can reject its writes. No round trip.
func (m *Mutex) FencingToken() int64 {
	var buf [4]*hold
	token := int64(0)
	for _, h := range m.covering(buf[:0]) {
		t, has := h.fencingToken(m.target)
		if !has || t == 0 {
			return 0
		}
		token = max(token, t)
	}
	return token
}

// State is the state of a lock on Redis, as [Mutex.State] returns it.
type State struct {
	Owner string // the holder's field, uuid:owner; empty if the lock is free
	Count int    // the holder's hold count

	// TTL is the remaining lease. It is 0 if the lock is free, and negative if another program has
	// removed the expiry of the key. In that case waiters poll.
	TTL time.Duration

	FencingToken int64 // the last token that was minted; 0 if there is no counter
}

// State returns the state of the lock on Redis, and changes nothing. For a MultiMutex it returns the
// state of the first of its names, in sorted order, that is held. If the lock is passed between
// goroutines of one process, Redis may still have the owner of a hold that has just ended.
//
// State blocks for the request only, or until ctx ends. Errors: the error of ctx; [ErrInvalidName] if
// the key is not a lock; [ErrInvalidOption] and [ErrUnsupported] for an invalid handle; [ErrClosed];
// and errors from Redis. At most one round trip for each name.
func (m *Mutex) State(ctx context.Context) (State, error) {
	if err := m.usable(ctx); err != nil {
		return State{}, lockerr.Wrap("read state of", m.Name(), err)
	}
	var state State
	for i := range m.target.Keys {
		k, out := m.kind.protocol.State(ctx, tryOptions, m.target, i)
		if out.Err != nil {
			return State{}, lockerr.Wrap("read state of", m.Name(), out.Err)
		}
		if len(k.Fields) > 0 {
			return State{Owner: k.Fields[0], Count: k.Counts[0], TTL: k.TTL, FencingToken: k.Token}, nil
		}
		state.FencingToken = max(state.FencingToken, k.Token)
	}
	return state, nil
}

// ForceUnlock ends the hold that it finds, of any owner, and wakes the waiters. It returns false if the
// lock was free. It is for operators.
//
// If the holder belongs to this Client, its context is cancelled with [ErrLost] first. Other holders
// notice at their next renewal, and may continue to work until then. If ForceUnlock returns an error,
// it may have ended the hold, or some of the holds of a MultiMutex. If the network delivers its request
// late, that request can end a later hold of the same owner.
//
// ForceUnlock blocks for its requests only, or until ctx ends. Errors are as for [Mutex.State]. Two
// round trips for each name, or one for a name that is free.
func (m *Mutex) ForceUnlock(ctx context.Context) (bool, error) {
	if err := m.usable(ctx); err != nil {
		return false, lockerr.Wrap("force unlock", m.Name(), err)
	}
	// All names are looked at first: with the first that is free the next in line may have all.
	asked := m.session.now()
	found := make([]protocol.KeyState, len(m.target.Keys))
	for i := range found {
		var out redisexec.Outcome
		if found[i], out = m.kind.protocol.State(ctx, tryOptions, m.target, i); out.Err != nil {
			return false, lockerr.Wrap("force unlock", m.Name(), out.Err)
		}
	}
	forced := false
	for i, k := range found {
		if len(k.Fields) == 0 {
			continue
		}
		done, err := m.forceUnlock(ctx, i, k.Fields, asked)
		if err != nil {
			return forced, lockerr.Wrap("force unlock", m.Name(), err)
		}
		forced = forced || done
	}
	return forced, nil
}

// forceUnlock ends the hold on key i that has fields, as Redis returned them at the time asked.
func (m *Mutex) forceUnlock(ctx context.Context, i int, fields []string, asked clock.Instant) (bool, error) {
	g := m.session.registry.gate(gateID{m.target.Keys[i], m.target.Side})
	ours := g != nil && g.endLingering(nil)
	for _, field := range fields {
		if h := m.session.holder(m.target, i, field, asked); h != nil {
			h.lose(errForced)
			ours = true
		}
	}
	done, out := m.kind.protocol.Force(ctx, tryOptions, m.target, i, fields)
	// After a loss in this client its own release may have come first, and of a request that
	// was sent again the first copy.
	return done || ours || out.Err == nil && out.Ambiguous, out.Err
}

var (
	errNilContext  = fmt.Errorf("%w: the context is nil", ErrInvalidOption)
	errNilFunction = fmt.Errorf("%w: the function is nil", ErrInvalidOption)
)

// usable returns why a call that needs Redis cannot be made.
func (m *Mutex) usable(ctx context.Context) error {
	switch {
	case m.err != nil:
		return m.err
	case ctx == nil:
		return errNilContext
	case m.session.closed():
		return ErrClosed
	case ctx.Err() != nil:
		return lockerr.Ended(ctx)
	}
	return nil
}

// owner returns who is calling.
func (m *Mutex) owner() keys.Owner {
	if m.settings.owner != "" {
		return keys.Owner{Fixed: m.settings.owner}
	}
	return keys.Owner{Goroutine: goroutine.ID()}
}

// notHeld is ErrNotHeld for an owner without a hold of m; it may have the other side.
func (m *Mutex) notHeld(o keys.Owner) error {
	other := newOtherSide(m.session, m.target, o)
	if other != nil && other.hold() != nil {
		return fmt.Errorf("%w on this side: %s holds the other side; call %s", ErrNotHeld, o.Who(), other.unlock())
	}
	return notHeld(o)
}

func notHeld(o keys.Owner) error {
	if o.Fixed != "" {
		return fmt.Errorf("%w by %s", ErrNotHeld, o.Who())
	}
	return fmt.Errorf("%w by %s; to lock and unlock in different goroutines use WithOwner", ErrNotHeld, o.Who())
}
