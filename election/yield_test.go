package election_test

import (
	"cmp"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/election"
	"github.com/relock-go/relock/relocktest"
)

// The process that waits is first, although candidates of the old leader's process wait, too, and hand-overs among them are faster.
// WithAsyncUnlock the next Lock of the old leader is one of them.
func TestElection_AnotherProcessFollowsALeaderThatGivesWay(t *testing.T) {
	for name, c := range map[string]struct {
		opts []relock.ClientOption
		old  int // candidates of the first process
	}{
		"two candidates of one process": {nil, 2},
		"WithAsyncUnlock":               {[]relock.ClientOption{relock.WithAsyncUnlock()}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := relocktest.New(t, c.opts...)
				other := locksOn(t, relocktest.Redis(t, locks), c.opts...)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var runs []<-chan error
				old, another := newJob(), newJob()
				for range c.old {
					runs = append(runs, begin(ctx, locks.Mutex("job"), old.lead, election.WithYield(time.Minute)))
					time.Sleep(time.Second)
				}
				runs = append(runs, begin(ctx, other.Mutex("job"), another.lead, election.WithYield(time.Minute)))
				began := time.Now()
				<-another.terms
				require.Less(t, time.Since(began), time.Duration(c.old)*time.Minute+time.Second)
				cancel()
				for _, run := range runs {
					require.ErrorIs(t, <-run, context.Canceled)
				}
			})
		})
	}
}

func TestElection_LeaderThatGivesWayDuringAnOutageCampaignsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := relocktest.New(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		terms := make(chan struct{}, 16)
		var setback error // the first one
		outage := sync.OnceFunc(func() { relocktest.Outage(t, c, 10*time.Second) })
		run := begin(ctx, c.Mutex("job"), func(ctx context.Context, _ int64) error {
			terms <- struct{}{}
			<-ctx.Done()
			outage()
			return nil
		}, election.WithYield(0), election.OnSetback(func(err error) { setback = cmp.Or(setback, err) }))
		<-terms
		other := locksOn(t, relocktest.Redis(t, c)).Mutex("job")
		require.NoError(t, other.Lock(ctx))
		require.NoError(t, other.Unlock())
		<-terms
		cancel()
		<-run
		require.ErrorContains(t, setback, "not confirmed")
	})
}

// lead returns the error of its context, which ended with the loss, and not because ctx did.
func TestElection_CauseOfTheEndIsReportedAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := relocktest.New(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		err := <-begin(ctx, c.Mutex("job"), func(ctx context.Context, _ int64) error {
			relocktest.Lose(t, c, "job")
			<-ctx.Done()
			return ctx.Err()
		}, election.OnSetback(func(error) { cancel(errCustom) }))
		require.ErrorIs(t, err, errCustom)
		require.ErrorIs(t, err, relock.ErrLost)
	})
}
