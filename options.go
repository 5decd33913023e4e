package relock

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// ClientOption is an option of [New] and [NewQuorum]. If it is also a [MutexOption], it sets the
// default for all locks of the client.
type ClientOption interface{ applyToClient(*clientSettings) }

// MutexOption is an option of one handle, of any kind of lock: [Client.Mutex], [Client.FairMutex],
// [Client.MultiMutex], [Client.RWMutex] and [Client.Semaphore].
type MutexOption interface{ applyToMutex(*settings) }

// Option is an option of a client, or of a handle. For a handle it replaces the option of the client.
type Option interface {
	ClientOption
	MutexOption
}

type option func(*settings)

func (o option) applyToClient(s *clientSettings) { o(&s.settings) }
func (o option) applyToMutex(s *settings)        { o(s) }

type mutexOption func(*settings)

func (o mutexOption) applyToMutex(s *settings) { o(s) }

type clientOption func(*clientSettings)

func (o clientOption) applyToClient(s *clientSettings) { o(s) }

// WithTTL sets the lease on Redis: how long a lock outlives a holder that has crashed. Default: 30 s.
// From 100 ms to 100 years, rounded up to whole milliseconds. A lock that was granted to a waiter has a
// lease of at most 5 s at first; if it is held for longer than 0.3 s, a renewal extends the lease to the TTL.
func WithTTL(d time.Duration) Option {
	return option(func(s *settings) {
		if d < minTTL {
			s.reject("WithTTL(%v): must be at least %v", d, minTTL)
			return
		}
		if d > maxTTL {
			s.reject("WithTTL(%v): must be at most %v", d, maxTTL)
			return
		}
		s.TTL = (d + time.Millisecond - 1).Truncate(time.Millisecond)
	})
}

// WithRenewInterval enables renewal, and sets how often the watchdog renews. Default: a third of the
// TTL. From 10 ms to two thirds of the TTL, so that a failed renewal can be retried in time. Read holds
// of an RWMutex are renewed at least every 10 s.
//
// Renewals of one client that are due at the same time are sent together, up to 100 keys in one
// command. For this the first renewal of a hold comes earlier, by up to a tenth of the interval.
// Renewals are sent separately for read holds, [WithReplicas], on a quorum, and on a Cluster for names
// without a common {tag}.
func WithRenewInterval(d time.Duration) Option {
	return option(func(s *settings) {
		if d < minRenewInterval {
			s.reject("WithRenewInterval(%v): must be at least %v", d, minRenewInterval)
			return
		}
		s.Renewed, s.renewInterval, s.given.interval = true, d, true
	})
}

// WithoutRenewal disables renewal. If the owner does not unlock within the TTL, the hold is lost, as
// with Redisson's leaseTime. Default: holds are renewed.
//
// Together with [WithRenewInterval] or [WithMaxHold] it is ErrInvalidOption. For a handle it replaces
// those options of the client, and WithRenewInterval for a handle enables renewal again.
func WithoutRenewal() Option {
	return option(func(s *settings) {
		s.Renewed, s.renewInterval, s.maxHold = false, 0, 0
		s.given.fixed = true
	})
}

// WithMaxHold limits a stuck or forgotten holder: d after the acquisition the watchdog stops renewing,
// and at most one TTL later the hold is lost. Default: no limit. d must be at least the TTL.
func WithMaxHold(d time.Duration) Option {
	return option(func(s *settings) {
		if d <= 0 {
			s.reject("WithMaxHold(%v): must be positive", d)
			return
		}
		s.maxHold, s.given.maxHold = min(d, maxTTL), true // that is for ever
	})
}

// WithMinHold keeps the lock unavailable for at least d after the acquisition. If the last Unlock comes
// earlier, a placeholder replaces the holder on Redis until then. Use it so that a short job does not
// run again on a machine whose clock is late. Default: none. d must be positive and at most 100 years,
// and is rounded up to whole milliseconds.
//
// Unlock itself takes one round trip, returns nil, and ends the hold as usual. Until d is over, no
// owner gets the lock, not even the previous one: TryLock returns false, and Lock waits. Afterwards the
// first waiter gets the lock within a few milliseconds. [Mutex.State] returns the previous owner,
// followed by :kept: and a number. [Mutex.ForceUnlock] frees the lock. [Client.Close] leaves
// placeholders, too, and does not wait for the end of d.
//
//   - Nested Locks may have different values of d. Each counts from its own Lock, and the latest
//     end applies, to all names of the hold: also to those of a MultiMutex in which a Lock of one is nested.
//   - After a loss, also by ForceUnlock, there is no placeholder.
//   - If the process dies, its lock ends with its TTL, which may be earlier than d. If that must
//     not happen, use WithTTL with at least d. One case remains: until its first renewal a lock that
//     was waited for has a lease of 5 s at most, and a lock that was taken over from another owner of
//     this process has the rest of that owner's lease. After a wait that renewal follows within 0.3 s.
//   - The placeholder is not renewed. d may be longer than the TTL and WithMaxHold.
//   - On an RWMutex the placeholder belongs to the same side: after a reader, others may read. If a
//     writer still reads when it unlocks, its placeholder is a reader.
//   - On a Semaphore the placeholder keeps the share of the permit.
//   - On a MultiMutex every name gets a placeholder. On a quorum a majority of the nodes has to
//     confirm it; with WithReplicas, n replicas have to. Otherwise Unlock returns an error.
//   - If Redis is unreachable, the request is retried in the background. Until then the normal
//     lease applies: the key may remain for the TTL or d, whichever is longer. If Redis stays
//     unreachable until the lease ends, the key may be free before d is over.
func WithMinHold(d time.Duration) Option {
	return option(func(s *settings) {
		if d <= 0 || d > maxTTL {
			s.reject("WithMinHold(%v): must be positive, and at most %v", d, maxTTL)
			return
		}
		s.minHold = (d + time.Millisecond - 1).Truncate(time.Millisecond)
	})
}

// WithWaitTimeout limits how long each Lock, RLock and Acquire waits, for the lock or for an answer from
// Redis, in addition to its context: after d it returns [ErrTimeout]. Default: only the context limits
// the wait. d must be positive.
func WithWaitTimeout(d time.Duration) Option {
	return option(func(s *settings) {
		if d <= 0 {
			s.reject("WithWaitTimeout(%v): must be positive; use TryLock to not wait at all", d)
			return
		}
		s.waitTimeout = d
	})
}

// WithDeadlockCheck sets after which time a waiting Lock or RLock is examined for a deadlock: owners that hold
// locks and wait for each other, in one process or in several. In a deadlock, the wait that began last ends
// with [ErrDeadlock], within about 2 s of this time, or 4 s if another one has waited for long. The others
// go on when its owner unlocks what it holds.
// Default: 5 s. 0: waits are not examined. d must not be negative.
//
// Every process that takes part needs the check. An owner that holds no other lock is in no deadlock, and a
// shorter wait costs nothing. After d, an owner that holds other locks sends two commands and more in each
// half second, and after 30 s in each two seconds: it publishes its wait beside each lock that it holds, and
// follows the waits of others. For the error of its wait, any other waiter sends one command a minute. If
// answers take longer than a tenth of a second, or if a hundred owners of a process wait for so long, it takes
// some seconds more to find a deadlock.
//
// A deadlock is reported by the hook Deadlock, and in the error of a wait that ends for another reason.
// It ends no wait if one of the owners is a fixed one ([WithOwner]), because another goroutine may unlock
// what such an owner holds; nor with [WithDeadlockReport]. A wait behind several readers is in a deadlock
// if each of them is, and a wait for the names of a MultiMutex if the holder of one of them is. A wait
// for a permit of a Semaphore is in none, because permits have no owner that could wait. The option has
// no effect on a quorum.
func WithDeadlockCheck(d time.Duration) Option {
	return option(func(s *settings) {
		if d < 0 {
			s.reject("WithDeadlockCheck(%v): must not be negative", d)
			return
		}
		s.deadlockCheck = d
	})
}

// WithDeadlockReport makes deadlocks be reported only: by the hook Deadlock, and in the error of a wait that
// ends for another reason. The Lock goes on waiting. Default: off. See [WithDeadlockCheck].
func WithDeadlockReport() Option {
	return option(func(s *settings) { s.deadlockReported = true })
}

// WithUnlockTimeout limits how long Unlock, RUnlock and [Permit.Release] wait for Redis to confirm.
// Default: 5 s, or the TTL if that is shorter. d must be positive and at most the TTL.
func WithUnlockTimeout(d time.Duration) Option {
	return option(func(s *settings) {
		if d <= 0 {
			s.reject("WithUnlockTimeout(%v): must be positive", d)
			return
		}
		s.unlockTimeout = d
	})
}

// WithAsyncUnlock makes the Unlock, RUnlock or [Permit.Release] that ends a hold return without waiting
// for Redis. The hold has ended in this process by then, and the release is sent in the background. So
// Lock and Unlock of a free name together wait for one round trip instead of two. An Unlock that only
// decreases the hold count waits as usual. Default: off.
//
// If a Lock of the same Mutex, by any owner of this process, comes before the release is sent, it gets the
// lock at once, as a local hand-over. A later Lock waits for the answer to the release. The next Lock of
// the same owner always waits for that answer on a quorum, with every other kind of lock, WithFencing,
// WithReplicas, and WithoutRenewal. A TryLock of the same owner waits, too, for WithUnlockTimeout at most.
// A TryLock of another owner in this process may return false until then.
//
// Unlock still returns the errors that need no answer from Redis: ErrNotHeld, ErrClosed, and ErrLost if
// this process has already noticed the loss. If the release fails, the hook Released receives the error, on
// another goroutine, and [Client.Close] returns the last such error. The key may then remain for up to one
// TTL. It may also remain if the process ends before the release is sent. So call Client.Close, which waits
// for the releases. While 1 000 releases of the client are not answered, Unlock waits as usual.
func WithAsyncUnlock() Option {
	return option(func(s *settings) { s.asyncUnlock = true })
}

// WithLinger makes the Unlock that ends a hold of a [Client.Mutex] keep the lock for this process, for up to
// d: the next Lock or TryLock of the Mutex in this process, by any owner, then has it at once, without a
// command. It is for processes that use the same names again and again, such as a consumer and its
// accounts. Default: 0, off. d must be at most a third of the TTL.
//
// The hold has ended as after any Unlock: Unlock does not block, and the hook Released is called when the
// lock is handed over or released. While it lingers, the lock is taken for other processes. If one of them
// waits for it, it notifies this process, which releases the lock at once; so a waiter is delayed by one
// message. A TryLock of another process is refused, though nobody holds the lock. [Mutex.State] shows an
// owner of this process, which need not be the last one. If the key is deleted or forced open by another
// process meanwhile, the next hold is lost at its first renewal. If the process ends without [Client.Close],
// the key remains for up to one TTL.
//
// The lock does not linger, and Unlock does what it does without this option,
//   - if another owner already waits;
//   - if the subscription by which others make themselves known (relock_wanted:*) is interrupted or forbidden. As long
//     as it is neither confirmed nor known to be that, the lock lingers for a second at most;
//   - if the min hold is not over;
//   - with WithLocalHandoffs(0), WithFencing, WithReplicas or WithoutRenewal;
//   - on a quorum, and for other kinds of lock.
//
// A Lock WithFencing, WithReplicas or WithoutRenewal cannot take over a lock that lingers: it waits until
// that lock is released. While that release is in flight, a TryLock in this process may return false. Redisson,
// and users without permission for the line, cannot notify this process: they get the lock when it has not
// been used for d, or after a TTL.
//
// The first such Unlock of a name subscribes to a channel, until the lock is no longer used. As long as the
// lock is used or lingers, one command in each sixth of the TTL keeps its lease. A Lock with a longer TTL
// than the last one sends one more, which it does not wait for.
//
// A TTL that is too short for d makes a handle of [Client.Mutex] invalid, and is right for all others.
func WithLinger(d time.Duration) Option {
	return option(func(s *settings) {
		if d < 0 {
			s.reject("WithLinger(%v): must not be negative", d)
			return
		}
		s.linger = d
	})
}

// WithOwner gives the handle a fixed owner, in place of the calling goroutine. Every goroutine that
// uses a handle with this owner locks and unlocks as that owner, so a lock can be passed between
// goroutines. Goroutines that share an owner do not exclude each other: give each job its own id, for
// example "job-17". If several of them wait for a lock, only one sends requests, and each has its own
// timeout.
//
// The id must contain a character that is not a digit, must not contain ':', and must not be "write".
// Owners of different clients never collide.
func WithOwner(id string) MutexOption {
	return mutexOption(func(s *settings) {
		switch {
		case id == "":
			s.reject("WithOwner(%q): the id must not be empty", id)
		case strings.Contains(id, ":"):
			s.reject("WithOwner(%q): the id must not contain ':'", id)
		case ":"+id == keys.WriteSuffix:
			s.reject("WithOwner(%q): this id is reserved, use another", id)
		case strings.Trim(id, "0123456789") == "":
			s.reject("WithOwner(%q): the id must not be all digits, because goroutines have such ids", id)
		default:
			s.owner = id
		}
	})
}

// ownerKey is the key by which a context carries its owner.
type ownerKey struct{}

// NewOwner returns a child of ctx with a new owner for [WithOwnerFrom]. If ctx already carries an
// owner, the new owner does not share its holds. If ctx is nil, NewOwner returns nil. No round trip.
func NewOwner(ctx context.Context) context.Context {
	if ctx == nil {
		return nil // WithOwnerFrom returns an error
	}
	return context.WithValue(ctx, ownerKey{}, uuid.NewString())
}

// WithOwnerFrom gives the handle the owner that ctx carries, as [WithOwner] does with an id. Call
// [NewOwner] where a request or a job begins. Each function that locks with that ctx is then the same
// owner, on every goroutine. Goroutines that share ctx, or use children of it, do not exclude each
// other. If ctx carries no owner, or is nil, the error is [ErrInvalidOption].
func WithOwnerFrom(ctx context.Context) MutexOption {
	return mutexOption(func(s *settings) {
		if ctx == nil {
			s.reject("WithOwnerFrom: the context is nil")
			return
		}
		owner, carried := ctx.Value(ownerKey{}).(string)
		if !carried {
			s.reject("WithOwnerFrom: the context carries no owner: make it with NewOwner")
			return
		}
		s.owner = owner
	})
}

// WithFencing mints a token with each new acquisition: a number that is higher than all earlier tokens
// of the lock. A resource that compares tokens can reject writes of an earlier holder. Default: off. It
// has no effect on the read side of an RWMutex.
//
// The counter is a key beside the lock on Redis. It expires a day after its last use. Tokens keep
// rising after that, and after Redis has lost its data, because a new counter starts from the clock of
// the server. Tokens can fall only if that clock was also set back at the same time.
//
// A re-entry keeps the token of the hold. It mints a token only if the hold has none, or if a
// MultiMutex adds names. On a quorum each Lock takes a second round trip.
func WithFencing() Option {
	return option(func(s *settings) { s.Fencing, s.CounterLife = true, counterLife })
}

// WithSharedFencing is [WithFencing] with a counter that never expires. Java's getFencedLock for the
// same name can continue that counter. Default: off. On a quorum it is [ErrUnsupported].
func WithSharedFencing() Option {
	return option(func(s *settings) { s.Fencing, s.CounterLife = true, 0 })
}

// WithoutReentrancy makes a second Lock by the owner of the lock fail with [ErrReentrant]; on an
// RWMutex, a second one on the same side. Default: the hold count increases.
func WithoutReentrancy() Option {
	return option(func(s *settings) { s.reentrant = false })
}

// WithReplicas makes a lease count only when n replicas have confirmed it. A failover to one of those
// replicas then does not forget the lock. Lock, TryLock, re-entry, hand-over and renewal add a WAIT to
// their round trip, for at most timeout. Unlock does so only if it leaves a placeholder ([WithMinHold]).
// Default: off.
//
// This reduces the risk but does not remove it: unless n covers every replica, one without the lock may
// be promoted. If the clocks of the servers differ, the lease is shorter by the difference. A master
// that is cut off from its replicas grants no lock.
//
// If too few replicas confirm in time:
//
//   - A new lock is released, and Lock and TryLock return [ErrNotReplicated]. Lock does not
//     continue to wait.
//   - A re-entry returns ErrNotReplicated, and the hold is unchanged.
//   - A renewal has failed. Hooks.RenewFailed is called, and the watchdog retries. If no retry
//     succeeds, the hold is lost before its lease ends.
//
// If a replica is down, a TryLock that returns false takes as long as timeout.
//
// Each request uses a connection of the Client's own until the replicas have answered: for each master
// up to half of PoolSize, but at least 8, and 8 more for renewals and re-entries. The Redis user needs
// permission for WAIT. n must be at least 1. The timeout is from 10 ms to a sixth of the TTL, rounded up
// to whole milliseconds; the answer may come up to 100 ms later. With a Redis client that is neither a
// *redis.Client nor a *redis.ClusterClient, and on a quorum, it is [ErrUnsupported].
func WithReplicas(n int, timeout time.Duration) Option {
	return option(func(s *settings) {
		switch {
		case n < 1:
			s.reject("WithReplicas(%d, %v): must be at least 1 replica", n, timeout)
		case timeout < minReplicasWait:
			s.reject("WithReplicas(%d, %v): the timeout must be at least %v", n, timeout, minReplicasWait)
		case timeout > maxTTL:
			s.reject("WithReplicas(%d, %v): the timeout must be at most a sixth of the TTL", n, timeout)
		default:
			s.replicas = redisexec.Replicas{N: n, Timeout: (timeout + time.Millisecond - 1).Truncate(time.Millisecond)}
		}
	})
}

// WithLocalHandoffs sets how often in a row a lock goes to the next waiter of the same process while
// other processes wait. If no other process waits, a Mutex may go to more waiters of the same process in
// a row. With 0 the lock never goes directly to a waiter of the same process. Default: 16. The option has
// no effect on a FairMutex, on a Semaphore, or on the readers of an RWMutex.
func WithLocalHandoffs(n int) Option {
	return option(func(s *settings) {
		if n < 0 {
			s.reject("WithLocalHandoffs(%d): must not be negative", n)
			return
		}
		s.localHandoffs = n
	})
}

// WithSafetyPoll limits how long a waiter sleeps if its message is lost. On a quorum the limit is d. On
// one Redis it is a third of the shortest of 5 s, twice d, and the TTL; if d is less than 50 ms, it is d,
// but at most 33 ms. Default: 5 s. d must be at least 10 ms.
func WithSafetyPoll(d time.Duration) Option {
	return option(func(s *settings) {
		if d < minSafetyPoll {
			s.reject("WithSafetyPoll(%v): must be at least %v", d, minSafetyPoll)
			return
		}
		s.SafetyPoll = d
	})
}

// WithHooks sets the functions that observe the locks. Default: none. Hooks of a handle replace the
// hooks of the client; [JoinHooks] combines them.
func WithHooks(h Hooks) Option {
	return option(func(s *settings) { s.hooks = h })
}

// WithPrefix prepends prefix to every name of the client. All keys and channels are derived from the
// result, so the patterns of an ACL can distinguish them. Default: none.
func WithPrefix(prefix string) ClientOption {
	return clientOption(func(s *clientSettings) { s.prefix = prefix })
}

// WithShardedPubSub wakes waiters by sharded pub/sub (SPUBLISH, SSUBSCRIBE), whose messages stay within
// the shard of the lock. Ordinary messages of a Cluster go to every node. Default: off. It needs a
// *redis.ClusterClient: otherwise New returns [ErrUnsupported], and so does NewQuorum. It needs Redis
// 7: on an older server, or without the permission, locks work, but waiters poll.
//
// The client has one connection to each master that has a lock with waiters. If a channel's slot moves,
// or its master fails, the client finds the new master and subscribes again. Meanwhile its waiters
// poll.
//
// Use the same setting for all clients of one deployment, and for Redisson, which uses sharded pub/sub
// on such a Cluster unless its shardedSubscriptionMode is OFF. Clients with different settings exclude
// each other, but do not receive each other's messages. Their waiters then depend on the safety poll.
func WithShardedPubSub() ClientOption {
	return clientOption(func(s *clientSettings) { s.sharded = true })
}

// WithoutPipelining sends each command separately, on a connection of the Redis client's pool. By default
// the commands of all goroutines share one connection to each master. Use this option if a proxy does not
// allow many commands in flight on one connection, or if all connections have to be those of the pool.
//
// Promises and round trips are the same, but a busy process locks less often. For example, with a
// PoolSize of 20, 64 goroutines with different names together reach 0.6 times the default rate, and 0.3
// times if Redis is 1 ms away. A single goroutine is slower, too.
//
// Commands of the library compete with those of the application for connections. If all connections are
// in use for as long as a lease, holds are lost: make PoolSize large enough for both. If a command is
// given up while it is in flight, the next commands for the same keys wait for it, so that they do not
// overtake it. Each waits for up to a second.
func WithoutPipelining() ClientOption {
	return clientOption(func(s *clientSettings) { s.pipelined = false })
}

// WithClientInfo registers the client on Redis while it holds or waits. A hold on Redis contains only a
// uuid. With this option the key relock_client:<uuid> identifies the process: it is a hash with host,
// pid, program, and since, the time when the client was made. The key does not have the prefix of
// [WithPrefix]. Default: off.
//
// The client registers in the background: at its first hold, and then at most once a minute while there
// are holds or waiters. That takes one command for the current uuid (see [Client.ID]), and one for each
// earlier uuid that a hold or a waiter still has. Lock neither waits for this nor fails because of it;
// after an error the client tries again a minute later. The key expires 3 minutes after its last
// refresh, and Close deletes it. On a quorum it is on all nodes. The Redis user needs permission for
// the keys relock_client:* and for HSET, PEXPIRE and HDEL.
func WithClientInfo() ClientOption {
	return clientOption(func(s *clientSettings) { s.registers = true })
}
