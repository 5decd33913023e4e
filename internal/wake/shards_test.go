package wake_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/wake"
)

// An atlas is a Cluster client's map of slots, to be written by tests. Its
// masters are independent of each other: each serves every channel.
type atlas struct {
	mu      sync.Mutex
	masters map[string]*redis.Client // by channel
	other   *redis.Client            // of the other channels
	later   *redis.Client            // other, after the question with the number last; nil: other stays
	last    int
	err     error
	asked   int
	renewed atomic.Int64
}

func (a *atlas) MasterForKey(_ context.Context, channel string) (*redis.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	if a.later != nil && a.asked > a.last {
		a.other, a.later = a.later, nil
	}
	if master := a.masters[channel]; master != nil {
		return master, a.err
	}
	return a.other, a.err
}

func (a *atlas) ReloadState(context.Context) { a.renewed.Add(1) }

// place puts channels on a master.
func (a *atlas) place(master *redis.Client, channels ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, channel := range channels {
		a.masters[channel] = master
	}
}

// placeOthers puts every channel without a place on a master, or on none.
func (a *atlas) placeOthers(master *redis.Client, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.other, a.err = master, err
}

// placeLater is placeOthers after n more questions.
func (a *atlas) placeLater(master *redis.Client, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.later, a.last = master, a.asked+n
}

func (a *atlas) questions() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

// newShards returns shards on an atlas with a single master.
func newShards(t *testing.T, master *redis.Client, cfg wake.Config) (*wake.Shards, *atlas) {
	t.Helper()
	redistest.RequireVersion(t, 7)
	a := &atlas{masters: make(map[string]*redis.Client), other: master}
	s := wake.NewShards(a, cfg)
	t.Cleanup(s.Close)
	return s, a
}

// startMaster returns a client of a server of the test's own.
func startMaster(t *testing.T) *redis.Client {
	t.Helper()
	return redistest.NewServer(t).Client(t)
}

// shardSubscribers is subscribers for sharded channels.
func shardSubscribers(t *testing.T, master *redis.Client, channel string) int {
	t.Helper()
	n, err := master.PubSubShardNumSub(t.Context(), channel).Result()
	require.NoError(t, err)
	return int(n[channel])
}

func shardPublish(t *testing.T, master *redis.Client, channel string) {
	t.Helper()
	n, err := master.SPublish(t.Context(), channel, "0").Result()
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

// connections counts the pub/sub connections of a server.
func connections(t *testing.T, master *redis.Client) int {
	t.Helper()
	list, err := master.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	require.NoError(t, err)
	return strings.Count(list, "\n")
}

// requireShardRecovered waits until w, which was live, is woken by a loss and
// is live on master, and gets messages.
func requireShardRecovered(t *testing.T, w *waiter, master *redis.Client, channel string) {
	t.Helper()
	w.waitWoken(t, 2)
	w.waitLive(t)
	require.Eventually(t, func() bool { return shardSubscribers(t, master, channel) == 1 }, soon, tick)
	n := w.woken.Load()
	shardPublish(t, master, channel)
	w.waitWoken(t, n)
}

// onEveryProtocol runs test with clients of both versions of RESP.
func onEveryProtocol(t *testing.T, test func(t *testing.T, start func() *redis.Client)) {
	for _, resp := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", resp), func(t *testing.T) {
			test(t, func() *redis.Client {
				return newClient(t, &redis.Options{Addr: redistest.NewServer(t).Addr, Protocol: resp})
			})
		})
	}
}

func TestShards_OneConnectionPerMasterInUse(t *testing.T) {
	t.Parallel()
	onEveryProtocol(t, func(t *testing.T, start func() *redis.Client) {
		masters := []*redis.Client{start(), start(), start()}
		s, a := newShards(t, nil, config())
		names := channelNames(200)
		var waiters []*waiter
		for i, name := range names {
			a.place(masters[i%2], name)
			waiters = append(waiters, subscribe(s, name))
		}
		for i, name := range names {
			waiters[i].waitLive(t)
			waiters[i].waitWoken(t, 0)
			n := waiters[i].woken.Load()
			shardPublish(t, masters[i%2], name)
			waiters[i].waitWoken(t, n)
		}
		for i, want := range []int{1, 1, 0} {
			require.Equal(t, want, connections(t, masters[i]))
		}
	})
}

func TestShards_UnusedLeaveNothing(t *testing.T) {
	master := startMaster(t)
	cfg := config()
	cfg.PingInterval = time.Hour
	s, _ := newShards(t, master, cfg)
	idle := goleak.IgnoreCurrent()
	stays := subscribeLive(t, s, "stays")
	inUse := goleak.IgnoreCurrent()
	for range 3 {
		var waiters []*waiter
		for _, name := range channelNames(50) {
			waiters = append(waiters, subscribe(s, name))
		}
		for i, w := range waiters {
			if i%2 == 0 {
				w.waitLive(t)
			}
			w.Close()
		}
		require.Eventually(t, func() bool {
			return len(master.PubSubShardChannels(t.Context(), "*").Val()) == 1
		}, soon, tick)
		require.True(t, stays.Live())
	}
	require.NoError(t, redistest.FindLeaks(inUse))
	stays.Close()
	require.Eventually(t, func() bool {
		channels, _ := s.Remembered()
		return channels == 0 && connections(t, master) == 0
	}, soon, tick)
	require.NoError(t, redistest.FindLeaks(idle))
	w := subscribeLive(t, s, "again")
	shardPublish(t, master, "again")
	w.waitWoken(t, 1)
}

func TestShards_UnusedChannelLingers(t *testing.T) {
	t.Parallel()
	master := startMaster(t)
	cfg := config()
	cfg.Linger = time.Minute
	s, a := newShards(t, master, cfg)
	subscribeLive(t, s, "a").Close()
	asked := a.questions()
	w := subscribe(s, "a")
	require.True(t, w.Live())
	require.Equal(t, asked, a.questions())
	shardPublish(t, master, "a")
	w.waitWoken(t, 0)
}

func TestShards_SubscriptionsMayComeAndGoConcurrently(t *testing.T) {
	t.Parallel()
	onEveryProtocol(t, func(t *testing.T, start func() *redis.Client) {
		masters := []*redis.Client{start(), start()}
		s, a := newShards(t, masters[0], config())
		names := channelNames(8)
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				for range 20 {
					name := names[rand.IntN(len(names))]
					a.place(masters[rand.IntN(2)], names[rand.IntN(len(names))])
					w := subscribe(s, name)
					s.Suspect(name)
					if rand.IntN(2) == 0 {
						w.waitLive(t)
						s.Missed(name)
					}
					w.Close()
				}
			})
		}
		all.Wait()
		require.Eventually(t, func() bool {
			channels, _ := s.Remembered()
			return channels == 0 && connections(t, masters[0])+connections(t, masters[1]) == 0
		}, soon, tick)
	})
}

func TestShards_NoneIsLiveAfterClose(t *testing.T) {
	t.Parallel()
	master := startMaster(t)
	s, _ := newShards(t, master, config())
	before := subscribeLive(t, s, "a")
	s.Close()
	before.waitWoken(t, 1)
	require.False(t, before.Live())
	after := subscribe(s, "b")
	require.False(t, after.Live())
	s.Suspect("a")
	s.Missed("a")
	s.Close()
	after.Close()
	before.Close()
	require.Eventually(t, func() bool { return connections(t, master) == 0 }, soon, tick)
}

// A lookout is a Cluster client with a slow look-up of channels.
type lookout struct {
	*atlas
	asked  chan struct{}
	answer chan struct{}
}

func newLookout(master *redis.Client) *lookout {
	return &lookout{atlas: &atlas{other: master}, asked: make(chan struct{}), answer: make(chan struct{})}
}

func (l *lookout) MasterForKey(ctx context.Context, channel string) (*redis.Client, error) {
	l.asked <- struct{}{}
	select {
	case <-l.answer:
		return l.atlas.MasterForKey(ctx, channel)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestShards_CloseDoesNotWaitForTheMap(t *testing.T) {
	t.Parallel()
	l := newLookout(nil)
	cfg := config()
	cfg.CloseTimeout = time.Minute // what it may not wait for
	s := wake.NewShards(l, cfg)
	w := subscribe(s, "a")
	<-l.asked
	began := time.Now()
	s.Close()
	require.Less(t, time.Since(began), soon)
	require.False(t, w.Live())
}

func TestShards_UnfoundChannelIsForgotten(t *testing.T) {
	t.Parallel()
	master := startMaster(t)
	l := newLookout(master)
	s := wake.NewShards(l, config())
	t.Cleanup(s.Close)
	w := subscribe(s, "a")
	<-l.asked
	w.Close()
	l.answer <- struct{}{}
	require.Eventually(t, func() bool {
		channels, _ := s.Remembered()
		return channels == 0
	}, soon, tick)
	require.Zero(t, connections(t, master))
}

var _ wake.Cluster = (*redis.ClusterClient)(nil)
