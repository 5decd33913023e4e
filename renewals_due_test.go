package relock

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// watchedConn counts the commands with a word that are written to it.
type watchedConn struct {
	net.Conn
	words map[string]*atomic.Int64
}

func (c *watchedConn) Write(b []byte) (int, error) {
	for word, n := range c.words {
		n.Add(int64(bytes.Count(b, []byte(word))))
	}
	return c.Conn.Write(b)
}

// Locks that were taken one after the other fall into step.
func TestAThousandLocksAreRenewedByFewCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		defer m.Close()
		m.ClockTTL(true)
		words := map[string]*atomic.Int64{protocol.RenewScript.Digest.(string): {}, protocol.RenewManyScript.Digest.(string): {}}
		options := redistest.MiniDialer(m)
		dial := options.Dialer
		options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &watchedConn{Conn: conn, words: words}, err
		}
		rdb := redis.NewClient(options)
		defer rdb.Close()
		var renewed atomic.Int64
		c := locksOn(t, rdb, WithHooks(Hooks{Renewed: func(Event) { renewed.Add(1) }}))
		defer c.Close()
		var locks []*Mutex
		for i := range 1000 {
			locks = append(locks, c.Mutex(fmt.Sprint("lock:", i), WithOwner(fmt.Sprint("job-", i))))
			requireLocked(t, locks[i])
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		commands := func() (n int64) {
			for _, count := range words {
				n += count.Load()
			}
			return n
		}
		before, renewals := commands(), renewed.Load()
		time.Sleep(time.Minute) // six intervals
		require.Equal(t, int64(6000), renewed.Load()-renewals)
		require.LessOrEqual(t, commands()-before, int64(6000/10), "commands")
		for _, m := range locks {
			require.Equal(t, 1, m.HoldCount())
			requireUnlocked(t, m)
		}
	})
}

// On a Cluster a command has keys of one slot.
func TestOnAClusterOnlyLocksWithTheSameTagAreRenewedTogether(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		for name, of := range map[string]struct {
			prefix   string
			together bool
		}{"one tag": {"{tag}", true}, "no tag": {"", false}} {
			t.Run(name, func(t *testing.T) {
				relay, _ := relayedTo(t, b)
				rdb := redistest.NewOneMaster(t, relay.Addr)
				rdb.ClusterClient.Options().ReadTimeout = fleetPatience // before a connection is made
				kind := lockKind{mutex: func(c *Client, key string, opts ...MutexOption) *Mutex {
					return c.Mutex(of.prefix+key, opts...)
				}}
				w := newFleetOn(t, rdb.ClusterClient, relay, b.Client(t), kind, 4)
				if of.together {
					w.together()
					w.requireBatches()
				} else {
					first := w.relay.Block(runsOf(protocol.RenewScript))
					var all sync.WaitGroup
					for _, h := range w.holds {
						all.Go(h.renew)
					}
					eventually(t, "all to begin", func() bool { return w.begun.Load() == 4 })
					first.Release()
					all.Wait()
					alone, batches := w.sent()
					require.Equal(t, [2]int{4, 0}, [2]int{alone, batches})
				}
				w.requireRenewed(0, 1, 2, 3)
			})
		}
	})
}

func TestHoldsOfOtherKindsAreRenewedAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		for _, kind := range append(slices.Clone(quorumKinds), kindNamed("read")) {
			t.Run(kind.name, func(t *testing.T) {
				relay, rdb := relayedTo(t, b)
				rdbs := []redis.UniversalClient{rdb}
				for _, node := range b.Nodes(t, 3)[1:] {
					rdbs = append(rdbs, node.Client(t))
				}
				events := &chronicle{}
				c := kind.client(t, rdbs, WithRenewInterval(slowly/5), WithHooks(events.hooks()))
				for i := range 5 {
					requireLocked(t, kind.mutex(c, fmt.Sprintf("%s-%d", redistest.Key(t), i), WithOwner(fmt.Sprintf("job-%d", i))))
				}
				eventually(t, "renewals", func() bool { return len(events.of("renewed")) >= 15 })
				require.Zero(t, relay.Count(runsOf(protocol.RenewManyScript)))
			})
		}
	})
}

// Replicas confirm each by itself.
func TestARenewalThatReplicasConfirmIsNotBatched(t *testing.T) {
	w := newFleet(t, redistest.Mini(t), kindNamed("plain"), 1)
	h := w.holds[0]
	h.mu.Lock()
	defer h.mu.Unlock()
	require.True(t, h.renewEffort().Batchable)
	settings := *h.levels[0].settings
	settings.replicas = redisexec.Replicas{N: 1, Timeout: time.Second}
	h.levels[0].settings = &settings
	require.False(t, h.renewEffort().Batchable)
}
