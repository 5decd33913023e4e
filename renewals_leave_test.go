package relock

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

func TestUnlock_DoesNotWaitForARenewalBundle(t *testing.T) {
	onFleet(t, 2, func(t *testing.T, w *fleet) {
		late := w.relay.HoldBackSilently(locktest.RunsOf(protocol.RenewManyScript))
		proceed, renewed := w.gather()
		proceed()
		late.Wait(t)
		m := w.locks[1]
		locktest.RequireUnlocked(t, m)
		locktest.RequireFree(t, w.direct, m.target.Keys...)

		next := w.c.Mutex(m.target.Keys[0], WithOwner("job-1"), WithTTL(worn), WithoutRenewal())
		locktest.RequireLocked(t, next)
		reply, err := late.Deliver(t.Context())
		require.NoError(t, err)
		require.Equal(t, "*1\r\n:1\r\n", reply, "it is lost")
		require.LessOrEqual(t, locktest.TTLOf(w.direct, next.target.Keys[0]), worn, "it is another life")
		locktest.RequireUnlocked(t, next)
		redistest.Receive(t, renewed)
		w.relay.Cut() // or Close would wait for a time-out of that connection
		w.requireRenewed(0)
	})
}

func TestClose_DoesNotWaitForARenewalBundleInFlight(t *testing.T) {
	onFleet(t, 4, func(t *testing.T, w *fleet) {
		late := w.relay.HoldBackSilently(locktest.RunsOf(protocol.RenewManyScript))
		proceed, renewed := w.gather()
		proceed()
		late.Wait(t)
		closed := make(chan error, 1)
		go func() { closed <- w.c.Close() }()
		redistest.Receive(t, renewed)
		w.relay.Cut() // or Close would wait for a time-out of that connection
		require.NoError(t, locktest.OutcomeOf(t, closed))
		for _, m := range w.locks {
			locktest.RequireFree(t, w.direct, m.target.Keys...)
		}
	})
}

// whileABundleGathers runs test in a bubble, in which a bundle of all holds of plain locks but the first gathers,
// and is not sent before the first is answered, which proceed lets happen.
func whileABundleGathers(t *testing.T, n int, test func(t *testing.T, w *fleet, sent *atomic.Int64, proceed func())) {
	t.Helper()
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		w := &fleet{t: t, direct: rdb, events: &chronicle{}}
		w.c = LocksOn(t, rdb, WithHooks(w.events.Hooks()))
		defer w.c.Close()
		for i := range n {
			w.locks = append(w.locks, w.c.Mutex(fmt.Sprint("lock:", i), WithOwner(fmt.Sprint("job-", i)), WithTTL(fleetTTL)))
			locktest.RequireLocked(t, w.locks[i])
			w.holds = append(w.holds, holdsOn(w.c.session, w.locks[i].Name())[0])
			require.NoError(t, rdb.PExpire(t.Context(), w.locks[i].Name(), worn).Err())
		}
		locktest.LoadScripts(t, rdb)
		first, free := make(chan struct{}), make(chan struct{})
		begins := sync.OnceFunc(func() { close(first) })
		var sent atomic.Int64 // keys of others that were in bundles
		// A command that is kept back keeps others of its connection back, too.
		b.Miniredis.Server().SetPreHook(func(_ *server.Peer, command string, args ...string) bool {
			runs := func(s *redisexec.Script) bool {
				return redistest.Script(s.Source())(append(redistest.Command{command}, args...))
			}
			switch {
			case runs(protocol.RenewScript):
				begins()
				<-free
			case runs(protocol.RenewManyScript):
				keys, _ := strconv.Atoi(args[1])
				sent.Add(int64(keys))
			}
			return false
		})
		var all sync.WaitGroup
		all.Go(w.holds[0].renew)
		<-first
		for _, h := range w.holds[1:] {
			all.Go(h.renew)
		}
		synctest.Wait() // no time has passed
		require.Zero(t, sent.Load())
		proceed := sync.OnceFunc(func() {
			close(free)
			all.Wait()
		})
		defer proceed()
		test(t, w, &sent, proceed)
	})
}

func TestUnlock_LeavesTheGatheringRenewalBundle(t *testing.T) {
	whileABundleGathers(t, 4, func(t *testing.T, w *fleet, sent *atomic.Int64, proceed func()) {
		id := w.c.ID()
		unlocked := make(chan error, 1)
		go func() { unlocked <- w.locks[2].Unlock() }() // which may come through behind the first
		synctest.Wait()
		require.Equal(t, id, w.c.ID(), "nothing was sent")
		proceed()
		require.NoError(t, <-unlocked)
		require.EqualValues(t, 2, sent.Load())
		w.requireRenewed(0, 1, 3)
	})
}

func TestClose_DoesNotWaitForAGatheringRenewalBundle(t *testing.T) {
	whileABundleGathers(t, 4, func(t *testing.T, w *fleet, _ *atomic.Int64, proceed func()) {
		closed := make(chan error, 1)
		go func() { closed <- w.c.Close() }()
		synctest.Wait() // all have left it, or it is sent because the first has left
		proceed()
		require.NoError(t, <-closed)
		for _, m := range w.locks {
			locktest.RequireFree(t, w.direct, m.Name())
		}
	})
}
