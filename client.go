package relock

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/wake"
)

// closeTimeout bounds Close: behind a Redis that does not answer there is nothing to wait for.
const closeTimeout = 5 * time.Second

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
// for), and one pipeline to each master; a command that comes alone goes on a connection of
// the Redis client's pool if one is idle, or none is open and there is time to open one. Make
// one for each process, and close it before the Redis clients. All methods are safe for
// concurrent use.
type Client struct {
	settings settings
	prefix   string
	cluster  bool // the names of a MultiMutex need a common tag
	// scattered says that other processes may hear of a release at nodes of the Cluster where
	// Redis does not count them.
	scattered bool
	now       clock
	patience  time.Duration // with one copy of a command
	limits    limits        // of calls of Unlock

	// What follows is of the one deployment, or of each node of a quorum.
	execs    []*executor
	undos    []*undos
	supports func(*settings) error // says what cannot be done there

	plain    *kind // of Mutex and MultiMutex
	fair     *kind // of FairMutex; nil on a quorum
	write    *kind // of RWMutex; nil on a quorum, as read is
	read     *kind
	hub      hub
	registry registry

	// id is the current identity. One that is in doubt is replaced, for whoever acquires
	// next, before the call that doubts it returns; holds keep the one they have.
	id atomic.Pointer[identity]

	// tickets numbers the places in the queues of fair locks.
	tickets atomic.Uint64

	// goroutines are the watchdogs that are awake, the one that watches the clocks, the
	// acquirers of fixed owners, and those that clean up.
	goroutines group
	// background is the context of cleaning up. It ends last.
	background    context.Context
	endBackground context.CancelFunc

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
// Few commands, or none, run through rdb's process hooks; observe locks WithHooks.
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
	if s.replicas.n > 0 {
		if err := canWait(rdb); err != nil {
			return nil, err
		}
	}
	if _, cluster := rdb.(*redis.ClusterClient); s.sharded && !cluster {
		return nil, fmt.Errorf("%w: WithShardedPubSub on a %T: only a *redis.ClusterClient knows the shards", ErrUnsupported, rdb)
	}
	return newClient(rdb, s, systemClock), nil
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
func newClient(rdb redis.UniversalClient, s clientSettings, now clock) *Client {
	c := newClientOn([]redis.UniversalClient{rdb}, s, now)
	c.undos = []*undos{newUndos(c, c.settleByKind)}
	c.supports = func(s *settings) error {
		if s.replicas.n > 0 {
			return canWait(rdb)
		}
		return nil
	}
	var hub messageHub = wake.NewHub(rdb, hubConfig)
	if cluster, ok := rdb.(*redis.ClusterClient); ok && s.sharded {
		hub = wake.NewShards(cluster, hubConfig)
	}
	c.hub = hub
	plain := &plain{exec: c.execs[0], sharded: s.sharded}
	fair := &fair{plain: plain, hub: hub, process: c.ID()}
	c.plain = &kind{protocol: plain, turns: inTurn{}}
	c.fair = &kind{protocol: fair, turns: inOrder{fair}}
	writes := &writeSide{rw{plain}}
	c.write = &kind{protocol: writes, turns: claiming{writeSide: writes}, side: writing, twice: true}
	reads := &readSide{rw{plain}}
	c.read = &kind{protocol: reads, turns: together{readSide: reads}, side: reading}
	return c
}

// newClientOn returns a client of these deployments, without any kind of lock yet.
func newClientOn(rdbs []redis.UniversalClient, s clientSettings, now clock) *Client {
	c := &Client{
		settings: s.settings,
		prefix:   s.prefix,
		now:      now,
		patience: patienceFor(s.ttl),
		registry: registry{seed: maphash.MakeSeed()},
		closing:  make(chan struct{}),
	}
	for _, rdb := range rdbs {
		_, cluster := rdb.(*redis.ClusterClient)
		c.cluster = c.cluster || cluster
		c.scattered = c.cluster && !s.sharded
		c.execs = append(c.execs, newExecutor(rdb, now, s.ttl))
	}
	c.background, c.endBackground = context.WithCancel(context.Background())
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

func (c *Client) isClosed() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// Close ends the client: waiters get ErrClosed, every hold ends, its context cancelled with
// the cause ErrClosed, and is released on Redis, and every goroutine stops. It waits for Redis
// for 5 s at most; what Redis did not hear of by then ends with its TTL; a hold that it did
// not hear of is in the error. Later calls of Close return the same; calls that need Redis
// fail with ErrClosed. Errors are Redis' own, one for each hold, joined. One round trip for
// each hold, all at once.
func (c *Client) Close() error {
	c.closeOnce.Do(func() {
		close(c.closing)
		ctx, cancel := context.WithTimeoutCause(context.Background(), closeTimeout, noAnswerWithin(closeTimeout))
		defer cancel()
		var hub group
		hub.Go(c.hub.Close) // which may be caught in connecting
		c.closeErr = c.closeHolds(ctx)
		c.settleRest(ctx)
		c.endBackground()
		c.goroutines.wait(ctx)
		hub.wait(ctx)
		var execs group
		for _, x := range c.execs {
			execs.Go(func() { x.close(ctx) })
		}
		execs.wait(ctx)
	})
	return c.closeErr
}

// settleRest waits for what is under way in the background. A minority that does not answer
// is given as long as one command is.
func (c *Client) settleRest(ctx context.Context) {
	if len(c.execs) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.patience)
		defer cancel()
	}
	c.goroutines.wait(ctx)
}

// closeHolds ends what is held, and waits for what is being acquired or released.
func (c *Client) closeHolds(ctx context.Context) error {
	var mu sync.Mutex
	var errs []error
	var closing group
	for _, h := range c.registry.all() {
		closing.Go(func() {
			if err := h.close(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	closing.wait(ctx)
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(errs...)
}

// close ends a hold because the client is closed. Its levels are left to be unlocked, to
// no effect.
func (h *hold) close(ctx context.Context) error {
	h.mu.Lock()
	for h.phase == acquiring || h.phase == ending {
		changed := h.changes()
		h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil // whoever is at it reports it
		}
		h.mu.Lock()
	}
	if h.phase != held {
		h.mu.Unlock()
		return nil
	}
	h.end(ending, ErrClosed)
	event, hooks := h.event(h.client.now().since(h.acquired), nil), *h.hooks()
	h.mu.Unlock()

	if h.take(ctx) {
		event.Err = wrap("close", event.Name, h.giveBack(ctx, h.settings, false))
		h.free()
	} else {
		event.Err = wrap("close", event.Name, h.abandon(ended(ctx)))
	}
	h.mu.Lock()
	h.setPhase(lost)
	unclaimed := len(h.levels) == 0
	h.mu.Unlock()
	if unclaimed {
		h.unregister()
	}
	report(hooks.Released, event)
	return event.Err
}
