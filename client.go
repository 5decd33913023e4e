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

// Client makes locks on one Redis deployment, or on a quorum of them, and is the identity
// under which they are held. It has one pub/sub connection to each deployment while there are
// waiters; WithShardedPubSub, one to each master that has waiters. It has one pipeline to each
// master, unless WithoutPipelining. A lone command uses an idle connection of the Redis client's
// pool, or opens one if the pipeline has not answered yet. Make one Client for each process, and
// close it before the Redis clients. All methods are safe for concurrent use.
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

// New returns a client on the Redis deployment that rdb leads to: a single server, one
// behind Sentinel, or a Cluster. It sends nothing, and runs a goroutine until Close. rdb stays the
// caller's, to be closed after the Client. To it a redis.NewFailoverClusterClient is a Cluster:
// use a redis.NewFailoverClient for a MultiMutex of any names.
//
// Few commands, or none, run through rdb's process hooks; observe locks WithHooks. If rdb panics,
// the call that met it returns an error. If it panics when asked to subscribe, waiters poll.
//
// Errors: ErrInvalidOption for a nil rdb or a bad option; ErrUnsupported for a *redis.Ring,
// whose clients may disagree about where a name lives, for WithShardedPubSub on anything but a
// *redis.ClusterClient, and for WithReplicas on anything but that or a *redis.Client.
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

// chorusWindow is how far apart the messages of the nodes about one release may be.
const chorusWindow = 5 * time.Millisecond

// NewQuorum returns a client whose locks live on several independent Redis masters, the nodes,
// and are held by the owner that has them on most: the algorithm known as Redlock. It keeps working
// as long as a majority of the nodes does, len(rdbs)/2+1, at the speed of the fastest majority. Use 3
// or 5. The clients of all processes must be given the same nodes, in any order, and each is to lead
// to one server: behind Sentinel, or a Cluster, a failover can lose a vote. NewQuorum sends nothing.
// The rdbs stay the caller's, to be closed after the Client.
//
// No failover can lose a lock, since nothing is replicated. Exclusion holds while each node that
// granted a lock keeps its data and counts time at about the rate of the client. A node that crashes
// and comes back without its data within a TTL breaks that: run nodes with appendfsync always, or
// start them again when a TTL is over. Where two holders at once would do harm, use WithFencing as
// well, and have the resource refuse a lower token.
//
// Mutex and MultiMutex are what they are on one Redis. Every request is sent to all nodes at once, and
// each round trip in the docs of the methods is one to the fastest majority; WithFencing a Lock takes
// one more. A lease counts when a majority has confirmed it, from before the first of them was asked. A
// try that got no majority is undone on every node, and TryLock may then return false to all that
// try at the same time. An Unlock waits for slow nodes for half a second at most, and so do State and ForceUnlock.
// What single nodes say shows only in a failure, as *QuorumError.
//
// Errors: ErrInvalidOption for no rdbs, a nil one, one that is there twice, or a bad option (that two
// clients lead to different servers is not checked); ErrUnsupported for a *redis.Ring and for what a
// quorum cannot do: WithShardedPubSub, WithReplicas, WithSharedFencing. The two last are errors of a
// handle, too, and so are FairMutex and RWMutex.
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
	c := newClientOn(rdbs, wake.NewMajority(hubs, chorusWindow), s, now)
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

// MultiMutex returns a handle that locks several names together: Lock takes all of them in
// one step or waits without holding any. Names are sorted and doubles dropped, so any two
// handles with the same names are the same lock. It excludes, and is excluded by, every
// Mutex and FairMutex of one of its names. A bad name or option is returned by the first call
// that would use it.
//
// A Lock is one level on each name, and is unlocked by Unlock of a handle with the same
// names. The hold is one: one lease, one watchdog, and the loss of one name is the loss of
// all. An owner that holds some of the names already adds a level to those and acquires the
// rest together; as with any nested locks, owners that nest in different orders can wait
// for each other.
//
// A waiter for several names keeps other goroutines of its process from single names only while
// it collects its turns on all of them: some tens of milliseconds, up to 2 s if every name is
// always in use. It is served then, but may be overtaken.
//
// WithFencing mints one token, above the counters of all the names. State after a failure,
// errors, concurrent use and round trips are those of a Mutex, whatever the number of names;
// an owner that holds some of them takes one more for each of those holds, to lock and to
// unlock, and to step back if it does not get the rest. For each further name Redis works some
// microseconds more in every round trip, renewals too, and does nothing else meanwhile. On a
// Cluster names without a common {tag} are ErrInvalidName.
func (c *Client) MultiMutex(names []string, opts ...MutexOption) *Mutex {
	return c.mutex(c.multi, names, opts)
}

// FairMutex returns a handle of the lock name that is served in order: first come, first served,
// over all goroutines of all processes, in the order in which Redis has executed their requests.
// It is the lock of [Client.Mutex]: both exclude and wake each other, and a goroutine that holds it
// by one handle re-enters it by the other. A process that uses a Mutex counts as one waiter, which
// has a turn of up to WithLocalHandoffs holds. Only waiters of Redisson may
// overtake.
//
// Lock waits in a queue on Redis. A release gives the lock to the first waiter whose process
// listens, and tells that process alone. One that does not, because it has died or is cut off, is
// passed over; it keeps its place, and gets the lock at the first release after it has asked again. A
// place in the queue is a lease of 5 s, or twice WithSafetyPoll or the TTL if one of those is less: a
// waiter whose machine has stopped, so that Redis cannot see that it is gone, keeps the others
// waiting for that long at most, and a client that was silent for longer waits again, behind
// the others. A waiter that gives up leaves at once. TryLock does not overtake: it returns false
// while there are waiters.
//
// State after a failure, errors and concurrent use are those of [Mutex.Lock]; a bad name or option is
// returned by the first call that would use it, which on a client of NewQuorum is ErrUnsupported.
// WithLocalHandoffs has no effect. FairMutex itself makes no round trip. A Lock takes one, which gets
// the lock or a place in the queue, and one more WithReplicas; one request in a third of that lease
// keeps the places of all waiters of this process.
func (c *Client) FairMutex(name string, opts ...MutexOption) *Mutex {
	return c.mutex(c.fair, []string{name}, opts)
}

// ID returns the client's current identity: the first part of the fields that its holds
// have on Redis. It changes when the outcome of a command could not be learned, a hold was
// lost, or a place in a queue, a claim or a grant was given up, so that what may still be on
// its way cannot meet a later hold.
func (c *Client) ID() string { return string(*c.session.Identities.Current()) }

// Close ends the client: waiters get ErrClosed, every hold ends, its context cancelled with
// the cause ErrClosed, and is released on Redis, and every goroutine stops. It waits for Redis
// for 5 s at most; what Redis did not hear of by then ends with its TTL; a hold that it did
// not hear of is in the error. If nothing is held and no connection can be had, it waits for
// two tries at most. A hook may call it: the call that the hook belongs to is not waited for
// then. Later calls of Close return the same; calls that need Redis fail with ErrClosed. Errors
// are Redis' own, one for each hold, joined. One round trip for each hold, all at once.
func (c *Client) Close() error { return c.session.Close() }
