package relock

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

func TestARenewalIsDueAtAPointThatAllHoldsShareAndNeverLate(t *testing.T) {
	for _, interval := range []time.Duration{lease.MinRenewInterval, 333 * time.Millisecond, 10 * time.Second, maxTTL / 3} {
		for _, at := range []time.Duration{0, 1, time.Microsecond, 12345678901234567, -1, -12345678901234567} {
			points := map[time.Duration]bool{}
			for i := range time.Duration(1000) {
				renewed := clock.Instant{Mono: at + interval*i/1000, Wall: interval + at*2}
				due := protocol.RenewalDue(renewed, interval)
				wait := due.Since(renewed)
				require.LessOrEqual(t, wait, interval)
				require.Greater(t, wait, interval*9/10-1)
				require.Equal(t, wait, due.Wall-renewed.Wall, "both clocks")
				points[due.Mono] = true
				late := due.After(interval / 100) // as timers and round trips are
				require.Equal(t, due.Mono+interval/10*10, protocol.RenewalDue(late, interval/10*10).Mono, "the same point for good")
			}
			require.LessOrEqual(t, len(points), 11)
		}
	}
}

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
			prefix         string
			alone, batches int
		}{"one tag": {"{tag}", 1, 1}, "no tag": {"", 4, 0}} {
			t.Run(name, func(t *testing.T) {
				relay, _ := relayedTo(t, b)
				rdb := redistest.NewOneMaster(t, relay.Addr)
				rdb.ClusterClient.Options().ReadTimeout = fleetPatience // before a connection is made
				kind := lockKind{mutex: func(c *Client, key string, opts ...MutexOption) *Mutex {
					return c.Mutex(of.prefix+key, opts...)
				}}
				w := newFleetOn(t, rdb.ClusterClient, relay, b.Client(t), kind, 4)
				if of.batches > 0 {
					w.together()
				} else {
					first := w.relay.Block(runsOf(protocol.RenewScript))
					renewed := make(chan struct{}, 4)
					for _, h := range w.holds {
						go func() {
							h.renew()
							renewed <- struct{}{}
						}()
					}
					eventually(t, "all under way", func() bool { return w.underWay() == 4 })
					require.Zero(t, w.gathered())
					first.Release()
					for range w.holds {
						receives(t, renewed)
					}
				}
				w.requireSent(of.alone, of.batches)
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
