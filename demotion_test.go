package relock

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// twoServers are two, to the first of which a name leads, and after a failover to the next. The
// first one keeps its connections.
type twoServers struct {
	t     *testing.T
	first *redistest.Server
	next  *redistest.Server
	leads atomic.Pointer[redistest.Server]
}

func newTwoServers(t *testing.T) *twoServers {
	s := &twoServers{t: t, first: redistest.NewServer(t), next: redistest.NewServer(t)}
	s.leads.Store(s.first)
	return s
}

// client returns one that knows the name only.
func (s *twoServers) client() *redis.Client {
	rdb := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", s.leads.Load().Addr)
	}})
	s.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// failover makes the first one a replica: of the next, or of a master that it cannot reach.
func (s *twoServers) failover(cutOff bool) {
	s.t.Helper()
	s.leads.Store(s.next)
	rdb := s.first.Client(s.t)
	host, port, err := net.SplitHostPort(s.next.Addr)
	require.NoError(s.t, err)
	if cutOff {
		port = "1"
	}
	require.NoError(s.t, rdb.Do(s.t.Context(), "replicaof", host, port).Err())
	eventually(s.t, "replicating", func() bool {
		return cutOff || strings.Contains(rdb.Info(s.t.Context(), "replication").Val(), "master_link_status:up")
	})
}

// throughThePipeline has the client talk to the first server, by its pipeline.
func (s *twoServers) throughThePipeline(c *Client) {
	s.t.Helper()
	m := c.Mutex(redistest.Key(s.t))
	requireLocked(s.t, m) // with a context that may end
	requireUnlocked(s.t, m)
	require.Positive(s.t, engineOfOnly(c).Answers.Load())
}

func engineOfOnly(c *Client) *redisexec.Engine {
	x := c.session.execs[0]
	x.Mu.Lock()
	defer x.Mu.Unlock()
	for _, e := range x.Engines {
		return e
	}
	return nil
}

func TestAMasterThatHasBecomeAReplicaIsLeft(t *testing.T) {
	t.Parallel()
	s, events := newTwoServers(t), &chronicle{}
	c := locksOn(t, s.client(), WithHooks(events.hooks()))
	s.throughThePipeline(c)
	s.failover(false)
	m := c.Mutex(redistest.Key(t), WithRenewInterval(20*time.Millisecond))
	eventually(t, "a lock", func() bool { return m.Lock(t.Context()) == nil })
	renewed := len(events.of("renewed"))
	eventually(t, "renewed", func() bool { return len(events.of("renewed")) >= renewed+3 })
	failed := len(events.of("renew failed"))
	eventually(t, "renewed by a pipeline", func() bool {
		return engineOfOnly(c).Pipe.Load() != nil && len(events.of("renewed")) >= renewed+10
	})
	require.Len(t, events.of("renew failed"), failed, "it still asks the replica")
	requireUnlocked(t, m)
	requireFree(t, s.next.Client(t), m.Name())
}

// It says so in other words.
func TestAReplicaBeforeVersion7IsLeft(t *testing.T) {
	t.Parallel()
	relay, rdb := relayedTo(t, redistest.Redis(t))
	c := locksOn(t, rdb)
	m := c.Mutex(redistest.Key(t))
	requireLocked(t, m)
	requireUnlocked(t, m)
	relay.ReplyWith("-ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4a4dbbe1d2e0d1fc): "+
		"@user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.\r\n", runsOf(protocol.AcquireScript)).Times(3)
	require.ErrorContains(t, m.Lock(t.Context()), "READONLY")
	require.True(t, engineOfOnly(c).Demoted.Load())
}

// It knows nothing of what its successor has granted. That is not to be taken for a loss.
func TestAMasterThatHasBecomeAReplicaAndIsCutOffTakesNothingAway(t *testing.T) {
	t.Parallel()
	for _, k := range lockKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s, events := newTwoServers(t), &chronicle{}
			rdb := s.client()
			c := locksOn(t, rdb, WithHooks(events.hooks()))
			s.throughThePipeline(c)
			s.failover(true)
			eventually(t, "go-redis has left it", func() bool { return rdb.Set(t.Context(), "mine", 1, 0).Err() == nil })
			m := k.mutex(c, redistest.Key(t), WithRenewInterval(20*time.Millisecond))
			eventually(t, "a lock", func() bool { return m.Lock(context.Background()) == nil }) // past the pipeline
			renewed := len(events.of("renewed"))
			eventually(t, "renewed", func() bool { return len(events.of("renewed")) >= renewed+3 || len(events.of("lost")) > 0 })
			requireLocked(t, m)
			requireUnlocked(t, m)
			requireUnlocked(t, m)
			require.Empty(t, events.of("lost"))
			require.Zero(t, s.next.Client(t).Exists(t.Context(), m.target.Keys...).Val())
		})
	}
}

// An error that the time for dialing was up is told, and is not the end of the caller's context.
func TestADialThatTakesTooLongNamesTheServerAndNotTheCaller(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	rdb := redis.NewClient(&redis.Options{DialTimeout: time.Second, DialerRetries: 1, Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: network, Addr: &net.TCPAddr{IP: net.IPv4(10, 255, 255, 1), Port: 6379}, Err: ctx.Err()}
	}})
	t.Cleanup(func() { _ = rdb.Close() })
	c := locksOn(t, rdb, WithTTL(400*time.Millisecond))
	_, tried := c.Mutex("x").TryLock(t.Context())
	for _, err := range []error{tried, c.Mutex("x").Lock(context.Background())} {
		require.ErrorContains(t, err, "10.255.255.1")
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		var network *net.OpError
		require.ErrorAs(t, err, &network)
	}
}

// A dialer that does not mind its context, as go-redis' own for TLS, keeps nobody.
func TestALockEndsWithItsContextThoughADialerDoesNot(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	letGo := make(chan struct{})
	rdb := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		<-letGo
		return nil, errors.New("it gave up at last")
	}})
	t.Cleanup(func() { _ = rdb.Close() })
	c := locksOn(t, rdb, WithTTL(400*time.Millisecond))
	defer close(letGo)
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		ended <- c.Mutex("x").Lock(ctx)
	}()
	require.ErrorIs(t, receives(t, ended), lockerr.NoAnswer)
}
