package relock

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
)

// RWMutex is a lock on one name that many owners may hold to read, or one owner to write, over all
// processes that use the same Redis. It is a cheap handle, and all handles of one name in one Client
// are the same lock. It shares its name with Java's getReadWriteLock, and with no other kind of lock:
// Lock returns ErrInvalidName while the other sort holds the name.
//
// Lock, TryLock and Unlock are the write side, the methods with an R the read side. Each side is like a
// [Mutex]: the owner is the calling goroutine or the id of WithOwner, it may lock again, and every hold
// has its own lease, watchdog and context. Holds do not depend on each other: one may be lost while
// others go on.
//
// An owner that writes may read as well, and goes on reading when it has unlocked the write side. A
// reader cannot become a writer: Lock returns ErrUpgrade, because two such readers would wait for each
// other for ever. It has to unlock the read side first, and read again what it has read.
//
// A waiting writer keeps new readers out, in all processes of this library, from 25 ms after it first
// asked. Then it waits only for those that already read. Owners that already read may add levels
// meanwhile. A goroutine that reads must not wait for another goroutine that wants to read: a writer
// may wait between them. After a writer, readers and writers have the same chance. Readers that are
// woken together read together. Java's readers do not know of waiting writers: if they never stop, a
// writer may wait for ever. A waiting Java writer keeps no readers out.
//
// A reader that has died keeps a writer waiting until its own lease is over, however many others read.
// A writer that died waiting keeps readers out for 5 s at most, or for twice WithSafetyPoll or the TTL
// if one of those is less; other waiters may have longer claims.
//
// Tokens are for writers: WithFencing has no effect on the read side. Read holds are renewed at least
// every 10 s, unless WithoutRenewal. While Java's watchdog keeps a shorter TTL on the key, they are
// renewed every third of that. All methods are safe for concurrent use.
type RWMutex struct {
	write Mutex
	read  Mutex
}

// readRenewInterval is the most that the renewal of a read hold may take: Java's
// watchdog sets the key's time to live to its own 30 s, however many others read. It is known for less
// than that only when a renewal has met it: see pressed.
const readRenewInterval = 10 * time.Second

// RWMutex returns a handle of the read-write lock name. A bad name or option is returned by
// the first call that would use it; on a client of NewQuorum that is ErrUnsupported. No
// round trip.
//
// Beside its key and the token counter it uses relock_rw_claim:{name}, keys that begin with
// {name}: for the leases of readers, and the channel redisson_rwlock:{name}.
func (c *Client) RWMutex(name string, opts ...MutexOption) *RWMutex {
	m := &RWMutex{write: *c.mutex(c.write, []string{name}, opts)}
	if m.write.err == nil {
		m.write.err = keys.CheckHelperKeys(m.write.target.Keys[0])
	}
	if m.write.err == nil {
		m.write.target.ReadWrite()
	}
	m.read = m.write
	target := *m.write.target
	target.Side = keys.Reading
	m.read.kind, m.read.target = c.read, &target
	m.read.settings.Fencing = false
	m.read.settings.RenewInterval = min(m.read.settings.RenewInterval, readRenewInterval)
	return m
}

// Name returns the name of the lock.
func (m *RWMutex) Name() string { return m.write.Name() }

// Lock takes the lock to write, or adds a level to the owner's write hold.
//
// It blocks until no other owner reads or writes; ctx or WithWaitTimeout end the wait. Writers of one
// process are served in the order in which they came, with its readers between them. State after a
// failure is that of [Mutex.Lock]. When a claim that kept readers out has been withdrawn, they may read
// 50 ms later, unless another writer waits.
//
// Errors: ErrUpgrade if the owner reads; else those of [Mutex.Lock]; ErrLost also inside a read hold
// that was lost. Round trips are those of Mutex.Lock; none with ErrUpgrade.
func (m *RWMutex) Lock(ctx context.Context) error { return m.write.Lock(ctx) }

// TryLock takes the lock to write, or adds a level, if that can be done without waiting. false without
// an error means that another owner holds it, or that a goroutine of this process waits to write, gives
// it back, or acquires it for the same fixed owner. It blocks as [Mutex.TryLock] does, and keeps no
// readers out. Errors are those of [RWMutex.Lock]. At most one round trip, and one more after a
// failure.
func (m *RWMutex) TryLock(ctx context.Context) (bool, error) { return m.write.TryLock(ctx) }

// Unlock takes one level of the owner's write hold away. With the last level the lock goes to the next
// writer of this process if none of its readers waits, or else to all. If the owner also reads, other
// readers may read now. It blocks, and fails, as [Mutex.Unlock] does. One round trip.
func (m *RWMutex) Unlock() error { return m.write.Unlock() }

// RLock takes the lock to read, or adds a level to the owner's read hold.
//
// It blocks until no other owner writes, and no waiting writer keeps new readers out; ctx or
// WithWaitTimeout end the wait. It never blocks an owner that already reads or writes. If several
// readers of one process have to wait, one of them talks to Redis.
//
// State after a failure and errors are those of [Mutex.Lock]; ErrLost also inside a write hold that was
// lost. One round trip; if it has to wait, the first waiter sends one more request for each wake-up and
// poll.
func (m *RWMutex) RLock(ctx context.Context) error {
	return m.reading("lock to read", m.read.Lock(ctx))
}

// TryRLock takes the lock to read, or adds a level, if that can be done without waiting. false without
// an error means that another owner writes, or waits to write, or that a goroutine of this process
// waits to read. It blocks as [Mutex.TryLock] does. Errors are those of [RWMutex.RLock]. At most one
// round trip, and one more after a failure.
func (m *RWMutex) TryRLock(ctx context.Context) (bool, error) {
	held, err := m.read.TryLock(ctx)
	return held, m.reading("try lock to read", err)
}

// RUnlock takes one level of the owner's read hold away. When the last reader has unlocked, the writers
// are woken. It blocks, and fails, as [Mutex.Unlock] does. One round trip.
func (m *RWMutex) RUnlock() error { return m.reading("unlock to read", m.read.Unlock()) }

// reading says of an error of the read side that it is one.
func (m *RWMutex) reading(op string, err error) error { return lockerr.Wrap(op, m.Name(), err) }

// Do locks to write, runs fn with the context of the hold, and unlocks, as [Mutex.Do] does. The round
// trips are those of Lock and Unlock.
func (m *RWMutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return m.write.Do(ctx, fn)
}

// RDo locks to read, runs fn with the context of the hold, and unlocks, as [Mutex.Do] does. The round
// trips are those of RLock and RUnlock.
func (m *RWMutex) RDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return m.read.Do(ctx, fn)
}

// Context returns a context that ends with ctx or with the owner's write hold, whichever is first, as
// [Mutex.Context] does. No round trip.
func (m *RWMutex) Context(ctx context.Context) context.Context { return m.write.Context(ctx) }

// RContext returns a context that ends with ctx or with the owner's read hold, whichever is first, as
// [Mutex.Context] does. No round trip.
func (m *RWMutex) RContext(ctx context.Context) context.Context { return m.read.Context(ctx) }

// HoldCount returns how many levels the owner holds to write; 0 if it holds none, or that hold
// was lost. No round trip.
func (m *RWMutex) HoldCount() int { return m.write.HoldCount() }

// RHoldCount returns how many levels the owner holds to read; 0 if it holds none, or that hold
// was lost. No round trip.
func (m *RWMutex) RHoldCount() int { return m.read.HoldCount() }

// Deadline returns until when the owner's write hold is proven, as [Mutex.Deadline] does. No round
// trip.
func (m *RWMutex) Deadline() (time.Time, bool) { return m.write.Deadline() }

// RDeadline returns until when the owner's read hold is proven, as [Mutex.Deadline] does. No round
// trip.
func (m *RWMutex) RDeadline() (time.Time, bool) { return m.read.Deadline() }

// FencingToken returns the fencing token of the owner's write hold, as [Mutex.FencingToken]
// does; 0 for an owner that only reads. No round trip.
func (m *RWMutex) FencingToken() int64 { return m.write.FencingToken() }

// RWState is what Redis says about a read-write lock.
type RWState struct {
	// Owner is the writer's field, uuid:owner:write, and Count its levels; empty and 0 if
	// no owner writes.
	Owner string
	Count int

	// Readers has the levels of each reader, by uuid:owner. Dead readers are left out.
	Readers map[string]int

	// TTL is the rest of the longest lease; 0 if the lock is free, negative if the key has no expiry,
	// because another program removed it.
	TTL time.Duration

	FencingToken int64 // the last token that was minted; 0 if there is no counter
}

// State asks Redis about the lock and its holders. It blocks for the request only, which
// ctx limits, and changes nothing.
//
// Errors: those of [Mutex.State]; ErrInvalidName if the key is no read-write lock. One round
// trip.
func (m *RWMutex) State(ctx context.Context) (RWState, error) {
	if err := m.write.usable(ctx); err != nil {
		return RWState{}, lockerr.Wrap("read state of", m.Name(), err)
	}
	k, out := m.write.kind.protocol.State(ctx, acquire.CallOptions, m.write.target, 0)
	if out.Err != nil {
		return RWState{}, lockerr.Wrap("read state of", m.Name(), out.Err)
	}
	s := RWState{FencingToken: k.Token}
	if len(k.Fields) > 0 {
		s.TTL = k.TTL
	}
	for i, field := range k.Fields {
		if keys.SideOf(field) == keys.Writing {
			s.Owner, s.Count = field, k.Counts[i]
			continue
		}
		if s.Readers == nil {
			s.Readers = make(map[string]int)
		}
		s.Readers[field] = k.Counts[i]
	}
	return s, nil
}

// ForceUnlock ends the holds that it finds, of readers and of a writer, and wakes the waiters. It
// returns false if the lock was free. Readers that come meanwhile keep their holds. It blocks, and
// fails, as [Mutex.ForceUnlock] does. Two round trips, one if the lock is free.
func (m *RWMutex) ForceUnlock(ctx context.Context) (bool, error) { return m.write.ForceUnlock(ctx) }
