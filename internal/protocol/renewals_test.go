package protocol

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

func TestRenewals_DueTogetherAreOneCommand(t *testing.T) {
	eachFleet(t, 7, func(t *testing.T, w *fleet) {
		w.requireRenewed(w.together(), 0, 1, 2, 3, 4, 5, 6)
		w.requireSent(1, 1)
		w.awaitNothingKept()
	})
}

func TestRenewals_SingleOneDoesNotWait(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		var results []renewed
		for i := range w.holds {
			results = append(results, w.renew(t.Context(), i, fleetPatience))
		}
		w.requireSent(3, 0)
		w.requireRenewed(results, 0, 1, 2)
	})
}

func TestRenewals_UrgentOneDoesNotWait(t *testing.T) {
	onFleet(t, 2, func(t *testing.T, w *fleet) {
		release, first := w.blockFirst()
		urgent := w.begin(t.Context(), 1, 10*companyTime-time.Millisecond)
		redistest.Receive(t, urgent) // which may be too late
		release()
		mustDo(t, redistest.Receive(t, first).out)
		redistest.Eventually(t, "both sent", func() bool { return w.relay.Count(runsOfRenew) == 2 })
		w.requireSent(2, 0)
	})
}

// The first may be stuck for as long as it is waited for.
func TestRenewals_WaitForCompanyOnlyBriefly(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		w.plain.renewals.company = companyTime
		release, first := w.blockFirst()
		others := w.renewals(1, 2)
		redistest.Eventually(t, "a bundle under way", func() bool { return w.underWay() > 1 })
		release()
		w.requireRenewed(w.results(append([]<-chan renewed{first}, others...)), 0, 1, 2)
	})
}

func TestRenewals_BundleHasABoundedNumberOfKeys(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	for n, of := range map[int]struct{ holds, alone, bundles int }{1: {121, 1, 2}, 3: {70, 1, 3}, 50: {6, 1, 3}, 51: {4, 4, 0}} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			onFleetOf(t, multiKind(n), of.holds, func(t *testing.T, w *fleet) {
				release, first := w.blockFirst()
				others := w.renewals(upTo(1, of.holds)...)
				if of.bundles > 0 {
					redistest.Eventually(t, "the rest to wait", func() bool {
						return w.underWay() == of.bundles && w.gathered() == (of.holds-1)%(bundleKeys/n)
					})
				}
				release()
				w.requireRenewed(w.results(append([]<-chan renewed{first}, others...)), upTo(0, of.holds)...)
				w.requireSent(of.alone, of.bundles)
				for _, e := range w.relay.Log() {
					if runsOfRenewMany(e.Command) {
						count, err := strconv.Atoi(e.Command.Arg(2))
						require.NoError(t, err)
						require.LessOrEqual(t, count, 100)
						require.Zero(t, count%n, "whole holds")
					}
				}
			})
		})
	}
}

func TestRenewals_BundleReportsALostHoldAndLengthensNoneOfItsKeys(t *testing.T) {
	for name, take := range redistest.Takings {
		t.Run(name, func(t *testing.T) {
			eachFleet(t, 4, func(t *testing.T, w *fleet) {
				lost := w.holds[2].on.Keys
				require.NoError(t, take(t.Context(), w.direct, lost[len(lost)-1], worn))
				w.requireRenewed(w.together(), 0, 1, 3)
				w.requireSent(1, 1)
				for _, key := range lost {
					require.LessOrEqual(t, w.ttl(key), worn)
				}
			})
		})
	}
}

// On a Cluster a command has keys of one slot.
func TestRenewals_OnlyKeysWithOneHashTagShareACommandOnACluster(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	for name, of := range map[string]struct {
		prefix         string
		alone, bundles int
	}{"one tag": {"{tag}", 1, 1}, "no tag": {"", 4, 0}} {
		t.Run(name, func(t *testing.T) {
			kind := plainKind
			kind.lock = func(t *testing.T, plain *Plain, key string) (Protocol, *keys.Set) {
				return plain, keysOf(t, of.prefix+key)
			}
			onFleetOf(t, kind, 4, func(t *testing.T, w *fleet) {
				w.plain.renewals.oneSlot = false
				if of.bundles > 0 {
					w.requireRenewed(w.together(), 0, 1, 2, 3)
				} else {
					release, first := w.blockFirst()
					others := w.renewals(1, 2, 3)
					redistest.Eventually(t, "all under way", func() bool { return w.underWay() == 4 })
					require.Zero(t, w.gathered())
					release()
					w.requireRenewed(w.results(append([]<-chan renewed{first}, others...)), 0, 1, 2, 3)
				}
				w.requireSent(of.alone, of.bundles)
			})
		})
	}
}

// As it does within the millisecond of the acquisition, or while the longer lease of an inner level is left. Otherwise
// a WAIT behind it would count all replicas.
func TestRenewals_WriteEvenIfTheLeaseIsLongEnough(t *testing.T) {
	t.Parallel()
	rdb, names := redistest.NewServer(t).Client(t), []string{redistest.Key(t)}
	inOneMillisecond := func(renew func(p redis.Pipeliner)) int {
		before := writesOn(t, rdb)
		_, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Eval(t.Context(), AcquireScript.Source(), names, me, 10_000)
			renew(p)
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, rdb.Del(t.Context(), names...).Err())
		return writesOn(t, rdb) - before
	}
	none := inOneMillisecond(func(redis.Pipeliner) {})
	for _, lease := range []int{10_000, 9_000} { // 9 s are less than is left
		require.Equal(t, none+1, inOneMillisecond(func(p redis.Pipeliner) {
			p.Eval(t.Context(), RenewScript.Source(), names, me, lease)
		}), "%d ms", lease)
		require.Equal(t, none+1, inOneMillisecond(func(p redis.Pipeliner) {
			p.Eval(t.Context(), RenewManyScript.Source(), names, lease, 1, me)
		}), "%d ms, together", lease)
	}
}
