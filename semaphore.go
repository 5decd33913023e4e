package relock

import (
	"context"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
)

// Semaphore limits how many permits of one name are in use at a time, over all processes that use the
// same Redis. A Semaphore is a cheap handle: all handles for one name are the same semaphore.
// [Client.Semaphore] returns it.
//
// A permit has a lease, which is renewed until the permit is released. If a process dies, its permits
// are free when their leases end, within one TTL. If a permit is lost, the context of [Permit.Context]
// is cancelled before another process can get its share.
//
// No limit is stored on Redis. Each request contains the limit of its handle, and is granted if the
// weights of all permits in use, plus its own, are at most that limit. So a new version of a service can
// have another limit. While both versions run, each request keeps to its own limit.
//
// Waiters are served in the order in which Redis executed their requests. A large request that waits is
// not overtaken by small ones behind it. Waiters have entries in a line, as those of a
// [Client.FairMutex], and sleep until a message grants them their permits.
//
// All methods are safe for concurrent use.
type Semaphore struct {
	mutex Mutex // makes the permits; it never holds anything itself
}

// Semaphore returns a handle for the semaphore with that name. The permits in use have a total weight of
// at most limit, which is from 1 to 10,000. The name is for the semaphore only: while a lock holds the
// name, calls return [ErrInvalidName], and so does Lock while a permit is in use.
//
// Options are as for a Mutex, with these exceptions. [WithOwner], [WithOwnerFrom], [WithFencing],
// [WithSharedFencing] and [WithoutReentrancy] are refused with [ErrInvalidOption], because each permit is
// its own owner. As options of the client they apply to its locks only. [WithLocalHandoffs] and
// [WithLinger] have no effect. [WithMinHold] limits the rate: a permit that is released earlier keeps its
// share for d after the acquisition, so at most limit permits begin in each d.
//
// If the name, the limit or an option is invalid, the first call that uses the handle returns the error.
// For a client of NewQuorum the error is [ErrUnsupported]: each node has its own order and its own set of
// permits, so majorities of different nodes can disagree about how many permits are in use. No round
// trip.
func (c *Client) Semaphore(name string, limit int, opts ...MutexOption) *Semaphore {
	s := &Semaphore{mutex: *c.mutex(c.permits, []string{name}, opts)}
	m := &s.mutex
	m.settings.Limit = limit
	switch {
	case m.err != nil:
		return s
	case limit < 1 || limit > protocol.MostPermits:
		m.err = fmt.Errorf("%w: a semaphore with the limit %d: it must be from 1 to %d", ErrInvalidOption, limit, protocol.MostPermits)
	case m.settings.owner != "":
		m.err = fmt.Errorf("%w: WithOwner or WithOwnerFrom on a semaphore: each permit is its own owner, and any goroutine may release it", ErrInvalidOption)
	case m.settings.Fencing:
		m.err = fmt.Errorf("%w: WithFencing on a semaphore: several permits are valid at a time, so no token is the highest", ErrInvalidOption)
	case !m.settings.reentrant:
		m.err = fmt.Errorf("%w: WithoutReentrancy on a semaphore: a permit is never entered again", ErrInvalidOption)
	}
	m.target.Semaphore()
	return s
}

// Name returns the name of the semaphore, without the prefix of [WithPrefix].
func (s *Semaphore) Name() string { return s.mutex.Name() }

// Limit returns the limit of this handle. Other handles may have other limits.
func (s *Semaphore) Limit() int { return s.mutex.settings.Limit }

// Acquire acquires one permit: [Semaphore.AcquireN] with the weight 1.
func (s *Semaphore) Acquire(ctx context.Context) (*Permit, error) { return s.AcquireN(ctx, 1) }

// AcquireN acquires a permit of that weight, all or nothing. The weight is from 1 to the limit.
//
// AcquireN blocks until the permit is granted, until ctx ends, or for the time of [WithWaitTimeout]. If
// AcquireN fails, it leaves no permit. If Redis granted the permit meanwhile, AcquireN releases it, and
// waits for that for at most 50 ms. If Redis does not answer, the share is free after one TTL.
//
// Errors: the error of ctx with its cause; [ErrTimeout]; [ErrNotReplicated]; [ErrClosed];
// [ErrInvalidOption] for the weight; [ErrInvalidName], ErrInvalidOption and [ErrUnsupported] for an
// invalid handle; and errors from Redis. If Redis cannot be reached, a new call fails after three
// tries. A call that is already waiting survives an outage of one TTL.
//
// One round trip, which returns the permit or an entry in the line, and one more [WithReplicas]. While
// calls of this process wait, one request renews up to 500 of their entries, every third of 5 s, of twice
// [WithSafetyPoll], or of the TTL, whichever is shortest. Each unit of the weight costs Redis about a
// microsecond.
func (s *Semaphore) AcquireN(ctx context.Context, weight int) (*Permit, error) {
	p, _, err := s.acquire(ctx, weight, true)
	return p, lockerr.Wrap("acquire", s.Name(), err)
}

// TryAcquire acquires one permit if this is possible without waiting. It returns false without an error
// if there is no room, or if others wait. It blocks for one request, or until ctx ends. The state after
// a failure and the errors are as for [Semaphore.AcquireN]. One round trip, and one more after a
// failure.
func (s *Semaphore) TryAcquire(ctx context.Context) (*Permit, bool, error) {
	p, acquired, err := s.acquire(ctx, 1, false)
	return p, acquired, lockerr.Wrap("try acquire", s.Name(), err)
}

// acquire acquires a permit, under a name of its own.
func (s *Semaphore) acquire(ctx context.Context, weight int, waits bool) (*Permit, bool, error) {
	limit := s.mutex.settings.Limit
	if s.mutex.err == nil && (weight < 1 || weight > limit) {
		return nil, false, fmt.Errorf("%w: a permit of weight %d: it must be from 1 to the limit, which is %d", ErrInvalidOption, weight, limit)
	}
	p := &Permit{mutex: s.mutex, weight: weight}
	p.mutex.settings.owner = keys.Permit(s.mutex.session.tickets.Add(1), weight).Fixed
	if acquired, err := p.mutex.lock(ctx, waits); !acquired {
		return nil, false, err
	}
	if h := p.hold(); h != nil { // nil: the permit was lost, and Close has removed the hold
		h.mu.Lock()
		p.id = h.name.Field
		h.mu.Unlock()
	}
	return p, true, nil
}

// Do acquires one permit, runs fn on the calling goroutine with the context of the permit, and releases
// the permit, even if fn panics. If Acquire fails, fn does not run. The context that fn receives ends
// when fn returns.
//
// Do blocks as Acquire, fn and Release do. It returns the error of Acquire, or the errors of fn and
// Release, joined. If the permit was lost, [ErrLost] is among them. The round trips are those of Acquire
// and Release.
func (s *Semaphore) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	if fn == nil {
		return lockerr.Wrap("do", s.Name(), errNilFunction)
	}
	p, err := s.Acquire(ctx)
	if err != nil {
		return err
	}
	return p.mutex.run(ctx, fn, p.Release)
}

// SemaphoreState is the state of a semaphore on Redis, as [Semaphore.State] returns it.
type SemaphoreState struct {
	InUse   int           // the total weight of the permits
	Waiting int           // entries in the line; those of dead processes count for up to 5 s
	Permits []PermitState // the first to end comes first
}

// PermitState is the state of one permit on Redis.
type PermitState struct {
	ID     string // as [Permit.ID] returns it; with .kept if the permit was released [WithMinHold]
	Client string // the uuid of the client, as [Client.ID] returned it at the acquisition
	Weight int
	TTL    time.Duration // the rest of the lease
}

// State returns the state of the semaphore on Redis, and changes nothing. It blocks for the request
// only, or until ctx ends. Errors: the error of ctx; [ErrInvalidName] if the key is not a semaphore;
// [ErrInvalidOption] and [ErrUnsupported] for an invalid handle; [ErrClosed]; and errors from Redis. One
// round trip.
func (s *Semaphore) State(ctx context.Context) (SemaphoreState, error) {
	m := &s.mutex
	if err := m.usable(ctx); err != nil {
		return SemaphoreState{}, lockerr.Wrap("read state of", s.Name(), err)
	}
	k, out := m.kind.protocol.State(ctx, tryOptions, m.target, 0)
	if out.Err != nil {
		return SemaphoreState{}, lockerr.Wrap("read state of", s.Name(), out.Err)
	}
	state := SemaphoreState{Waiting: k.Waiting}
	for i, member := range k.Fields {
		p := PermitState{ID: member, Client: keys.ClientOf(member), Weight: keys.WeightOf(member), TTL: k.Leases[i]}
		state.InUse += p.Weight
		state.Permits = append(state.Permits, p)
	}
	return state, nil
}

// ForceRelease ends the permit with that ID, of any process, and serves the waiters. It returns false if
// there is no such permit. It is for operators: [Semaphore.State] returns the IDs. A request that waits
// is no permit: it keeps its entry in the line.
//
// If the permit belongs to this Client, its context is cancelled with [ErrLost] first. Other processes
// notice at their next renewal, and may continue to work until then. If ForceRelease returns an error,
// it may have ended the permit.
//
// ForceRelease blocks for its request only, or until ctx ends. Errors are as for [Semaphore.State]. One
// round trip.
func (s *Semaphore) ForceRelease(ctx context.Context, id string) (bool, error) {
	if err := s.mutex.usable(ctx); err != nil {
		return false, lockerr.Wrap("force release", s.Name(), err)
	}
	done, err := s.mutex.forceUnlock(ctx, 0, []string{id}, s.mutex.session.now())
	return done, lockerr.Wrap("force release", s.Name(), err)
}

// Permit is the right to use a share of a [Semaphore], until the permit is released or lost. A permit is
// its own owner: any goroutine may release it, once. All methods are safe for concurrent use.
type Permit struct {
	mutex  Mutex // a handle whose owner is this permit
	weight int
	id     string
}

// hold returns the hold of p, or nil after its end.
func (p *Permit) hold() *hold {
	return p.mutex.session.registry.find(gateID{p.mutex.target.Keys[0], keys.Permits}, p.mutex.owner())
}

// ID identifies the permit on Redis: the uuid of the client, a number, and the weight.
func (p *Permit) ID() string { return p.id }

// Weight returns the weight of the permit.
func (p *Permit) Weight() int { return p.weight }

// Context returns a context that ends when ctx or the permit ends, whichever is first. If the permit
// ends it, the cause wraps [ErrReleased], [ErrLost] or [ErrClosed]. If the permit has been released
// before, the cause wraps [ErrNotHeld]. The context ends before the lease ends on Redis, and its Err
// checks the deadline itself. If another process has removed the permit, the context ends at the next
// renewal that Redis answers, or with the lease. No round trip.
func (p *Permit) Context(ctx context.Context) context.Context { return p.mutex.Context(ctx) }

// Deadline returns the wall-clock time until which the permit is proven, as [Mutex.Deadline] does. It
// returns false if the permit has ended. No round trip.
func (p *Permit) Deadline() (time.Time, bool) { return p.mutex.Deadline() }

// Release gives the permit back. Its context is cancelled with the cause [ErrReleased], and then the
// first waiters get permits, as many as fit.
//
// Release blocks until Redis has answered, or for the time of [WithUnlockTimeout], and does not depend on
// the context of Acquire. With [WithAsyncUnlock] it does not block. The permit has ended even if Release
// returns an error: an error from Redis means that the share may stay in use for up to one TTL.
//
// Errors: [ErrNotHeld] if the permit was released before; [ErrLost] if it was lost; [ErrClosed] if Close
// has ended it; and errors from Redis. One round trip. None if the error is known without asking Redis.
func (p *Permit) Release() error {
	h := p.hold()
	if h == nil {
		return lockerr.Wrap("release", p.mutex.Name(), fmt.Errorf("%w: permit %s was released before", ErrNotHeld, p.id))
	}
	return lockerr.Wrap("release", p.mutex.Name(), h.unlock(p.mutex.target, &p.mutex.settings))
}
