package relock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// A deployment is a way to a Redis that can be taken away.
type deployment struct {
	locks func(opts ...ClientOption) *Client
	addr  string // that errors are to name
	stop  func() // has connections refused
	mute  func() // has them not answered
}

// behind returns the deployment of locks on what is behind relays.
func behind(t *testing.T, locks func(opts ...ClientOption) *Client, relays ...*redistest.Relay) deployment {
	t.Helper()
	each := func(f func(*redistest.Relay)) func() {
		return func() {
			for _, relay := range relays {
				f(relay)
			}
		}
	}
	t.Cleanup(each(comesBack))
	return deployment{
		locks: locks, addr: relays[0].Addr,
		mute: each(func(relay *redistest.Relay) { relay.BlackHole(true) }),
		stop: each(func(relay *redistest.Relay) {
			require.NoError(t, relay.Refuse(true))
			relay.Cut()
		}),
	}
}

// eachDeployment runs test as subtests, on each kind of deployment.
func eachDeployment(t *testing.T, test func(t *testing.T, d deployment)) {
	t.Helper()
	t.Run("a server", func(t *testing.T) {
		t.Parallel()
		relay, rdb := relayedTo(t, redistest.Redis(t))
		test(t, behind(t, func(opts ...ClientOption) *Client { return locksOn(t, rdb, opts...) }, relay))
	})
	t.Run("a node of a Cluster", func(t *testing.T) {
		t.Parallel()
		relay := redistest.NewRelay(t, redistest.NewServer(t, "--cluster-enabled", "yes").Addr)
		admin := faultRedis(t, relay.Addr)
		require.NoError(t, admin.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
		eventually(t, "up", func() bool { return admin.Exists(t.Context(), "key").Err() == nil })
		host, port, err := net.SplitHostPort(relay.Addr)
		require.NoError(t, err)
		require.NoError(t, admin.ConfigSet(t.Context(), "cluster-announce-ip", host).Err())
		require.NoError(t, admin.ConfigSet(t.Context(), "cluster-announce-port", port).Err())
		test(t, behind(t, func(opts ...ClientOption) *Client {
			rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{relay.Addr}})
			t.Cleanup(func() { _ = rdb.Close() })
			return locksOn(t, rdb, opts...)
		}, relay))
	})
	t.Run("two of three nodes of a quorum", func(t *testing.T) {
		t.Parallel()
		nodes := redistest.Redis(t).Nodes(t, 3)
		one, first := relayedTo(t, nodes[0])
		two, second := relayedTo(t, nodes[1])
		test(t, behind(t, func(opts ...ClientOption) *Client {
			return quorumOn(t, []redis.UniversalClient{first, second, nodes[2].Client(t)}, opts...)
		}, one, two))
	})
}

func TestALossAndEachRenewalThatFailedSayThatNothingListensAndWhere(t *testing.T) {
	t.Parallel()
	eachDeployment(t, func(t *testing.T, d deployment) {
		events := &chronicle{}
		m := d.locks(WithTTL(2*time.Second), WithHooks(events.hooks())).Mutex(redistest.Key(t))
		requireLocked(t, m)
		ctx := m.Context(t.Context())
		d.stop()
		receives(t, ctx.Done())
		loss := context.Cause(ctx)
		require.ErrorIs(t, loss, ErrLost)
		failed := events.of("renew failed")
		require.GreaterOrEqual(t, len(failed), 2)
		all := []error{loss, m.Unlock()}
		for _, e := range failed {
			all = append(all, e.Err)
		}
		for _, err := range all {
			require.ErrorContains(t, err, d.addr)
			require.ErrorContains(t, err, "connection refused")
		}
	})
}

func TestSilenceIsThatOfAServerWithAnAddress(t *testing.T) {
	t.Parallel()
	eachDeployment(t, func(t *testing.T, d deployment) {
		locks := d.locks(WithTTL(time.Second))
		m := locks.Mutex(redistest.Key(t))
		requireLocked(t, m)
		requireUnlocked(t, m)
		d.mute()
		_, err := m.TryLock(t.Context())
		require.ErrorContains(t, err, d.addr)
		require.Error(t, locks.Mutex(redistest.Key(t)).Lock(t.Context()))
	})
}

// What is more telling than what, from the most to the least.
var tales = []error{
	replyError("LOADING Redis is loading the dataset in memory"),
	&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
	&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET},
	lockerr.NoAnswerWithin(time.Second),
}

func TestWhatIsKnownOfAServerIsTheMostTellingThingSinceItAnsweredLast(t *testing.T) {
	t.Parallel()
	var now clock.Instant
	for i, more := range tales {
		for j, less := range tales {
			s := &redisexec.Server{Addr: "10.0.0.1:6379"}
			s.Learn(more, now)
			s.Learn(less, now.After(time.Minute))
			said := s.Explain(lockerr.NoAnswerWithin(time.Second), now.After(2*time.Minute))
			require.ErrorContains(t, said, "10.0.0.1:6379: no answer from Redis within 1s")
			require.ErrorIs(t, said, tales[min(i, j)])
			if i < j && j < len(tales) && more != tales[len(tales)-1] {
				require.ErrorContains(t, said, "; 2m0s before: "+more.Error())
			}
			require.NotErrorIs(t, s.Explain(tales[0], now), tales[1], "what says more needs no more")
			s.Answered()
			require.EqualError(t, s.Explain(lockerr.NoAnswerWithin(time.Second), now), "10.0.0.1:6379: no answer from Redis within 1s")
		}
	}
}

func TestWhatConcernsOneCommandIsNotTakenForTheStateOfAServer(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		replyError("NOPERM this user has no permissions to access one of the keys used as arguments"),
		replyError("CROSSSLOT Keys in request don't hash to the same slot"),
		context.Canceled, context.DeadlineExceeded, redis.ErrClosed,
	} {
		s := new(redisexec.Server)
		s.Learn(err, clock.Instant{})
		require.Nil(t, s.Ailment.Load(), "%v", err)
	}
}

func TestARefusalOfOneCallExplainsTheSilenceThatAnotherMeets(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		t.Parallel()
		relay, rdb := relayedTo(t, backend)
		t.Cleanup(func() { comesBack(relay) })
		locks := locksOn(t, rdb, WithTTL(time.Second))
		relay.ReplyWith("-LOADING Redis is loading the dataset in memory\r\n", redistest.Scripts).Times(3)
		_, err := locks.Mutex(redistest.Key(t)).TryLock(t.Context())
		require.ErrorContains(t, err, relay.Addr+": LOADING")
		relay.BlackHole(true)
		_, err = locks.Mutex(redistest.Key(t)).TryLock(t.Context())
		require.ErrorContains(t, err, relay.Addr)
		require.ErrorContains(t, err, "LOADING")
	})
}

// countedRedis is a client that counts how often it dials.
func countedRedis(t *testing.T, addr string) (*redis.Client, *atomic.Int64) {
	t.Helper()
	dials := new(atomic.Int64)
	rdb := redis.NewClient(&redis.Options{
		Addr: addr, PoolSize: 10,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, dials
}

func TestManyWhoFailTogetherDoNotEachDial(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		t.Parallel()
		relay := redistest.NewRelay(t, backend.Addr)
		t.Cleanup(func() { comesBack(relay) })
		rdb, dials := countedRedis(t, relay.Addr)
		locks := locksOn(t, rdb, WithTTL(time.Second))
		relay.BlackHole(true)
		const many = 400
		key, errs := redistest.Key(t), make([]error, many)
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() { errs[i] = locks.Mutex(fmt.Sprintf("%s-%d", key, i)).Lock(t.Context()) })
		}
		all.Wait()
		require.Less(t, dials.Load(), int64(many/2))
		for _, err := range errs {
			require.ErrorContains(t, err, relay.Addr)
		}
	})
}

// onlyDialed is an executor of which a test wants to know when it looks.
func onlyDialed(t *testing.T, dial func(context.Context) (net.Conn, error)) (*redisexec.Executor, *redisexec.Server, *twoClocks) {
	t.Helper()
	clocks := &twoClocks{}
	x := redisexec.New(faultRedis(t, "127.0.0.1:1"), clocks.now, defaultTTL)
	t.Cleanup(func() { x.Close(context.Background()) })
	return x, &redisexec.Server{Dial: dial}, clocks
}

func TestALookAtAServerIsSharedByAllForASecond(t *testing.T) {
	t.Parallel()
	var dials atomic.Int64
	dialing, refuse := make(chan struct{}, 3), make(chan struct{})
	x, s, clocks := onlyDialed(t, func(context.Context) (net.Conn, error) {
		dials.Add(1)
		dialing <- struct{}{}
		<-refuse
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			x.See(context.Background(), s, soonEnough)
			if s.Ailment.Load() == nil {
				t.Error("it did not wait for what was found")
			}
		})
	}
	receives(t, dialing)
	x.See(context.Background(), s, time.Millisecond) // who has no time does not wait
	require.Nil(t, s.Ailment.Load())
	close(refuse)
	all.Wait()
	x.See(context.Background(), s, soonEnough)
	require.EqualValues(t, 1, dials.Load())

	clocks.set(redisexec.LookLife)
	x.See(context.Background(), s, soonEnough)
	require.EqualValues(t, 2, dials.Load(), "that was long ago")
}

func TestADialerThatPanicsIsNoMoreThanALookInVain(t *testing.T) {
	t.Parallel()
	x, s, _ := onlyDialed(t, func(context.Context) (net.Conn, error) { panic("no network") })
	x.See(context.Background(), s, soonEnough)
	require.Nil(t, s.Ailment.Load())
	require.True(t, group.Closed(s.Look.Over))
}

// Nobody knows beforehand where the dialer of a failover client leads to.
func TestTheMasterThatSentinelNamesIsNamedOfASilence(t *testing.T) {
	t.Parallel()
	set := redistest.NewSentinel(t)
	locks := locksOn(t, set.Client(t), WithTTL(time.Second))
	m := locks.Mutex(redistest.Key(t))
	requireLocked(t, m)
	requireUnlocked(t, m)
	master, err := set.Master(t.Context())
	require.NoError(t, err)
	require.NoError(t, master.Pause())
	t.Cleanup(func() { _ = master.Resume() })
	_, err = m.TryLock(t.Context())
	require.ErrorContains(t, err, master.Addr)
	require.False(t, errors.Is(err, ErrTimeout))
}
