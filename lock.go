package relock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goid"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/holdctx"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/session"
)

// Mutex is a lock on one name, or on several names taken together, shared by all processes
// that use the same Redis or quorum. It is a cheap handle: any number of handles of one name
// in one Client are the same lock. [Client.Mutex], [Client.FairMutex] and [Client.MultiMutex]
// make it.
//
// The owner of a hold is the calling goroutine, or the id given WithOwner. A second Lock by
// the owner adds a level, and as many Unlocks give the lock back. Other goroutines of the
// same process wait like any other process.
//
// A hold can end without its holder's doing: when its lease could not be renewed in time,
// or its key was deleted or forced open. Do work under the lock with the context of
// [Mutex.Context] or [Mutex.Do]. If the lease runs out, that is cancelled before another owner
// can get the lock; if the key was taken away, at the next renewal that Redis carries out, or
// when the lease ends.
//
// All methods are safe for concurrent use.
type Mutex struct {
	session  *session.Session
	kind     *kind
	target   *keys.Set
	settings settings
	err      error // of a bad name or option; every call that would use it returns it
}

// Mutex returns a handle of the lock name. A bad name or option is returned by the first
// call that would use it. No round trip.
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
	m.settings.apply(opts)
	if m.err = m.target.Init(c.prefix, names); m.err == nil && m.settings.Fencing {
		m.target.Mints()
	}
	if k != nil {
		m.target.Side = k.side
	}
	if m.err == nil && c.cluster && !m.target.OneSlot() {
		m.err = fmt.Errorf("%w: on a Cluster the names of a MultiMutex need a common {tag}, as in %q",
			ErrInvalidName, "{"+keys.HashTag(m.target.Keys[0])+"}:a")
	}
	if m.err == nil {
		m.err = m.settings.Err
	}
	if m.err == nil {
		m.err = c.supports(&m.settings)
	}
	if m.err == nil && k == nil {
		m.err = errNoSuchKind
	}
	return m
}

// Name returns the name of the lock, without the prefix of WithPrefix; those of a MultiMutex as
// they were given, joined by commas.
func (m *Mutex) Name() string { return m.target.Name }

// Lock takes the lock, or adds a level to the owner's hold.
//
// It blocks until it holds the lock; ctx or WithWaitTimeout end the wait. Waiters of one process are
// served in the order in which they came. The first of them has one place for all of them in the line
// on Redis. So processes take turns, in the order in which they asked. It sleeps until a message says
// that it has the lock. A quorum has no line: there the first waiters of all processes compete when the
// lock is free.
//
// After a failure the owner holds what it held before. If Redis granted the lock all the same, or keeps
// a place, that is given up before Lock returns, or in the background if it takes longer than 50 ms. At
// the latest it ends with its TTL.
//
// Errors: that of ctx with its cause; ErrTimeout; ErrLost inside a hold that was lost, which has to be
// unlocked first; ErrReentrant; ErrNotReplicated; ErrClosed; ErrInvalidName and ErrInvalidOption; ErrUnsupported;
// Redis' own. If Redis cannot be reached, a new Lock fails after three attempts, in 5 s at most with the
// default TTL. A Lock that was already waiting survives an outage of one TTL. The error that ends a wait
// names the holder, or the last holder that it learned of, and says for how long Redis has not answered.
//
// Any number of goroutines may call it. Round trips: one if the lock is free; none if a holder of the
// same process hands it over; two and a subscription if another process has it. A waiting process then
// sends a request every third of the shortest of 5 s, twice WithSafetyPoll and the TTL. A Redis user
// without permission for the keys of the line needs one more round trip for each request.
func (m *Mutex) Lock(ctx context.Context) error {
	_, err := m.lock(ctx, true)
	return lockerr.Wrap("lock", m.Name(), err)
}

// TryLock takes the lock, or adds a level to the owner's hold, if that can be done without waiting.
// false without an error means that another owner holds it, or that a goroutine of this process waits
// for it, gives it back, or acquires it for the same fixed owner.
//
// It blocks for one request only. If Redis cannot be reached, it tries three times, for 5 s at most
// with the default TTL, and longer WithReplicas. ctx ends that, too. State after a failure and errors
// are those of [Mutex.Lock]. If Redis cannot be reached, TryLock returns an error, even if another
// goroutine of this process waits already and gets no answer. At most one round trip, and one more
// after a failure.
func (m *Mutex) TryLock(ctx context.Context) (bool, error) {
	held, err := m.lock(ctx, false)
	return held, lockerr.Wrap("try lock", m.Name(), err)
}

// Unlock takes one level of the owner's hold away. With the last level the hold ends: its context is
// cancelled with the cause ErrReleased. The lock goes to the next waiter of this process, or to the
// first in the line on Redis, or it is free. With WithMinHold it may stay taken for a while.
//
// It blocks until Redis has answered, or until WithUnlockTimeout has passed. It does not depend on the
// context of Lock. The next waiter of this process does not wait for Redis, unless it needs what only
// Redis can give: a token, replicas, or a lease of its own. Redis is told once for all holds that have
// followed one another meanwhile.
//
// The level is gone even if Unlock returns an error. An error of Redis means that the key may live on
// for up to one TTL, or that a waiter of this process has the lock. A plain defer m.Unlock() drops the
// error, and so hides a loss. Use [Mutex.Do], or join the error to the named result of your function:
//
//	defer func() { err = errors.Join(err, m.Unlock()) }()
//
// Errors: ErrNotHeld if the owner holds nothing, or holds it only by handles with other names; ErrLost
// for each level of a lost hold, even if this call is the first to notice; ErrClosed for each level of
// a hold that Close has ended; ErrInvalidName, ErrInvalidOption and ErrUnsupported of the handle;
// Redis' own. One round trip; none if the error was known before. Two if a waiter of this process
// follows while a command for the lock is under way, and on a quorum if that waiter is WithFencing.
func (m *Mutex) Unlock() error {
	if m.err != nil {
		return lockerr.Wrap("unlock", m.Name(), m.err)
	}
	var buf [4]*hold
	o := m.owner()
	holds := m.find(buf[:0], o, m.target)
	if len(holds) == 0 || slices.ContainsFunc(holds, (*hold).wanted) {
		return lockerr.Wrap("unlock", m.Name(), m.notHeld(o))
	}
	var errs []error
	guard.Each(holds, func(h *hold) {
		if err := h.unlock(m.target, &m.settings); err != nil {
			errs = append(errs, err)
		}
	})
	return lockerr.Wrap("unlock", m.Name(), lockerr.Join(errs...))
}

// Do locks, runs fn with the context of the hold, and unlocks, also when fn panics. fn does not run
// without the lock. The context given to fn ends with fn. fn runs on the calling goroutine. It must not
// unlock what it did not lock.
//
// It blocks as Lock, fn and Unlock do. It returns the error of Lock, or the errors of fn and Unlock,
// joined. ErrLost is among them if the hold was lost before Unlock. The round trips are those of Lock
// and Unlock.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	if fn == nil {
		return lockerr.Wrap("do", m.Name(), fmt.Errorf("%w: the function is nil", ErrInvalidOption))
	}
	if err := m.Lock(ctx); err != nil {
		return err
	}
	defer func() {
		// A loss that fn has returned already is not told twice.
		if unlocked := m.Unlock(); !errors.Is(unlocked, ErrLost) || !errors.Is(err, ErrLost) {
			err = lockerr.Join(err, unlocked)
		}
	}()
	above := holdctx.Nearest(ctx)
	ctx = m.Context(ctx)
	x, _ := ctx.(*holdctx.Context)
	defer x.EndUpTo(above, lockerr.Wrap("do", m.Name(), ErrReleased)) // also if it was not the outermost level
	if ctx.Err() != nil && m.HoldCount() == 0 {
		return nil // what Unlock says
	}
	return fn(ctx)
}

// Context returns a context that ends with ctx or with the owner's hold of any of the names, whichever
// is first. The cause wraps ErrReleased, ErrLost or ErrClosed if the hold has ended it. It ends before
// the lease does on Redis, and its Err looks at the clocks itself. If a key was deleted or forced open
// from outside, it ends at the next renewal that Redis answers, or with the lease. If the owner holds
// nothing, the context has already ended, with the cause ErrNotHeld. It uses memory until it ends:
// within a long hold derive it from a ctx that ends earlier. No round trip.
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

// HoldCount returns how many levels the owner holds; 0 if its hold was lost. It counts levels that
// handles with other names have taken, though Unlock of this handle cannot take those away. For a
// MultiMutex it is the smallest count of its names. No round trip.
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

// Deadline returns the time until which the owner's hold is proven, in wall time; of a MultiMutex the
// earliest of its names. The hold is lost then, unless a renewal or a re-entry moves the deadline: ask
// again instead of keeping it. Deadline does not notice a key that was deleted or forced open from
// outside. It returns false if the owner does not hold all of the names, or if the hold was lost. No
// round trip.
func (m *Mutex) Deadline() (time.Time, bool) {
	var buf [4]*hold
	holds := m.covering(buf[:0])
	if holds == nil {
		return time.Time{}, false
	}
	now := m.session.Now()
	left := holds[0].left(m.target, now)
	for _, h := range holds[1:] {
		left = min(left, h.left(m.target, now))
	}
	if left == 0 {
		return time.Time{}, false
	}
	return now.After(left).Time(), true
}

// FencingToken returns the fencing token of the owner's hold; 0 if no Lock of it (re-entries included)
// was WithFencing, or if the owner does not hold all of the names. A lost hold keeps its token until it
// is unlocked, so that the resource can refuse it. No round trip.
func (m *Mutex) FencingToken() int64 {
	var buf [4]*hold
	token := int64(0)
	for _, h := range m.covering(buf[:0]) {
		t, has := h.fencingToken(m.target)
		if !has {
			return 0
		}
		token = max(token, t)
	}
	return token
}

// State is what Redis says about a lock.
type State struct {
	Owner string // the holder's field, uuid:owner; empty if the lock is free
	Count int    // the holder's levels

	// TTL is the rest of the lease; 0 if the lock is free, negative if the key has no expiry because
	// another program removed it. Waiters poll then.
	TTL time.Duration

	FencingToken int64 // the last token that was minted; 0 if there is no counter
}

// State asks Redis about the lock and its holder. For a MultiMutex it returns the state of the first of
// its names, in sorted order, that is held. It blocks for the request only, which ctx limits, and
// changes nothing. While holds of one process follow one another, Redis may still name a hold that has
// just ended; see [Mutex.Unlock].
//
// Errors: that of ctx; ErrInvalidName if the key is no lock; ErrInvalidOption and ErrUnsupported of the
// handle; ErrClosed; Redis' own. At most one round trip for each name.
func (m *Mutex) State(ctx context.Context) (State, error) {
	if err := m.usable(ctx); err != nil {
		return State{}, lockerr.Wrap("read state of", m.Name(), err)
	}
	var state State
	for i := range m.target.Keys {
		k, out := m.kind.protocol.State(ctx, acquire.CallOptions, m.target, i)
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
// lock was free. It is for operators. A holder in this client is told first: its context is cancelled
// with ErrLost. Other holders learn of it at their next renewal, and may go on working until then. It
// blocks for the requests only, which ctx limits. After an error it may have ended the hold, or some of
// the holds of a MultiMutex. If the network delivers its request late, it can end a later hold of the
// same owner.
//
// Errors: those of [Mutex.State]. Two round trips for each name, one for each that is free.
func (m *Mutex) ForceUnlock(ctx context.Context) (bool, error) {
	if err := m.usable(ctx); err != nil {
		return false, lockerr.Wrap("force unlock", m.Name(), err)
	}
	// All names are looked at first: with the first that is free the next in line may have all.
	asked := m.session.Now()
	found := make([]protocol.KeyState, len(m.target.Keys))
	for i := range found {
		var out redisexec.Outcome
		if found[i], out = m.kind.protocol.State(ctx, acquire.CallOptions, m.target, i); out.Err != nil {
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

// forceUnlock ends the hold on key i that has fields, as Redis said when it was asked.
func (m *Mutex) forceUnlock(ctx context.Context, i int, fields []string, asked clock.Instant) (bool, error) {
	ours := false
	for _, field := range fields {
		if h := m.session.Holder(m.target, i, field, asked); h != nil {
			asHold(h).lose(errForced)
			ours = true
		}
	}
	done, out := m.kind.protocol.Force(ctx, acquire.CallOptions, m.target, i, fields)
	// After a loss in this client its own release may have come first, and of a request that
	// was sent again the first copy.
	return done || ours || out.Err == nil && out.Ambiguous, out.Err
}

var errNilContext = fmt.Errorf("%w: the context is nil", ErrInvalidOption)

// usable says why a call that needs Redis cannot be made.
func (m *Mutex) usable(ctx context.Context) error {
	switch {
	case m.err != nil:
		return m.err
	case ctx == nil:
		return errNilContext
	case m.session.Closed():
		return ErrClosed
	case ctx.Err() != nil:
		return lockerr.Ended(ctx)
	}
	return nil
}

// owner returns who is calling.
func (m *Mutex) owner() keys.Owner {
	if m.settings.Owner != "" {
		return keys.Owner{Fixed: m.settings.Owner}
	}
	return keys.Owner{Goroutine: goid.Get()}
}

// notHeld is ErrNotHeld for an owner without a hold of m; it may have the other side.
func (m *Mutex) notHeld(o keys.Owner) error {
	other := newOtherSide(m.session, m.target, o)
	if other.hold() != nil {
		return fmt.Errorf("%w: %s holds the other side of it: use %s", ErrNotHeld, o.Who(), other.unlock())
	}
	return notHeld(o)
}

func notHeld(o keys.Owner) error {
	if o.Fixed != "" {
		return fmt.Errorf("%w by %s", ErrNotHeld, o.Who())
	}
	return fmt.Errorf("%w by %s; to lock and unlock in different goroutines use WithOwner", ErrNotHeld, o.Who())
}
