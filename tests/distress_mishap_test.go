package tests

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// requireIs requires that err is what a mishap is to end with.
func requireIs(t *testing.T, m *redistest.Mishap, err error) {
	t.Helper()
	is := m.Is
	if m.Silent { // that is noticed by go-redis or by the executor, whichever looks first
		is = []error{lockerr.ErrNoAnswer, os.ErrDeadlineExceeded}
	}
	require.True(t, slices.ContainsFunc(is, func(is error) bool { return errors.Is(err, is) }), "%T: %v", err, err)
}

func TestDistress_LastingMishapIsReportedAndAPassingOneIsNot(t *testing.T) {
	t.Parallel()
	for name, c := range redistest.Mishaps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := redistest.NewWay(t, c, protocol.AcquireScript.Source())
			opts := []relock.ClientOption{relock.WithTTL(time.Second), relock.WithRenewInterval(time.Second / 2)}
			if c.Narrow { // a pipeline needs no connection of the pool
				opts = append(opts, relock.WithoutPipelining())
			}
			locks := locksOn(t, w.Rdb, opts...)
			m := locks.Mutex(redistest.Key(t))
			c.Befall(w)
			began := time.Now()
			held, err := m.TryLock(t.Context())
			require.Less(t, time.Since(began), 8*time.Second)
			require.Equal(t, !c.Lasts, held, "%v", err)
			if c.Lasts {
				requireIs(t, c, err)
				require.ErrorContains(t, err, m.Name())
				require.Zero(t, m.HoldCount())
			} else {
				require.NoError(t, err)
				require.NoError(t, m.Unlock())
			}
			w.Clear()
			redistest.Eventually(t, "nothing is left", func() bool {
				return w.Admin.Exists(t.Context(), m.Name()).Val() == 0
			})
			if c.Means.Permanent {
				return // a client that is closed stays so
			}
			redistest.Eventually(t, "all is well", func() bool { return m.Lock(t.Context()) == nil })
			locktest.RequireUnlocked(t, m)
		})
	}
}

func TestDistress_LockOnAFullServerFailsUntilItAdmitsTheClient(t *testing.T) {
	t.Parallel() // go-redis takes a second to give up
	for name, node := range map[string]bool{"alone": false, "a node": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, admin := redistest.NewFullServer(t, node)
			rdb := redis.NewClient(&redis.Options{Addr: server.Addr, DialerRetries: 1})
			t.Cleanup(func() { rdb.Close() })
			m := locksOn(t, rdb).Mutex("key", relock.WithFencing())
			_, err := m.TryLock(t.Context())
			require.Error(t, err)
			require.Zero(t, admin.DBSize(t.Context()).Val(), "something was executed")

			require.NoError(t, admin.ConfigSet(t.Context(), "maxclients", "1000").Err())
			redistest.Eventually(t, "let in", func() bool { return m.Lock(t.Context()) == nil })
			locktest.RequireUnlocked(t, m)
		})
	}
}
