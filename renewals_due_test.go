package relock_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
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
func TestRenewals_OfAThousandLocksTakeFewCommands(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		words := map[string]*atomic.Int64{protocol.RenewScript.Digest().(string): {}, protocol.RenewManyScript.Digest().(string): {}}
		relay := locktest.Relay(t, b.Addr)
		relay.Latency(100 * time.Microsecond) // renewals that take no time may be answered one after the other
		rdb := redis.NewClient(redistest.Options(relay.Addr, func(o *redis.Options) {
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := redistest.Dial(ctx, network, addr)
				return &watchedConn{Conn: conn, words: words}, err
			}
		}))
		defer rdb.Close()
		var renewed atomic.Int64
		c := relock.LocksOn(t, rdb, relock.WithHooks(relock.Hooks{Renewed: func(relock.Event) { renewed.Add(1) }}))
		defer c.Close()
		var locks []*relock.Mutex
		for i := range 1000 {
			locks = append(locks, c.Mutex(fmt.Sprint("lock:", i), relock.WithOwner(fmt.Sprint("job-", i))))
			locktest.RequireLocked(t, locks[i])
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
			locktest.RequireUnlocked(t, m)
		}
	})
}

func TestRenewals_OtherKindsAreSentAlone(t *testing.T) {
	t.Parallel()
	for _, kind := range append(slices.Clone(quorumKinds), kindNamed("read")) {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				relay, rdb := locktest.RelayedTo(t, b)
				rdbs := []redis.UniversalClient{rdb}
				for _, node := range b.Nodes(t, 3)[1:] {
					rdbs = append(rdbs, node.Client(t))
				}
				events := &chronicle{}
				c := kind.client(t, rdbs, relock.WithRenewInterval(100*time.Millisecond), relock.WithHooks(events.Hooks()))
				for i := range 5 {
					locktest.RequireLocked(t, kind.mutex(c, fmt.Sprintf("%s-%d", redistest.Key(t), i), relock.WithOwner(fmt.Sprintf("job-%d", i))))
				}
				redistest.Eventually(t, "renewals", func() bool { return len(events.Of("renewed")) >= 15 })
				require.Zero(t, relay.Count(locktest.RunsOf(protocol.RenewManyScript)))
			})
		})
	}
}
