package relock

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
	"github.com/relock-go/relock/internal/wake"
)

// hubConfig suits waiters that poll all the same: a deaf connection costs a safety poll, so
// it is examined rarely, and when a poll found out what a message should have told.
var hubConfig = wake.Config{
	PingInterval:  30 * time.Second,
	PongTimeout:   time.Second,
	AnswerTimeout: 10 * time.Second,
	Linger:        time.Second,
	RefusalRetry:  time.Minute,
	MinBackoff:    20 * time.Millisecond,
	MaxBackoff:    2 * time.Second,
	CloseTimeout:  closeTimeout,
}

// Client makes locks on one Redis deployment, or on a quorum of them, and is the identity
// under which they are held. It has one pub/sub connection to each deployment, while
// somebody waits (WithShardedPubSub: one to each master with a lock that somebody waits
// for), and one pipeline to each master; a lone command uses an idle connection of the
// Redis client's pool, or opens one before the pipeline has answered for the first time.
// Make one for each process, and close it before the Redis clients. All methods are safe
// for concurrent use.
type Client struct {
	settings settings
	prefix   string
	cluster  bool // the names of a MultiMutex need a common tag
	// scattered says that other processes may hear of a release at nodes of the Cluster where
	// Redis does not count them.
	scattered bool
	now       clock.Clock
	patience  time.Duration    // with one copy of a command
	limits    redisexec.Limits // of calls of Unlock

	// What follows is of the one deployment, or of each node of a quorum.
	execs    []*redisexec.Executor
	undos    []*undo.Queue
	supports func(*settings) error // says what cannot be done there

	plain    *kind // of Mutex and MultiMutex
	fair     *kind // of FairMutex; nil on a quorum
	write    *kind // of RWMutex; nil on a quorum, as read is
	read     *kind
	hub      hub
	registry *gate.Registry[*hold]

	// id is the current identity. One that is in doubt is replaced, for whoever acquires
	// next, before the call that doubts it returns; holds keep the one they have.
	id atomic.Pointer[identity]

	// tickets numbers the places in the queues of fair locks.
	tickets atomic.Uint64

	// goroutines are the watchdogs that are awake, the one that watches the clocks, the
	// acquirers of fixed owners, and those that clean up.
	goroutines group.Group
	// closers are those of Close, one for each hold.
	closers group.Group
	// background is the context of cleaning up. It ends last.
	background    context.Context
	endBackground context.CancelCauseFunc

	closing   chan struct{} // closed by Close, first of all
	closeOnce sync.Once
	closeErr  error
}

// hub has waiters woken by messages: a *wake.Hub, *wake.Shards, or a *wake.Majority.
type hub interface {
	Subscribe(channel string, wake func()) *wake.Subscription
	Suspect(channel string)
	Missed(channel string)
	Close()
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
	c := newClientOn([]redis.UniversalClient{rdb}, s, now)
	c.undos = []*undo.Queue{undo.New(c.undoEnv(), c.settle)}
	c.supports = func(s *settings) error {
		if s.replicas.N > 0 {
			return redisexec.CanWait(rdb)
		}
		return nil
	}
	var hub messageHub = wake.NewHub(rdb, hubConfig)
	if cluster, ok := rdb.(*redis.ClusterClient); ok && s.sharded {
		hub = wake.NewShards(cluster, hubConfig)
	}
	c.hub = hub
	c.registry = gate.NewRegistry[*hold](hub)
	c.addKinds(hub, s.sharded)
	return c
}

// newClientOn returns a client of these deployments, without any kind of lock yet.
func newClientOn(rdbs []redis.UniversalClient, s clientSettings, now clock.Clock) *Client {
	c := &Client{
		settings: s.settings,
		prefix:   s.prefix,
		now:      now,
		patience: redisexec.PatienceFor(s.TTL),
		closing:  make(chan struct{}),
	}
	for _, rdb := range rdbs {
		_, cluster := rdb.(*redis.ClusterClient)
		c.cluster = c.cluster || cluster
		c.scattered = c.cluster && !s.sharded
		c.execs = append(c.execs, redisexec.New(rdb, now, s.TTL))
	}
	c.background, c.endBackground = context.WithCancelCause(context.Background())
	id := identity(uuid.NewString())
	c.id.Store(&id)
	started := now() // before the goroutine, of which nobody knows when it will run
	c.goroutines.Go(func() { c.watchClocks(started) })
	return c
}

// identity is a uuid that names are acquired under. It is told apart by its address: two are the
// same only if they are one, so one that was retired is never met again.
type identity string

// ID returns the client's current identity: the first part of the fields that its holds
// have on Redis. It changes when the outcome of a command could not be learned, a hold was
// lost, or a place in a queue, a claim or a grant was given up, so that what may still be on
// its way cannot meet a later hold.
func (c *Client) ID() string { return string(*c.identity()) }

func (c *Client) identity() *identity { return c.id.Load() }

// retire makes sure that nothing is acquired under id any more.
func (c *Client) retire(id *identity) {
	if c.id.Load() == id {
		fresh := identity(uuid.NewString())
		c.id.CompareAndSwap(id, &fresh)
	}
}

// retireField is retire of the identity that field begins with, if that is the current one.
func (c *Client) retireField(field string) {
	if id := c.identity(); strings.HasPrefix(field, string(*id)+":") {
		c.retire(id)
	}
}

func (c *Client) isClosed() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}
