package relock

import (
	"fmt"
	"reflect"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
	"github.com/relock-go/relock/internal/wake"
)

// Client makes locks on one Redis deployment, or on a quorum of them, and is the identity
// under which they are held. It has one pub/sub connection to each deployment, while
// there are waiters (WithShardedPubSub: one to each master with a lock that has waiters
// for), and one pipeline to each master; a lone command uses an idle connection of the
// Redis client's pool, or opens one before the pipeline has answered for the first time.
// Make one for each process, and close it before the Redis clients. All methods are safe
// for concurrent use.
type Client struct {
	settings settings
	prefix   string
	cluster  bool                  // the names of a MultiMutex need a common tag
	supports func(*settings) error // says what cannot be done there

	plain *kind // of Mutex and MultiMutex
	fair  *kind // of FairMutex; nil on a quorum
	write *kind // of RWMutex; nil on a quorum, as read is
	read  *kind

	session *session
}

// New returns a client on the Redis deployment that rdb leads to: a single server, one
// behind Sentinel, or a Cluster. It sends nothing, and runs a goroutine until Close. rdb stays the
// caller's, to be closed after the Client. To it a redis.NewFailoverClusterClient is a Cluster:
// use a redis.NewFailoverClient for a MultiMutex of any names.
//
// Few commands, or none, run through rdb's process hooks; observe locks WithHooks. If rdb panics
// that is an error of the call which met it; if it does so when asked to subscribe, waiters poll.
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
	if s.replicas.N > 0 {
		if err := redisexec.CanWait(rdb); err != nil {
			return nil, err
		}
	}
	if _, cluster := rdb.(*redis.ClusterClient); s.sharded && !cluster {
		return nil, fmt.Errorf("%w: WithShardedPubSub on a %T: only a *redis.ClusterClient knows the shards", ErrUnsupported, rdb)
	}
	return newClient(rdb, s, clock.System), nil
}

// usableRedis says why there can be no locks on rdb.
func usableRedis(rdb redis.UniversalClient) error {
	if v := reflect.ValueOf(rdb); rdb == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("%w: nil Redis client", ErrInvalidOption)
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return fmt.Errorf("%w: a *redis.Ring: its clients may disagree about where a name lives", ErrUnsupported)
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
	c.session.undos = []*undo.Queue{undo.New(c.session.undoEnv(), c.session.settle)}
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
	c.session = newSession(rdbs, hub, s.TTL, c.cluster && !s.sharded, now)
	return c
}

// ID returns the client's current identity: the first part of the fields that its holds
// have on Redis. It changes when the outcome of a command could not be learned, a hold was
// lost, or a place in a queue, a claim or a grant was given up, so that what may still be on
// its way cannot meet a later hold.
func (c *Client) ID() string { return string(*c.session.identity()) }

// Close ends the client: waiters get ErrClosed, every hold ends, its context cancelled with
// the cause ErrClosed, and is released on Redis, and every goroutine stops. It waits for Redis
// for 5 s at most; what Redis did not hear of by then ends with its TTL; a hold that it did
// not hear of is in the error. If nothing is held and no connection can be had, it waits for
// two tries at most. A hook may call it: the call that the hook belongs to is not waited for
// then. Later calls of Close return the same; calls that need Redis fail with ErrClosed. Errors
// are Redis' own, one for each hold, joined. One round trip for each hold, all at once.
func (c *Client) Close() error { return c.session.close() }
