package protocol

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redistest"
)

var (
	runsOfRenew     = redistest.Script(RenewScript.Source())
	runsOfRenewMany = redistest.Script(RenewManyScript.Source())
)

func TestRenewals_RefusedBundleIsRenewedOneByOne(t *testing.T) {
	t.Parallel()
	for name, refused := range redistest.BundleReplies {
		t.Run(name, func(t *testing.T) {
			onFleet(t, 4, func(t *testing.T, w *fleet) {
				w.relay.ReplyWith(refused.Text, runsOfRenewMany)
				results := w.together()
				w.requireSent(1+3, 0) // the relay has answered the bundle
				for i, r := range results {
					require.NoError(t, r.out.Err)
					require.True(t, r.ours)
					require.Equal(t, refused.Doubt && i > 0, r.out.Ambiguous)
					w.requireLonger(i)
				}
			})
		})
	}
}

// There are proxies that take no command for several keys.
func TestRenewals_AreSentAloneForAWhileAfterAFailedBundle(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		w.relay.ReplyWith("-CROSSSLOT Keys in request don't hash to the same slot\r\n", runsOfRenewMany)
		w.together()
		w.requireSent(3, 0)

		release, first := w.blockFirst()
		w.clock.forward(bundlePause - time.Second)
		second := w.begin(t.Context(), 1, fleetPatience)
		throughout(t, 100*time.Millisecond, func() bool { return w.gathered() == 0 }, "it does not wait for others")
		release()
		redistest.Receive(t, first)
		redistest.Receive(t, second)
		w.requireSent(5, 0)

		w.clock.forward(2 * time.Second)
		w.requireRenewed(w.together(), 0, 1, 2)
		w.requireSent(6, 1)
	})
}

// A bundle that gathers while the one before it fails goes alone, too.
func TestRenewals_GatheringBundleIsNotSentAfterAFailure(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		proceed, all := w.gather()
		r := w.plain.renewals
		r.mu.Lock()
		r.apartEnd = w.clock.now().After(bundlePause)
		r.mu.Unlock()
		proceed()
		w.requireRenewed(w.results(all), 0, 1, 2)
		w.requireSent(3, 0)
	})
}

func TestRenewals_ForbiddenKeyFailsAlone(t *testing.T) {
	t.Parallel()
	redistest.RequireServer(t)
	server := redistest.NewServer(t)
	admin := server.Client(t)
	user := func(keys string) {
		require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "app", "on", ">secret", "resetkeys", keys, "allchannels", "+@all").Err())
	}
	user("~*")
	w := newFleet(t, server.Addr, admin, func(o *redis.Options) { o.Username, o.Password = "app", "secret" }, plainKind, 5)
	user("~*-[0124]")
	for i, r := range w.together() {
		require.False(t, r.out.Ambiguous, "nothing was executed that is not known")
		if i == 3 {
			require.ErrorContains(t, r.out.Err, "NOPERM")
			require.LessOrEqual(t, w.ttl(w.holds[3].on.Keys[0]), worn)
			continue
		}
		mustDo(t, r.out)
		require.True(t, r.ours)
		w.requireLonger(i)
	}
	w.requireSent(1+4, 1)
	user("~*")
	require.True(t, w.renew(t.Context(), 3, fleetPatience).ours)
	w.requireLonger(3)
	w.clock.forward(bundlePause + time.Second)
	w.requireRenewed(w.together(), 0, 1, 2, 3, 4)
	w.requireSent(1+4+1+1, 2)
}

func TestRenewals_LeavingASentBundleIsUncertain(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		late := w.relay.HoldBackSilently(runsOfRenewMany)
		release, first := w.blockFirst()
		gathering, leave := context.WithCancel(t.Context())
		leaves := w.begin(gathering, 1, fleetPatience)
		underWay, leaveLater := context.WithCancel(t.Context())
		leavesLater := w.begin(underWay, 2, fleetPatience)
		w.awaitGathered(2)
		leave()
		r := redistest.Receive(t, leaves)
		require.ErrorIs(t, r.out.Err, context.Canceled)
		require.False(t, r.out.Ambiguous)
		release()
		require.NoError(t, redistest.Receive(t, first).out.Err)
		late.Wait(t)
		leaveLater()
		r = redistest.Receive(t, leavesLater)
		require.ErrorIs(t, r.out.Err, context.Canceled)
		require.True(t, r.out.Ambiguous)
		redistest.Eventually(t, "the bundle to be abandoned", func() bool { return w.underWay() == 0 })
		w.awaitNothingKept()
		reply, err := late.Deliver(t.Context())
		require.NoError(t, err)
		require.Equal(t, ":1\r\n", reply, "the one that left before is not in it")
		require.LessOrEqual(t, w.ttl(w.holds[1].on.Keys[0]), worn)
		w.relay.Cut()
	})
}

// A bundle is waited for as long as its most patient member waits: each leaves in its own time.
func TestRenewals_OthersAreRenewedThoughOneLeft(t *testing.T) {
	onFleet(t, 4, func(t *testing.T, w *fleet) {
		bundle := w.relay.Block(runsOfRenewMany)
		release, first := w.blockFirst()
		impatient := w.begin(t.Context(), 1, time.Second)
		canceled, leave := context.WithCancel(t.Context())
		leaving := w.begin(canceled, 2, fleetPatience)
		patient := w.begin(t.Context(), 3, fleetPatience)
		w.awaitGathered(3)
		release()
		bundle.Wait(t)
		leave()
		require.ErrorIs(t, redistest.Receive(t, leaving).out.Err, context.Canceled)
		r := redistest.Receive(t, impatient)
		require.ErrorIs(t, r.out.Err, lockerr.ErrNoAnswer)
		require.True(t, r.out.Ambiguous)
		bundle.Release()
		for i, result := range map[int]<-chan renewed{0: first, 3: patient} {
			r := redistest.Receive(t, result)
			mustDo(t, r.out)
			require.True(t, r.ours)
			w.requireLonger(i)
		}
		w.awaitNothingKept()
	})
}

func TestRenewals_EmptyBundleIsNotSent(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		release, first := w.blockFirst()
		ctx, leave := context.WithCancel(t.Context())
		second, third := w.begin(ctx, 1, fleetPatience), w.begin(ctx, 2, fleetPatience)
		w.awaitGathered(2)
		leave()
		for _, result := range []<-chan renewed{second, third} {
			r := redistest.Receive(t, result)
			require.ErrorIs(t, r.out.Err, context.Canceled)
			require.False(t, r.out.Ambiguous)
		}
		release()
		mustDo(t, redistest.Receive(t, first).out)
		w.awaitNothingKept()
		w.requireSent(1, 0)
	})
}
