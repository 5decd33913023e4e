package relock

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
)

// RWMutex is a lock on one name that many owners may hold to read, or one owner to write, across all
// processes that use the same Redis. It is a cheap handle, and all handles for one name in one Client
// are the same lock. Redisson's getReadWriteLock for the same name is the same lock, too. No other kind
// of lock may have the name: while one holds it, Lock returns [ErrInvalidName].
//
// Lock, TryLock and Unlock are the write side; the methods with an R are the read side. Each side works
// like a [Mutex]: the owner is the calling goroutine or the id of [WithOwner], the owner may lock
// again, and every hold has its own lease, watchdog and context. One hold may be lost while others go
// on.
//
// An owner that holds the write side may also read, and continues to read after it has unlocked the
// write side. A reader cannot become a writer: Lock returns [ErrUpgrade], because two such readers
// would wait for each other forever. Unlock the read side first, and read the data again afterwards.
//
// A waiting writer blocks new readers in all processes of this library, from 25 ms after its first
// request. Then it waits only for owners that already read. These may still increase their hold counts.
// A goroutine that reads must not wait for another goroutine that wants to read, because a writer may
// be waiting between them. After a writer unlocks, readers and writers compete equally, and readers
// that are woken together read together. Readers in Java ignore waiting writers of this library: if
// they never stop, a writer may wait forever. A waiting writer in Java does not block readers.
//
// If a reader dies, it blocks writers until its own lease ends, however many others read. If a waiting
// writer dies, it blocks new readers for at most min(5 s, 2×SafetyPoll, TTL); other waiting writers may
// block them for longer.
//
// [WithFencing] gives tokens to writers only. Read holds are renewed at least every 10 s, unless the
// lock is [WithoutRenewal]. If Java's watchdog sets a shorter TTL on the key, read holds are renewed
// every third of that TTL. All methods are safe for concurrent use.
type RWMutex struct {
	write Mutex
	read  Mutex
}

// readRenewInterval is the most that the renewal of a read hold may take: Java's
// watchdog sets the key's time to live to its own 30 s, however many others read. It is known for less
// than that only when a renewal has met it: see lease.Lease.Note.
const readRenewInterval = 10 * time.Second

// RWMutex returns a handle for the read-write lock name. If the name or an option is invalid, the first
// call that uses it returns the error; for a client of NewQuorum the error is [ErrUnsupported]. No
// round trip.
//
// Besides the key of the lock and the token counter, it uses the key relock_rw_claim:{name}, keys that
// begin with {name}: for the leases of readers, and the channel redisson_rwlock:{name}.
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
	m.read.settings.renewInterval = min(m.read.settings.renewInterval, readRenewInterval)
	return m
}

// Name returns the name of the lock, as [Mutex.Name] does.
func (m *RWMutex) Name() string { return m.write.Name() }

// Lock acquires the lock to write. If the owner already holds it to write, Lock increases the hold
// count.
//
// Lock blocks until no other owner reads or writes, until ctx ends, or for the time of
// [WithWaitTimeout]. Writers of one process are served in the order in which they called Lock. Readers
// of that process may come between them. The state after a failure is as for [Mutex.Lock]. If a writer
// gives up and no other writer waits, the readers that it blocked may read 50 ms later.
//
// Errors: [ErrUpgrade] if the owner reads, and the errors of [Mutex.Lock]. [ErrLost] can also mean that
// the owner has lost its read hold and not yet unlocked it. The round trips are those of Mutex.Lock;
// none with ErrUpgrade.
func (m *RWMutex) Lock(ctx context.Context) error { return m.write.Lock(ctx) }

// TryLock acquires the lock to write, or increases the hold count, if this is possible without waiting.
// It returns false without an error if another owner holds the lock, or if a goroutine of this process
// is waiting to write, releasing the lock, or acquiring it for the same fixed owner.
//
// TryLock blocks as [Mutex.TryLock] does, and does not block readers. The errors are those of
// [RWMutex.Lock]. At most one round trip, and one more after a failure.
func (m *RWMutex) TryLock(ctx context.Context) (bool, error) { return m.write.TryLock(ctx) }

// Unlock decreases the hold count of the owner's write hold. At zero the lock goes to the next writer
// of this process if none of its readers waits, and otherwise to whoever comes first. If the owner also
// reads, other readers may read from then on. Unlock blocks, and returns errors, as [Mutex.Unlock]
// does. One round trip.
func (m *RWMutex) Unlock() error { return m.write.Unlock() }

// RLock acquires the lock to read. If the owner already holds it to read, RLock increases the hold
// count.
//
// RLock blocks while another owner writes, or while a waiting writer blocks new readers. It also
// returns when ctx ends, or after the time of [WithWaitTimeout]. It never blocks an owner that already
// reads or writes. If several readers of one process wait, only one of them sends requests.
//
// The state after a failure and the errors are as for [Mutex.Lock]. [ErrLost] can also mean that the
// owner has lost its write hold and not yet unlocked it. One round trip. If RLock has to wait, the
// first waiter of the process sends one more request for each wake-up and poll.
func (m *RWMutex) RLock(ctx context.Context) error {
	return m.reading("lock to read", m.read.Lock(ctx))
}

// TryRLock acquires the lock to read, or increases the hold count, if this is possible without waiting.
// It returns false without an error if another owner writes or waits to write, or if a goroutine of
// this process is waiting to read. It blocks as [Mutex.TryLock] does. The errors are those of
// [RWMutex.RLock]. At most one round trip, and one more after a failure.
func (m *RWMutex) TryRLock(ctx context.Context) (bool, error) {
	held, err := m.read.TryLock(ctx)
	return held, m.reading("try lock to read", err)
}

// RUnlock decreases the hold count of the owner's read hold. When the last reader has unlocked, waiting
// writers are woken. RUnlock blocks, and returns errors, as [Mutex.Unlock] does. One round trip.
func (m *RWMutex) RUnlock() error { return m.reading("unlock to read", m.read.Unlock()) }

// reading marks an error as one of the read side.
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

// Context returns a context that ends when ctx or the owner's write hold ends, whichever is first, as
// [Mutex.Context] does. No round trip.
func (m *RWMutex) Context(ctx context.Context) context.Context { return m.write.Context(ctx) }

// RContext returns a context that ends when ctx or the owner's read hold ends, whichever is first, as
// [Mutex.Context] does. No round trip.
func (m *RWMutex) RContext(ctx context.Context) context.Context { return m.read.Context(ctx) }

// Wanted is as [Mutex.Wanted], for the hold of a writer.
func (m *RWMutex) Wanted(ctx context.Context) <-chan struct{} { return m.write.Wanted(ctx) }

// RWanted is as [Mutex.Wanted], for the hold of a reader: the channel is closed when a writer waits. A reader that waits
// for that writer does not close it, except if the caller also holds the write side.
func (m *RWMutex) RWanted(ctx context.Context) <-chan struct{} { return m.read.Wanted(ctx) }

// HoldCount returns how many Unlocks the owner's write hold still needs. It returns 0 if the owner does
// not hold the write side, or has lost it. No round trip.
func (m *RWMutex) HoldCount() int { return m.write.HoldCount() }

// RHoldCount returns how many RUnlocks the owner's read hold still needs. It returns 0 if the owner
// does not hold the read side, or has lost it. No round trip.
func (m *RWMutex) RHoldCount() int { return m.read.HoldCount() }

// Deadline returns the time until which the owner's write hold is proven, as [Mutex.Deadline] does. No
// round trip.
func (m *RWMutex) Deadline() (time.Time, bool) { return m.write.Deadline() }

// RDeadline returns the time until which the owner's read hold is proven, as [Mutex.Deadline] does. No
// round trip.
func (m *RWMutex) RDeadline() (time.Time, bool) { return m.read.Deadline() }

// FencingToken returns the fencing token of the owner's write hold, as [Mutex.FencingToken] does. It
// returns 0 if the owner only reads. No round trip.
func (m *RWMutex) FencingToken() int64 { return m.write.FencingToken() }

// RWState is the state of a read-write lock on Redis, as [RWMutex.State] returns it.
type RWState struct {
	// Owner is the writer's field, uuid:owner:write, and Count its hold count. They are empty and 0 if
	// no owner writes.
	Owner string
	Count int

	// Readers maps each reader's field, uuid:owner, to its hold count. Dead readers are left out.
	Readers map[string]int

	// TTL is what remains of the longest lease. It is 0 if the lock is free, and negative if another
	// program has removed the expiry of the key.
	TTL time.Duration

	FencingToken int64 // the last token that was minted; 0 if there is no counter
}

// State returns the state of the lock on Redis and its holders, and changes nothing. It blocks for the
// request only, or until ctx ends.
//
// Errors are as for [Mutex.State]; [ErrInvalidName] if the key is not a read-write lock. One round
// trip.
func (m *RWMutex) State(ctx context.Context) (RWState, error) {
	if err := m.write.usable(ctx); err != nil {
		return RWState{}, lockerr.Wrap("read state of", m.Name(), err)
	}
	k, out := m.write.kind.protocol.State(ctx, tryOptions, m.write.target, 0)
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
// returns false if the lock was free. Readers that acquire the lock meanwhile keep their holds. It
// blocks, and returns errors, as [Mutex.ForceUnlock] does. Two round trips, or one if the lock is free.
func (m *RWMutex) ForceUnlock(ctx context.Context) (bool, error) { return m.write.ForceUnlock(ctx) }
