package wake_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestShards_MovedChannelIsFollowedAndOthersStay(t *testing.T) {
	t.Parallel()
	old, fresh := redistest.NewServer(t), startMaster(t)
	p := startProxy(t, old.Addr)
	s, a := newShards(t, newClient(t, &redis.Options{Addr: p.Addr().String()}), config())
	moves, stays := subscribeLive(t, s, "moves"), subscribeLive(t, s, "stays")
	a.place(fresh, "moves")
	p.inject(t, ">3\r\n$12\r\nsunsubscribe\r\n$5\r\nmoves\r\n:1\r\n")
	requireShardRecovered(t, moves, fresh, "moves")
	require.EqualValues(t, 1, stays.woken.Load())
	require.True(t, stays.Live())
	require.Equal(t, 1, connections(t, old.Client(t)))
	require.NotZero(t, a.renewed.Load())
}

func TestShards_MisplacedChannelIsFoundWhenTheMapIsRenewed(t *testing.T) {
	t.Parallel()
	for _, refusal := range []string{"MOVED 1 127.0.0.1:1", "CLUSTERDOWN Hash slot not served"} {
		right := startMaster(t)
		relay := redistest.NewRelay(t, redistest.NewServer(t).Addr)
		wrong := relay.ReplyWith("-"+refusal+"\r\n", redistest.Named("SSUBSCRIBE").And(redistest.With("a"))).Always()
		s, a := newShards(t, newClient(t, &redis.Options{Addr: relay.Addr}), config())
		stays := subscribeLive(t, s, "stays")
		w := subscribe(s, "a")
		wrong.Wait(t)
		require.Eventually(t, func() bool { return a.renewed.Load() > 1 }, soon, tick)
		require.False(t, w.Live())
		a.place(right, "a")
		w.waitLive(t)
		w.waitWoken(t, 0)
		shardPublish(t, right, "a")
		w.waitWoken(t, 1)
		require.EqualValues(t, 1, stays.woken.Load(), "the connection is good for other channels")
	}
}

// A master that becomes a replica ends its subscriptions, and accepts them again.
func TestShards_ChannelThatWentBackToAFormerMasterIsTakenAway(t *testing.T) {
	t.Parallel()
	old, fresh := redistest.NewServer(t), startMaster(t)
	p := startProxy(t, old.Addr)
	cfg := config()
	cfg.PingInterval, cfg.MaxBackoff = time.Hour, 2*time.Second // the channel is live again before it is compared with the map
	s, a := newShards(t, newClient(t, &redis.Options{Addr: p.Addr().String()}), cfg)
	w := subscribeLive(t, s, "a")
	a.placeLater(fresh, 2) // the map is out of date when the channel is looked up, and when it is first compared
	p.inject(t, ">3\r\n$12\r\nsunsubscribe\r\n$1\r\na\r\n:0\r\n")
	w.waitWoken(t, 2)
	requireShardRecovered(t, w, fresh, "a")
}

func TestShards_MapIsRenewedNowAndThen(t *testing.T) {
	t.Parallel()
	old, fresh := startMaster(t), startMaster(t)
	s, a := newShards(t, old, config())
	w := subscribeLive(t, s, "a")
	a.placeOthers(fresh, nil)
	requireShardRecovered(t, w, fresh, "a")
	require.Eventually(t, func() bool { return connections(t, old) == 0 }, soon, tick)
}

func TestShards_WrongMapIsNotRequestedAllTheTime(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	relay := redistest.NewRelay(t, redistest.NewServer(t).Addr)
	relay.ReplyWith("-MOVED 1 127.0.0.1:1\r\n", redistest.Named("SSUBSCRIBE")).Always()
	cfg := config()
	cfg.MinBackoff, cfg.MaxBackoff = 50*time.Millisecond, 200*time.Millisecond
	s, a := newShards(t, newClient(t, &redis.Options{Addr: relay.Addr}), cfg)
	for _, name := range channelNames(10) {
		subscribe(s, name)
	}
	require.Eventually(t, func() bool { return a.questions() >= 30 }, soon, tick)
	began, asked := time.Now(), a.questions()
	require.Eventually(t, func() bool { return a.questions() >= asked+30 }, soon, tick)
	require.Greater(t, time.Since(began), 200*time.Millisecond, "three rounds of ten take two pauses of 100 ms at least")
}

func TestShards_ChannelsAreNotLiveWithoutAMap(t *testing.T) {
	t.Parallel()
	master := startMaster(t)
	s, a := newShards(t, nil, config())
	a.placeOthers(nil, errors.New("no node answers"))
	w, goes := subscribe(s, "a"), subscribe(s, "goes")
	require.Eventually(t, func() bool { return a.questions() > 4 }, soon, tick)
	require.False(t, w.Live())
	goes.Close()
	a.placeOthers(master, nil)
	w.waitLive(t)
	require.Zero(t, shardSubscribers(t, master, "goes"))
	channels, _ := s.Remembered()
	require.Equal(t, 1, channels)
}

func TestShards_SuccessorOfADeadMasterTakesOver(t *testing.T) {
	t.Parallel()
	old, other, successor := redistest.NewServer(t), startMaster(t), startMaster(t)
	s, a := newShards(t, old.Client(t), config())
	a.place(other, "elsewhere")
	var waiters []*waiter
	for _, name := range channelNames(20) {
		waiters = append(waiters, subscribeLive(t, s, name))
	}
	stays := subscribeLive(t, s, "elsewhere")
	old.Kill()
	for _, w := range waiters {
		w.waitWoken(t, 1)
		require.False(t, w.Live())
	}
	a.placeOthers(successor, nil)
	for i, name := range channelNames(20) {
		requireShardRecovered(t, waiters[i], successor, name)
	}
	require.Equal(t, 1, connections(t, successor))
	require.EqualValues(t, 1, stays.woken.Load())
	require.True(t, stays.Live())
}

func TestShards_MasterThatLeftIsForgotten(t *testing.T) {
	t.Parallel()
	old, fresh := redistest.NewServer(t), startMaster(t)
	s, a := newShards(t, old.Client(t), config())
	w := subscribeLive(t, s, "a")
	old.Kill()
	w.waitNotLive(t)
	a.placeOthers(fresh, nil)
	w.waitLive(t)
	require.Eventually(t, func() bool { // the next master that is new pushes it out
		next := newClient(t, fresh.Options())
		a.placeOthers(next, nil)
		subscribeLive(t, s, "b").Close()
		_, hubs := s.Remembered()
		return hubs <= 2
	}, soon, 150*time.Millisecond)
}

func TestShards_SilentConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	direct := startMaster(t)
	p := startProxy(t, direct.Options().Addr)
	cfg := config()
	cfg.PingInterval = time.Hour
	s, _ := newShards(t, newClient(t, &redis.Options{Addr: p.Addr().String()}), cfg)
	w := subscribeLive(t, s, "a")
	p.swallow()
	s.Suspect("a")
	w.waitNotLive(t)
	p.heal()
	requireShardRecovered(t, w, direct, "a")
}

func TestShards_RefusedChannelIsNotLiveWhileOthersAre(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	admin := server.Client(t)
	cfg := config()
	cfg.PingInterval, cfg.PongTimeout = time.Hour, soon // else the map is asked for other reasons
	s, a := newShards(t, restricted(t, server, admin), cfg)
	bad, good := subscribe(s, "forbidden:1"), subscribeLive(t, s, "channel:1")
	bad.waitWoken(t, 0)
	require.False(t, bad.Live())
	require.Equal(t, 2, a.questions(), "another master would refuse it too")
	shardPublish(t, admin, "channel:1")
	good.waitWoken(t, 1)
}
