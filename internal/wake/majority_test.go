package wake_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/wake"
)

// choir is a Majority of n servers, with one subscription.
type choir struct {
	t       *testing.T
	servers []*miniredis.Miniredis
	all     *wake.Majority
	sub     *wake.Subscription
	wakes   atomic.Int64
}

func newChoir(t *testing.T, n int, window time.Duration) *choir {
	t.Helper()
	c := &choir{t: t}
	var hubs []*wake.Hub
	for range n {
		s := miniredis.RunT(t)
		c.servers = append(c.servers, s)
		hubs = append(hubs, wake.NewHub(newClient(t, &redis.Options{Addr: s.Addr()}), config()))
	}
	c.all = wake.NewMajority(hubs, window)
	t.Cleanup(c.all.Close)
	c.sub = c.all.Subscribe("orders", func() { c.wakes.Add(1) })
	c.eventually(func() bool { return c.sub.Live() })
	// Live with most of them: the confirmation of the last may be yet to wake.
	for _, s := range c.servers {
		c.eventually(func() bool { return s.PubSubNumSub("orders")["orders"] == 1 })
	}
	return c
}

func (c *choir) eventually(cond func() bool) {
	c.t.Helper()
	require.Eventually(c.t, cond, soon, tick)
}

// says publishes on server i, which a subscriber listens to.
func (c *choir) says(i int) {
	c.t.Helper()
	c.eventually(func() bool { return c.servers[i].Publish("orders", "0") == 1 })
}

// settled waits until wakes have stopped coming, and returns their number.
func (c *choir) settled() int64 {
	c.t.Helper()
	for n := c.wakes.Load(); ; {
		time.Sleep(some)
		if now := c.wakes.Load(); now != n {
			n = now
			continue
		}
		return n
	}
}

const never = time.Hour

func TestMajority_MessagesOfMostServersWakeOnce(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	c := newChoir(t, 3, never)
	before := c.settled() // the confirmations are through
	c.says(0)             // repeated by a server that has spoken: the next thing
	c.says(1)
	c.eventually(func() bool { return c.wakes.Load() > before })
	n := c.settled()
	c.says(2)
	require.Equal(t, n, c.settled(), "the last message of the same wake-up")
	c.says(2)
	require.Equal(t, n, c.settled(), "one of three has something new to say")
	c.says(0)
	c.eventually(func() bool { return c.wakes.Load() == n+1 })
	require.Equal(t, n+1, c.settled())
}

func TestMajority_MessageOfOneServerWakesAfterAMoment(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	c := newChoir(t, 3, 10*time.Millisecond)
	for i := range c.servers {
		before := c.settled()
		c.says(i)
		c.eventually(func() bool { return c.wakes.Load() == before+1 })
	}
}

func TestMajority_ServerThatRepeatsItselfIsRemembered(t *testing.T) {
	t.Parallel()
	c := newChoir(t, 3, never)
	before := c.settled()
	c.says(0)
	c.says(0)
	c.says(0)
	c.eventually(func() bool { return c.wakes.Load() > before })
}

func TestMajority_SubscriptionIsLiveWithMostServers(t *testing.T) {
	t.Parallel()
	c := newChoir(t, 3, 5*time.Millisecond)
	before := c.settled()
	c.servers[0].Close()
	c.eventually(func() bool { return c.wakes.Load() > before }) // messages may have been missed
	require.True(t, c.sub.Live())
	c.servers[1].Close()
	c.eventually(func() bool { return !c.sub.Live() })
	require.NoError(t, c.servers[0].Restart())
	c.eventually(c.sub.Live)
}

func TestMajority_ClosedSubscriptionIsSilent(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	c := newChoir(t, 3, 50*time.Millisecond)
	before := c.settled()
	c.says(0)
	c.sub.Close()
	c.sub.Close()
	require.False(t, c.sub.Live())
	require.LessOrEqual(t, c.settled(), before+1)
	n := c.settled()
	c.all.Suspect("orders")
	c.all.Missed("orders")
	require.Equal(t, n, c.settled())
}

// Who acted on the first message was too early: the others come within the same moment.
func TestMajority_WakesThoughAFewDidBefore(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	c := newChoir(t, 3, time.Second)
	before := c.settled()
	c.says(0)
	c.eventually(func() bool { return c.wakes.Load() == before+1 })
	c.says(1)
	c.eventually(func() bool { return c.wakes.Load() == before+2 })
}
