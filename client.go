package relock

import (
	"cmp"
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/quorum"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/wake"
)

// Client makes locks on one Redis deployment, or on a quorum of several, and holds them under its own
// uuid. Make one Client for each process, and close it before the Redis clients. All methods are safe
// for concurrent use.
//
// While there are waiters, or [Mutex.Wanted] or [WithLinger] is in use, a Client has one pub/sub connection
// to each deployment. With [WithShardedPubSub] it has one to each master that has waiters. Commands share
// one pipeline to each master, unless the Client was made [WithoutPipelining]. The connection of the pipeline
// is not in the pool of the Redis client, except behind Sentinel.
type Client struct {
	settings settings
	prefix   string
	cluster  bool                  // the names of a MultiMutex need a common tag
	supports func(*settings) error // returns why a handle with these settings cannot be used there

	plain *kind // of Mutex
	multi *kind // of MultiMutex
	fair  *kind // of FairMutex; nil on a quorum
	write *kind // of RWMutex; nil on a quorum, as read is
	read  *kind

	permits *kind // of Semaphore; nil on a quorum

	session *session
}

// New returns a client for the Redis deployment of rdb: a single server, Sentinel, or a Cluster. A
// client made by redis.NewFailoverClusterClient counts as a Cluster. To use a [Client.MultiMutex] with
// any names behind Sentinel, use redis.NewFailoverClient.
//
// New does not block and sends nothing. It starts one goroutine, which runs until [Client.Close]. Close
// does not close rdb: close rdb after the Client.
//
// Most commands, or all, bypass the process hooks of rdb. To observe locks, use [WithHooks]. If rdb
// panics in a call, that call returns an error. If rdb panics while it subscribes, waiters poll.
//
// Errors: [ErrInvalidOption] if rdb is nil or an option is invalid. [ErrUnsupported] for a *redis.Ring,
// because clients may disagree about where a name lives; WithShardedPubSub with anything but a
// *redis.ClusterClient; and WithReplicas with anything but a *redis.ClusterClient or a *redis.Client.
func New(rdb redis.UniversalClient, opts ...ClientOption) (*Client, error) {
	if err := usableRedis(rdb); err != nil {
		return nil, err
	}
	s, err := newClientSettings(opts)
	if err != nil {
		return nil, err
	}
	if s.replicas.N > 0 {
		if err := redisexec.CanWait(rdb); err != nil {
			return nil, err
		}
	}
	if _, cluster := rdb.(*redis.ClusterClient); s.sharded && !cluster {
		return nil, fmt.Errorf("%w: WithShardedPubSub needs a *redis.ClusterClient, not a %T", ErrUnsupported, rdb)
	}
	return newClient(rdb, s, clock.OfClient()), nil
}

// usableRedis returns why rdb cannot be used for locks.
func usableRedis(rdb redis.UniversalClient) error {
	if v := reflect.ValueOf(rdb); rdb == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("%w: the Redis client is nil", ErrInvalidOption)
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return fmt.Errorf("%w: a *redis.Ring, because two of them may map a name to different servers; use a *redis.Client or a *redis.ClusterClient", ErrUnsupported)
	}
	return nil
}

// newClient returns a client on one deployment.
func newClient(rdb redis.UniversalClient, s clientSettings, now clock.Clock) *Client {
	var hub messageHub = wake.NewHub(rdb, hubConfig)
	if cluster, ok := rdb.(*redis.ClusterClient); ok && s.sharded {
		hub = wake.NewShards(cluster, hubConfig)
	}
	c := newClientOn([]redis.UniversalClient{rdb}, hub, s, now)
	c.session.onOne()
	c.supports = func(s *settings) error {
		if s.replicas.N > 0 {
			return redisexec.CanWait(rdb)
		}
		return nil
	}
	c.addKinds(hub, s.sharded)
	return c
}

// newClientOn returns a client of these deployments, without any kind of lock yet.
func newClientOn(rdbs []redis.UniversalClient, hub hub, s clientSettings, now clock.Clock) *Client {
	c := &Client{settings: s.settings, prefix: s.prefix}
	for _, rdb := range rdbs {
		_, cluster := rdb.(*redis.ClusterClient)
		c.cluster = c.cluster || cluster
	}
	c.session = newSession(rdbs, hub, &s, now)
	c.session.scattered = c.cluster && !s.sharded
	return c
}

// releaseWindow is how far apart the messages of the nodes about one release may be.
const releaseWindow = 5 * time.Millisecond

// NewQuorum returns a client for several independent Redis masters, the nodes. A majority of the nodes,
// len(rdbs)/2+1, holds each lock: the algorithm known as Redlock. Locks work as long as a majority of
// the nodes works, at the speed of the fastest majority. Use 3 or 5 nodes. Give the clients of all
// processes the same nodes, in any order. Each node should be a single server: behind Sentinel, or on a
// Cluster, a failover can lose a vote.
//
// NewQuorum does not block and sends nothing. Close does not close rdbs: close them after the Client.
//
// Nothing is replicated, so no failover can lose a lock. One owner holds a lock at a time, provided
// that each node that granted it keeps its data, and that clocks of nodes and clients run at about the
// same rate. A node that crashes and returns without its data within a TTL breaks this. Run nodes with
// appendfsync always, or restart a crashed node only after a TTL. Where two holders would do damage,
// also use [WithFencing], and let the resource reject a lower token.
//
// [Client.Mutex] and [Client.MultiMutex] work as on one Redis, with these differences:
//
//   - Every request goes to all nodes at once. One round trip in the documentation of a method is a
//     round trip to the fastest majority. A Lock WithFencing takes one more.
//   - A lease is valid when a majority has confirmed it. It is counted from before the first node
//     was asked.
//   - A request without a majority is undone on every node. If several owners try at the same
//     time, TryLock may return false to all of them.
//   - Unlock, State and ForceUnlock wait for slow nodes for at most half a second.
//   - The errors of single nodes are reported only if the call fails, as a [*QuorumError].
//
// A server has one vote. A node is asked for its run_id when it answers for the first time. If two
// nodes are the same server, Lock and TryLock return [ErrInvalidOption], with both addresses. A node
// whose user lacks the permission +info is not compared.
//
// Errors: [ErrInvalidOption] if rdbs is empty, contains nil, the same client or the same address
// twice, or if an option is invalid. [ErrUnsupported] for a *redis.Ring, WithShardedPubSub,
// WithReplicas and WithSharedFencing. A handle with one of the last two options returns the same
// error, and so does a FairMutex, RWMutex or Semaphore.
func NewQuorum(rdbs []redis.UniversalClient, opts ...ClientOption) (*Client, error) {
	if len(rdbs) == 0 {
		return nil, fmt.Errorf("%w: NewQuorum needs at least one Redis client; use 3 or 5", ErrInvalidOption)
	}
	for i, rdb := range rdbs {
		if err := usableRedis(rdb); err != nil {
			return nil, fmt.Errorf("%w: Redis client %d of %d", err, i+1, len(rdbs))
		}
		for j, other := range rdbs[:i] {
			same := reflect.ValueOf(rdb).Comparable() && other == rdb
			addr := redisexec.SharedAddress(rdb, other)
			if same || addr != "" {
				return nil, fmt.Errorf("%w: Redis clients %d and %d of %d connect to the same server (%s), which would have two votes: pass each server to NewQuorum once",
					ErrInvalidOption, j+1, i+1, len(rdbs), cmp.Or(addr, redisexec.AddressOf(rdb), "an unknown address"))
			}
		}
	}
	s, err := newClientSettings(opts)
	if err != nil {
		return nil, err
	}
	if s.sharded {
		return nil, fmt.Errorf("%w: WithShardedPubSub on a quorum: remove the option; it is for New with a *redis.ClusterClient", ErrUnsupported)
	}
	if err := supportedByQuorum(&s.settings); err != nil {
		return nil, err
	}
	return newQuorumClient(rdbs, s, clock.OfClient()), nil
}

// newQuorumClient returns a client on several deployments.
func newQuorumClient(rdbs []redis.UniversalClient, s clientSettings, now clock.Clock) *Client {
	var hubs []*wake.Hub
	for _, rdb := range rdbs {
		hubs = append(hubs, wake.NewHub(rdb, hubConfig))
	}
	c := newClientOn(rdbs, wake.NewMajority(hubs, releaseWindow), s, now)
	c.supports = supportedByQuorum
	session := c.session
	q := quorum.New(quorum.Env{
		Life:     session.life(),
		Patience: session.patience,
		Retire:   session.identities.RetireField,
		Failure:  quorumError,
	}, session.execs, redisexec.NamesOf(rdbs))
	session.undos, session.usual = q.Backlog(), q.Usual
	c.addQuorumKinds(q)
	return c
}

// supportedByQuorum returns why a quorum does not support s.
func supportedByQuorum(s *settings) error {
	switch {
	case s.replicas.N > 0:
		return fmt.Errorf("%w: WithReplicas on a quorum: remove the option, and run the nodes without replicas, because a failover could lose a vote", ErrUnsupported)
	case s.Fencing && s.CounterLife == 0:
		return fmt.Errorf("%w: WithSharedFencing on a quorum: use WithFencing, because Java keeps its counter on one Redis", ErrUnsupported)
	}
	return nil
}

// errNoSuchKind is the error of a handle for a kind of lock that its client does not have.
var errNoSuchKind = fmt.Errorf("%w: a quorum supports only Mutex and MultiMutex: use a Client from New for a FairMutex, RWMutex or Semaphore",
	ErrUnsupported)

// MultiMutex returns a handle that locks several names together: Lock acquires all of them in one step,
// or none. The names are sorted, and repeated names are dropped, so any two handles for the same names
// are the same lock. A MultiMutex and a [Client.Mutex] or [Client.FairMutex] for one of its names
// exclude each other. MultiMutex makes no round trip. If a name or option is invalid, the first call
// that uses it returns the error.
//
// Lock increases the hold count of each name by one. Only Unlock of a handle for the same names
// decreases it. All names share one hold: one lease, one watchdog, and if one name is lost, all are. If
// the owner already holds some of the names, Lock acquires the rest together, and then increases the
// hold counts of those. As with any nested locks, owners that nest in different orders can deadlock.
//
// A waiter may be overtaken. It waits in the line for one name, and may hold that name for up to 2 s while
// it tries to get the others. If the waits in the lines of two of its names are longer than that, it may wait
// for a long time: give ctx a deadline. It delays other goroutines of its process that want a single name,
// but only while it collects the names: for some tens of milliseconds, or for up to 2 s if every
// name is always in use.
//
// With [WithFencing] one token is minted, which is higher than the counters of all the names. On a
// Cluster the names need a common {tag}. Otherwise the error is [ErrInvalidName]. The state after a
// failure, errors, concurrent use and round trips are as for a Mutex, for any number of names; but if Lock
// waits, it takes at least two round trips for each name in whose line it waits. If the owner already holds
// some of the names, Lock and Unlock take one more round trip for each of those
// holds. Each further name costs Redis some microseconds in every round trip, also in renewals.
func (c *Client) MultiMutex(names []string, opts ...MutexOption) *Mutex {
	return c.mutex(c.multi, names, opts)
}

// FairMutex returns a handle for the lock name that serves its waiters in order: first come, first
// served, over all goroutines of all processes, in the order in which Redis executed their requests. It
// is the same lock as [Client.Mutex]: both exclude and wake each other, and a goroutine that holds the
// lock by one handle re-enters it by the other. A process that uses a Mutex counts as one waiter, which
// has a turn of up to WithLocalHandoffs holds. Only waiters of Redisson may overtake.
//
// Each waiting Lock has an entry in a line on Redis. A release grants the lock to the first entry whose
// process is subscribed, and notifies only that process. If a process is not subscribed, because it
// died or is cut off, its entries are skipped. A skipped waiter keeps its position, and gets the lock
// at the first release after its next request. A waiter that gives up leaves the line at once.
//
// An entry has a lease: the shortest of 5 s, twice WithSafetyPoll, and the TTL. If the machine of a
// waiter stops, Redis cannot detect that, and the others wait for at most that lease. A client that was
// silent for longer waits again at the end of the line. TryLock does not overtake: it returns false
// while there are waiters.
//
// The state after a failure, errors and concurrent use are as for [Mutex.Lock]. If a name or option is
// invalid, the first call that uses it returns the error; for a client of NewQuorum the error is
// [ErrUnsupported]. WithLocalHandoffs has no effect. FairMutex itself makes no round trip. Lock takes
// one, which returns the lock or an entry in the line, and one more WithReplicas. While waiters of this
// process wait, one request per third of the entry's lease renews the entries of all of them.
func (c *Client) FairMutex(name string, opts ...MutexOption) *Mutex {
	return c.mutex(c.fair, []string{name}, opts)
}

// ID returns the client's current uuid: the first part of the fields that its holds have on Redis. The
// uuid changes when the client gives up a request that may still be in flight, and after a loss. So a
// delayed copy of that request cannot affect a later hold. No round trip.
func (c *Client) ID() string { return string(*c.session.identities.Current()) }

// Close ends the client. Waiters return ErrClosed. Every hold ends: its context is cancelled with the
// cause ErrClosed, and its lock is released on Redis. All goroutines of the client stop. Later calls
// that need Redis return ErrClosed.
//
// Close blocks until Redis has answered, for at most 5 s. If nothing is held, and there is no
// connection to Redis, it waits for at most two attempts. In a hook of this client, Close returns an
// error at once, which matches [ErrUnsupported], and does not close the client: see [Hooks].
//
// If Redis does not confirm a release, that lock ends with its TTL, and Close returns an error for it.
// The errors are Redis' own, one for each hold, joined. Releases that had failed in the background share one
// error, which contains the last of theirs. Later calls of Close return the same error. One
// round trip for each hold, all at once.
func (c *Client) Close() error { return c.session.close() }
