package relock

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/quorum"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/session"
	"github.com/relock-go/relock/internal/wake"
)

// Client makes locks on one Redis deployment, or on a quorum of them, and is the identity under which
// they are held. Make one Client for each process, and close it before the Redis clients. All methods
// are safe for concurrent use.
//
// While there are waiters it has one pub/sub connection to each deployment, or WithShardedPubSub one to
// each master that has waiters. It has one pipeline to each master, unless WithoutPipelining. A lone
// command uses an idle connection of the Redis client's pool, or opens one if the pipeline has not
// answered yet.
type Client struct {
	settings settings
	prefix   string
	cluster  bool                  // the names of a MultiMutex need a common tag
	supports func(*settings) error // says what cannot be done there

	plain *kind // of Mutex
	multi *kind // of MultiMutex
	fair  *kind // of FairMutex; nil on a quorum
	write *kind // of RWMutex; nil on a quorum, as read is
	read  *kind

	session *session.Session
}

// New returns a client on the Redis deployment of rdb: a single server, Sentinel, or a Cluster. It does
// not block and sends nothing. It runs one goroutine until Close. rdb stays the caller's: close it
// after the Client. A redis.NewFailoverClusterClient counts as a Cluster: for a MultiMutex of any names
// use a redis.NewFailoverClient.
//
// Few commands, or none, run through the process hooks of rdb: use WithHooks to observe locks. If rdb
// panics in a call, the call returns an error. If it panics when it subscribes, waiters poll.
//
// Errors: ErrInvalidOption for a nil rdb or a bad option; ErrUnsupported for a *redis.Ring, whose
// clients may disagree about where a name lives, for WithShardedPubSub on anything but a
// *redis.ClusterClient, and for WithReplicas on anything but a *redis.ClusterClient or a *redis.Client.
func New(rdb redis.UniversalClient, opts ...ClientOption) (*Client, error) {
	if err := usableRedis(rdb); err != nil {
		return nil, err
	}
	s, err := newClientSettings(opts)
	if err != nil {
		return nil, err
	}
	if s.Replicas.N > 0 {
		if err := redisexec.CanWait(rdb); err != nil {
			return nil, err
		}
	}
	if _, cluster := rdb.(*redis.ClusterClient); s.sharded && !cluster {
		return nil, fmt.Errorf("%w: WithShardedPubSub needs a *redis.ClusterClient, not a %T", ErrUnsupported, rdb)
	}
	return newClient(rdb, s, clock.OfClient()), nil
}

// usableRedis says why there can be no locks on rdb.
func usableRedis(rdb redis.UniversalClient) error {
	if v := reflect.ValueOf(rdb); rdb == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("%w: the Redis client is nil", ErrInvalidOption)
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return fmt.Errorf("%w: a *redis.Ring, whose clients may disagree about where a name lives: use a *redis.Client or a *redis.ClusterClient", ErrUnsupported)
	}
	return nil
}

// newClient returns a client on one deployment.
func newClient(rdb redis.UniversalClient, s clientSettings, now clock.Clock) *Client {
	var hub session.MessageHub = wake.NewHub(rdb, session.HubConfig)
	if cluster, ok := rdb.(*redis.ClusterClient); ok && s.sharded {
		hub = wake.NewShards(cluster, session.HubConfig)
	}
	c := newClientOn([]redis.UniversalClient{rdb}, hub, s, now)
	c.session.UndoOnOne()
	c.supports = func(s *settings) error {
		if s.Replicas.N > 0 {
			return redisexec.CanWait(rdb)
		}
		return nil
	}
	c.addKinds(hub, s.sharded)
	return c
}

// newClientOn returns a client of these deployments, without any kind of lock yet.
func newClientOn(rdbs []redis.UniversalClient, hub session.Hub, s clientSettings, now clock.Clock) *Client {
	c := &Client{settings: s.settings, prefix: s.prefix}
	for _, rdb := range rdbs {
		_, cluster := rdb.(*redis.ClusterClient)
		c.cluster = c.cluster || cluster
	}
	c.session = session.New(rdbs, hub, session.Options{
		TTL: s.TTL, Pipelined: s.pipelined, Registers: s.registers, Scattered: c.cluster && !s.sharded,
	}, now)
	return c
}

// releaseWindow is how far apart the messages of the nodes about one release may be.
const releaseWindow = 5 * time.Millisecond

// NewQuorum returns a client whose locks live on several independent Redis masters, the nodes, and are
// held by the owner that has them on most: the algorithm known as Redlock. It keeps working as long as
// a majority of the nodes does, len(rdbs)/2+1, at the speed of the fastest majority. Use 3 or 5. Give
// the clients of all processes the same nodes, in any order. Each should be one server: behind
// Sentinel, or on a Cluster, a failover can lose a vote. NewQuorum does not block and sends nothing.
// The rdbs stay the caller's: close them after the Client.
//
// No failover can lose a lock, since nothing is replicated. Exclusion holds while each node that
// granted a lock keeps its data and counts time at about the rate of the client. A node that crashes
// and comes back without its data within a TTL breaks that: run nodes with appendfsync always, or start
// them again when a TTL is over. Where two holders at once would do harm, use WithFencing as well, and
// have the resource refuse a lower token.
//
// Mutex and MultiMutex work as on one Redis. Every request goes to all nodes at once. A round trip in
// the docs of the methods is one to the fastest majority; a Lock WithFencing takes one more. A lease
// counts when a majority has confirmed it, from before the first node was asked. An attempt without a
// majority is undone on every node. If several owners try at the same time, TryLock may return false to
// all of them. Unlock, State and ForceUnlock wait for slow nodes for half a second at most. What a
// single node says shows only in a failure, as *QuorumError.
//
// Errors: ErrInvalidOption if rdbs is empty, or has a nil or the same client twice (two clients of one
// server are not noticed), and for a bad option; ErrUnsupported for a *redis.Ring, WithShardedPubSub,
// WithReplicas and WithSharedFencing. The last two are also errors of a handle, and so are FairMutex
// and RWMutex.
func NewQuorum(rdbs []redis.UniversalClient, opts ...ClientOption) (*Client, error) {
	if len(rdbs) == 0 {
		return nil, fmt.Errorf("%w: NewQuorum needs at least one Redis client, and 3 or 5 are best", ErrInvalidOption)
	}
	for i, rdb := range rdbs {
		if err := usableRedis(rdb); err != nil {
			return nil, fmt.Errorf("%w: number %d of %d", err, i+1, len(rdbs))
		}
		same := func(other redis.UniversalClient) bool { return reflect.ValueOf(rdb).Comparable() && other == rdb }
		if slices.ContainsFunc(rdbs[:i], same) {
			return nil, fmt.Errorf("%w: Redis client %d of %d (%s) was given twice, and would have two votes: give each node once",
				ErrInvalidOption, i+1, len(rdbs), cmp.Or(redisexec.AddressOf(rdb), "an unknown address"))
		}
	}
	s, err := newClientSettings(opts)
	if err != nil {
		return nil, err
	}
	if s.sharded {
		return nil, fmt.Errorf("%w: WithShardedPubSub on a quorum: leave it out, it is for New with a *redis.ClusterClient", ErrUnsupported)
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
		hubs = append(hubs, wake.NewHub(rdb, session.HubConfig))
	}
	c := newClientOn(rdbs, wake.NewMajority(hubs, releaseWindow), s, now)
	c.supports = supportedByQuorum
	env := c.session
	q := quorum.New(quorum.Env{
		Now:        env.Now,
		Patience:   env.Patience,
		Background: env.Background,
		Go:         env.Goroutines.Go,
		Closed:     env.Closed,
		Retire:     env.Identities.RetireField,
		Failure:    quorumError,
	}, env.Execs, redisexec.NamesOf(rdbs))
	env.Undos = q.Backlog()
	c.addQuorumKinds(q)
	return c
}

// supportedByQuorum says what of s cannot be had on a quorum.
func supportedByQuorum(s *settings) error {
	switch {
	case s.Replicas.N > 0:
		return fmt.Errorf("%w: WithReplicas on a quorum: leave it out, and run the nodes without replicas, because a failover could forget a vote", ErrUnsupported)
	case s.Fencing && s.CounterLife == 0:
		return fmt.Errorf("%w: WithSharedFencing on a quorum: use WithFencing, because Java keeps its counter on one Redis", ErrUnsupported)
	}
	return nil
}

// errNoSuchKind is the error of a handle of a kind of lock that its client does not have.
var errNoSuchKind = fmt.Errorf("%w: a quorum has Mutex and MultiMutex only: use a Client of New for a FairMutex or RWMutex",
	ErrUnsupported)

// MultiMutex returns a handle that locks several names together: Lock takes all of them in one step.
// Names are sorted and repeated names dropped, so any two handles with the same names are the same
// lock. It excludes every Mutex and FairMutex of one of its names, and is excluded by them. It makes no
// round trip. The first call that would use a bad name or option returns the error.
//
// A Lock is one level on each name. Unlock of a handle with the same names takes it away. There is one
// hold: one lease, one watchdog, and the loss of one name is the loss of all. An owner that already
// holds some of the names adds a level to those, and acquires the rest together. As with any nested
// locks, owners that nest in different orders can wait for each other.
//
// A waiter may keep one name for up to 2 s while it asks for all, so it does not starve, but it may be
// overtaken. It keeps other goroutines of its process from single names only while it collects its
// turns on all of them: for some tens of milliseconds, or up to 2 s if every name is always in use.
//
// WithFencing mints one token, above the counters of all the names. State after a failure, errors,
// concurrent use and round trips are those of a Mutex, for any number of names. An owner that already
// holds some of them takes one more round trip for each of those holds, to lock, to unlock, and to step
// back if it does not get the rest. Each further name costs Redis some microseconds in every round
// trip, also in renewals. On a Cluster names without a common {tag} are ErrInvalidName.
func (c *Client) MultiMutex(names []string, opts ...MutexOption) *Mutex {
	return c.mutex(c.multi, names, opts)
}

// FairMutex returns a handle of the lock name that is served in order: first come, first served, over
// all goroutines of all processes, in the order in which Redis has executed their requests. It is the
// lock of [Client.Mutex]: both exclude and wake each other, and a goroutine that holds it by one handle
// re-enters it by the other. A process that uses a Mutex counts as one waiter, which has a turn of up
// to WithLocalHandoffs holds. Only waiters of Redisson may overtake.
//
// Lock waits in a line on Redis. A release gives the lock to the first waiter whose process listens,
// and tells that process alone. It passes over a waiter whose process does not listen, because it has
// died or is cut off. Such a waiter keeps its place, and gets the lock at the first release after it
// has asked again. A place in the line has a lease: 5 s, twice WithSafetyPoll, or the TTL, whichever is
// shortest. If the machine of a waiter stops, Redis cannot see that it is gone: it keeps the others
// waiting for that lease at most. A client that was silent for longer waits again, behind the others. A
// waiter that gives up leaves at once. TryLock does not overtake: it returns false while there are
// waiters.
//
// State after a failure, errors and concurrent use are those of [Mutex.Lock]. The first call that would
// use a bad name or option returns the error; on a client of NewQuorum that is ErrUnsupported.
// WithLocalHandoffs has no effect. FairMutex itself makes no round trip. A Lock takes one, which gets
// the lock or a place in the line, and one more WithReplicas. One request in a third of that lease
// keeps the places of all waiters of this process.
func (c *Client) FairMutex(name string, opts ...MutexOption) *Mutex {
	return c.mutex(c.fair, []string{name}, opts)
}

// ID returns the client's current identity: the first part of the fields that its holds have on Redis.
// It changes when the outcome of a command is not known, when a hold was lost, and when a place in a
// line, a claim or a grant was given up. So a command that is still on its way cannot change a later
// hold. No round trip.
func (c *Client) ID() string { return string(*c.session.Identities.Current()) }

// Close ends the client. Waiters get ErrClosed. Every hold ends: its context is cancelled with the
// cause ErrClosed, and the lock is released on Redis. Every goroutine stops. Close blocks until Redis
// has answered, for 5 s at most. A lock whose release Redis did not confirm ends with its TTL, and is
// in the error. If nothing is held and no connection can be had, it waits for two attempts at most. A
// hook may call Close; it then does not wait for the call that the hook belongs to. Later calls return
// the same. Calls that need Redis fail with ErrClosed afterwards. Errors: Redis' own, one for each
// hold, joined. One round trip for each hold, all at once.
func (c *Client) Close() error { return c.session.Close() }
