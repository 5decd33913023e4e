package relock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/terms"
)

// ClientOption is an option of [New] and [NewQuorum]. One that is also a [MutexOption] sets
// the default of every lock of the client.
type ClientOption interface{ applyToClient(*clientSettings) }

// MutexOption is an option of one handle, of any kind of lock: of [Client.Mutex],
// [Client.FairMutex], [Client.MultiMutex] and [Client.RWMutex].
type MutexOption interface{ applyToMutex(*settings) }

// Option is valid for a client and for a handle.
type Option interface {
	ClientOption
	MutexOption
}

// settings are the options of a handle.
type settings struct {
	terms.Terms
	hooks Hooks
}

// clientSettings are the options of a client.
type clientSettings struct {
	settings
	prefix    string
	sharded   bool
	pipelined bool
	registers bool
}

// pipelinedByDefault is false only where tests are run without.
var pipelinedByDefault = true

func defaultSettings() clientSettings {
	return clientSettings{pipelined: pipelinedByDefault, settings: settings{Terms: terms.Default()}}
}

// newClientSettings returns the defaults, changed by opts.
func newClientSettings(opts []ClientOption) (clientSettings, error) {
	s := defaultSettings()
	for _, opt := range opts {
		if opt == nil {
			return s, fmt.Errorf("%w: a ClientOption is nil", ErrInvalidOption)
		}
		opt.applyToClient(&s)
	}
	s.EndList()
	resolved := s.settings
	resolved.apply(nil)
	return s, resolved.Err
}

// apply makes s, the settings of a client, those of a handle with opts.
func (s *settings) apply(opts []MutexOption) {
	for _, opt := range opts {
		if opt == nil {
			s.Reject("a MutexOption is nil")
			continue
		}
		opt.applyToMutex(s)
	}
	s.EndList()
	s.Resolve()
}

type option func(*settings)

func (o option) applyToClient(s *clientSettings) { o(&s.settings) }
func (o option) applyToMutex(s *settings)        { o(s) }

type mutexOption func(*settings)

func (o mutexOption) applyToMutex(s *settings) { o(s) }

type clientOption func(*clientSettings)

func (o clientOption) applyToClient(s *clientSettings) { o(s) }

// WithTTL sets the lease on Redis: how long a lock outlives a holder that has crashed.
// Default: 30 s. At least 100 ms, at most 100 years; rounded up to whole milliseconds.
func WithTTL(d time.Duration) Option {
	return option(func(s *settings) {
		if d < terms.MinTTL {
			s.Reject("WithTTL(%v): must be at least %v", d, terms.MinTTL)
			return
		}
		if d > terms.MaxTTL {
			s.Reject("WithTTL(%v): must be at most %v", d, terms.MaxTTL)
			return
		}
		s.TTL = (d + time.Millisecond - 1).Truncate(time.Millisecond)
	})
}

// WithRenewInterval turns renewal on and sets the watchdog's period. Default: a third of
// the TTL. At least 10 ms, at most two thirds of the TTL, so that a failed renewal can be
// tried again in time. Read holds of an RWMutex are renewed at least every 10 s.
//
// Renewals that a client has to send at the same time go as one command, of up to 100 keys. To have
// more of them due together, the first renewal of a hold comes up to a tenth of the interval sooner.
// Renewals of read holds, WithReplicas, on a quorum, and on a Cluster of names without a common {tag}
// are sent alone.
func WithRenewInterval(d time.Duration) Option {
	return option(func(s *settings) {
		if d < terms.MinRenewInterval {
			s.Reject("WithRenewInterval(%v): must be at least %v", d, terms.MinRenewInterval)
			return
		}
		s.Renewed, s.RenewInterval, s.Given.Interval = true, d, true
	})
}

// WithoutRenewal turns renewal off: the hold is lost when the TTL has passed (Redisson's leaseTime).
// Default: renewed. Beside WithRenewInterval or WithMaxHold it is ErrInvalidOption. On a handle it
// replaces those options of the client; WithRenewInterval on a handle turns renewal on again.
func WithoutRenewal() Option {
	return option(func(s *settings) {
		s.Renewed, s.RenewInterval, s.MaxHold = false, 0, 0
		s.Given.Fixed = true
	})
}

// WithMaxHold limits a stuck or forgotten holder: the watchdog stops renewing d after the acquisition,
// and the hold is lost at most one TTL later. d is at least the TTL. Default: no limit.
func WithMaxHold(d time.Duration) Option {
	return option(func(s *settings) {
		if d <= 0 {
			s.Reject("WithMaxHold(%v): must be positive", d)
			return
		}
		s.MaxHold, s.Given.MaxHold = min(d, terms.MaxTTL), true // that is for ever
	})
}

// WithMinHold keeps the lock taken for at least d, so that a short job does not run again on a machine
// whose clock is late: if the last Unlock comes earlier, the key lives on until d after the
// acquisition. Default: none. It must be positive, and at most 100 years; rounded up to whole
// milliseconds.
//
// The hold itself ends with Unlock as any hold does: its context, its watchdog, its levels,
// Hooks.Released. Unlock takes one round trip, and returns nil. Until d is over no owner gets the lock,
// not even the one that had it: TryLock returns false, and Lock waits. Then the first waiter gets it
// within some milliseconds. Mutex.State names the owner that had it, with :kept: and a number after it,
// and ForceUnlock frees it. Close also keeps what it ends, and does not wait for the end of d.
//
//   - Each level asks for d from its own Lock on, and the longest counts for the hold.
//   - After a loss (a ForceUnlock is one) nothing is kept. If a process dies, its lock ends with its
//     TTL as always, which may be sooner than d: if that must not happen, use WithTTL with at least d.
//   - The kept key is not renewed. d may be longer than the TTL and than WithMaxHold.
//   - Of an RWMutex each side is kept as the same side: after a reader others may read. A writer that
//     still reads when it unlocks is kept as a reader.
//   - A MultiMutex keeps all of its names. On a quorum most nodes have to keep the lock, and
//     WithReplicas so many replicas have to confirm it; else Unlock returns an error.
//   - If Redis does not answer, it is told in the background. Until then the lease goes on: the key may
//     live for the TTL or d, whichever is longer; if Redis does not come back in time, only for the
//     TTL.
func WithMinHold(d time.Duration) Option {
	return option(func(s *settings) {
		if d <= 0 || d > terms.MaxTTL {
			s.Reject("WithMinHold(%v): must be positive, and at most %v", d, terms.MaxTTL)
			return
		}
		s.MinHold = (d + time.Millisecond - 1).Truncate(time.Millisecond)
	})
}

// WithWaitTimeout limits the wait of each Lock and RLock, in addition to its context: after d it
// returns ErrTimeout. Default: only the context limits it.
func WithWaitTimeout(d time.Duration) Option {
	return option(func(s *settings) {
		if d <= 0 {
			s.Reject("WithWaitTimeout(%v): must be positive; use TryLock to not wait at all", d)
			return
		}
		s.WaitTimeout = d
	})
}

// WithUnlockTimeout limits how long Unlock and RUnlock try to tell Redis. Default: 5 s, or the TTL if
// that is shorter. At most the TTL.
func WithUnlockTimeout(d time.Duration) Option {
	return option(func(s *settings) {
		if d <= 0 {
			s.Reject("WithUnlockTimeout(%v): must be positive", d)
			return
		}
		s.UnlockTimeout = d
	})
}

// WithOwner gives the handle a fixed owner instead of the calling goroutine. Every goroutine that uses
// a handle with this owner locks and unlocks as that owner, so a lock can be passed between goroutines.
// Goroutines that share an owner do not exclude each other: give each job its own owner ("job-17"). If
// several of them wait for a lock, one waits for all, and each has its own timeout. The
// id must contain a character that is not a digit, and no ':'; "write" is reserved. Owners of different
// clients never collide.
func WithOwner(id string) MutexOption {
	return mutexOption(func(s *settings) {
		switch {
		case id == "":
			s.Reject("WithOwner(%q): the id must not be empty", id)
		case strings.Contains(id, ":"):
			s.Reject("WithOwner(%q): the id must not contain ':'", id)
		case ":"+id == keys.WriteSuffix:
			s.Reject("WithOwner(%q): this id is reserved, use another", id)
		case strings.Trim(id, "0123456789") == "":
			s.Reject("WithOwner(%q): the id must not be all digits, because goroutines have such ids", id)
		default:
			s.Owner = id
		}
	})
}

// ownerKey is the key by which a context carries its owner.
type ownerKey struct{}

// NewOwner returns a child of ctx that carries a new owner, for WithOwnerFrom. The new owner does not
// share the holds of an owner that ctx already carries. A nil ctx stays nil. No round trip.
func NewOwner(ctx context.Context) context.Context {
	if ctx == nil {
		return nil // WithOwnerFrom says so
	}
	return context.WithValue(ctx, ownerKey{}, uuid.NewString())
}

// WithOwnerFrom is WithOwner with the owner that ctx carries. NewOwner puts it there. Call NewOwner
// where a request or a job begins. Each function that locks with that ctx is then the same owner, on
// every goroutine. Goroutines that share ctx, or have children of it, do not exclude each other. It is
// ErrInvalidOption if ctx carries no owner, or is nil.
func WithOwnerFrom(ctx context.Context) MutexOption {
	return mutexOption(func(s *settings) {
		if ctx == nil {
			s.Reject("WithOwnerFrom: the context is nil")
			return
		}
		owner, carried := ctx.Value(ownerKey{}).(string)
		if !carried {
			s.Reject("WithOwnerFrom: the context carries no owner: make it with NewOwner")
			return
		}
		s.Owner = owner
	})
}

// WithFencing mints a token with every new acquisition: a number that is higher with each holder, for a
// resource that refuses a lower one than it has seen. The counter is next to the lock on Redis, and
// expires a day after its last use. Tokens still rise after that, and after Redis has lost its data,
// because without a counter they start from the server's clock. They can fall only if that clock was
// set back at the same time. A re-entry keeps the token of the hold; it mints one only if the hold has
// none, or if a MultiMutex adds names. On a quorum each Lock takes a second round trip. No effect on
// the read side of an RWMutex. Default: off.
func WithFencing() Option {
	return option(func(s *settings) { s.Fencing, s.CounterLife = true, terms.CounterLife })
}

// WithSharedFencing is WithFencing on a counter that never expires, which Java's
// getFencedLock of the same name can go on counting. Default: off. On a quorum it is
// ErrUnsupported.
func WithSharedFencing() Option {
	return option(func(s *settings) { s.Fencing, s.CounterLife = true, 0 })
}

// WithoutReentrancy makes a second Lock by an owner that holds the lock fail with
// ErrReentrant; of an RWMutex, a second one on the same side. Default: it adds a level.
func WithoutReentrancy() Option {
	return option(func(s *settings) { s.Reentrant = false })
}

// WithReplicas makes a lease count only when n replicas have confirmed it, so that a failover to one of
// those does not forget it. Lock, TryLock, re-entry, hand-over and renewal add a WAIT to their round
// trip, for at most timeout; only Unlock does not. Default: off.
//
// If too few replicas confirm a new lock in time, it is given back, and Lock and TryLock return
// ErrNotReplicated: Lock does not go on waiting. If too few confirm a re-entry, it fails in the same
// way and leaves the hold as it was. If too few confirm a renewal, it has failed: Hooks.RenewFailed is
// called, the watchdog tries again, and if that does not help, the hold is lost before its lease ends.
// If a replica is down, a TryLock that returns false takes as long as timeout.
//
// It makes a forgotten lock less likely, no more: a replica that has not confirmed may be promoted,
// unless n is the number of all replicas, and clocks of servers that differ shorten the lease by the
// difference. A master that is cut off from its replicas grants nothing.
//
// Each request takes a connection of the Client's own for as long as the replicas take: half as many
// for each master as PoolSize says, but at least 8. Users need the permission for WAIT. n is at least
// 1; the timeout at least 10 ms, at most a sixth of the TTL, rounded up to whole milliseconds, and up
// to 100 ms late. It is ErrUnsupported with a Redis client that is neither a *redis.Client nor a
// *redis.ClusterClient, and on a quorum.
func WithReplicas(n int, timeout time.Duration) Option {
	return option(func(s *settings) {
		switch {
		case n < 1:
			s.Reject("WithReplicas(%d, %v): must be at least 1 replica", n, timeout)
		case timeout < terms.MinReplicasWait:
			s.Reject("WithReplicas(%d, %v): the timeout must be at least %v", n, timeout, terms.MinReplicasWait)
		case timeout > terms.MaxTTL:
			s.Reject("WithReplicas(%d, %v): the timeout must be at most a sixth of the TTL", n, timeout)
		default:
			s.Replicas = redisexec.Replicas{N: n, Timeout: (timeout + time.Millisecond - 1).Truncate(time.Millisecond)}
		}
	})
}

// WithLocalHandoffs sets how many times in a row a lock is handed to the next waiter of the same
// process before waiters of other processes get their turn. If no other process waits, a Mutex goes on
// longer. 0 never hands over within the process. Default: 16. It has no effect on a FairMutex and on
// the readers of an RWMutex.
func WithLocalHandoffs(n int) Option {
	return option(func(s *settings) {
		if n < 0 {
			s.Reject("WithLocalHandoffs(%d): must not be negative", n)
			return
		}
		s.LocalHandoffs = n
	})
}

// WithSafetyPoll sets how long a waiter sleeps at most if its message is lost. At least 10 ms. Default:
// 5 s. On one Redis a waiter sleeps for a third of the shortest of 5 s, twice d and the TTL; on a
// quorum for d.
func WithSafetyPoll(d time.Duration) Option {
	return option(func(s *settings) {
		if d < terms.MinSafetyPoll {
			s.Reject("WithSafetyPoll(%v): must be at least %v", d, terms.MinSafetyPoll)
			return
		}
		s.SafetyPoll = d
	})
}

// WithHooks sets the functions that observe the locks. Default: none. Hooks of a handle replace those
// of the client; JoinHooks combines both.
func WithHooks(h Hooks) Option {
	return option(func(s *settings) { s.hooks = h })
}

// WithPrefix puts prefix before every name of the client. All keys and channels are made from the
// result, so the patterns of an ACL can distinguish them. Default: none.
func WithPrefix(prefix string) ClientOption {
	return clientOption(func(s *clientSettings) { s.prefix = prefix })
}

// WithShardedPubSub wakes waiters by sharded pub/sub (SPUBLISH, SSUBSCRIBE), which stays within the
// lock's shard of a Cluster; ordinary messages go to every node. Default: off. It needs a
// *redis.ClusterClient, or New returns ErrUnsupported, as NewQuorum always does. It needs Redis 7: on
// an older one, or for a user without the permission, locks work, but waiters have to poll.
//
// There is one connection to each master with a lock that has waiters. If a channel's slot moves, or
// its master fails, the client finds the new master and subscribes again; its waiters poll meanwhile.
//
// All clients of one deployment should use the same setting, and so should Redisson, which uses sharded
// pub/sub on such a Cluster unless its shardedSubscriptionMode is OFF. Clients that differ still
// exclude each other, but do not hear each other's wake-ups: a waiter then finds out at its safety
// poll.
func WithShardedPubSub() ClientOption {
	return clientOption(func(s *clientSettings) { s.sharded = true })
}

// WithoutPipelining sends each command alone, on a connection of the Redis client's pool. By default
// the commands of all goroutines share a connection to each master, by go-redis' auto-pipelining.
// go-redis marks that as experimental, and may change it with a minor version. Use this option if you
// do not want to depend on it, or if it does not work with a newer go-redis.
//
// Promises and round trips are the same. A busy process does less: 64 goroutines that lock a name each
// do 0.6 of what they do by default, and 0.3 where Redis is 1 ms away, with a PoolSize of 20; one
// goroutine alone does the same. Commands compete with the application's own for connections. If all
// connections stay in use for as long as a lease, holds are lost: make PoolSize large enough for both.
// If a command was given up on its way, the next ones for its keys wait for it, up to a second each
// time, so that they do not overtake it.
func WithoutPipelining() ClientOption {
	return clientOption(func(s *clientSettings) { s.pipelined = false })
}

// WithClientInfo registers the client on Redis while it holds or waits. A hold shows only a uuid; with
// this you can find its process: relock_client:<uuid> is a hash of host, pid, program and since, which
// is when the client was made. The key has no prefix of WithPrefix. Default: off.
//
// The client registers in the background, at the first hold and then once a minute at most, while there
// are holds or waiters: one command for the uuid of Client.ID, and one for each earlier uuid that a
// hold or a waiter still has. No Lock waits for that or fails by it: an error is ignored until a minute
// later. The key ends 3 minutes after the last refresh. Close removes it. On a quorum it is on all
// nodes. Users need the permissions for the keys relock_client:* and for HSET, PEXPIRE and HDEL.
func WithClientInfo() ClientOption {
	return clientOption(func(s *clientSettings) { s.registers = true })
}
