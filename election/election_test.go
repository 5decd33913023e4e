package election_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/election"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relocktest"
)

var errCustom = errors.New("the job cannot go on")

func locksOn(t *testing.T, rdb redis.UniversalClient, opts ...relock.ClientOption) *relock.Client {
	t.Helper()
	c, err := relock.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// begin calls Run in a goroutine.
func begin(ctx context.Context, m *relock.Mutex, lead func(context.Context, int64) error, opts ...election.Option) <-chan error {
	result := make(chan error, 1)
	go func() { result <- election.Run(ctx, m, lead, opts...) }()
	return result
}

// A job leads until its context ends, and reports its terms.
type job struct{ terms chan term }

type term struct {
	ctx   context.Context
	token int64
}

func newJob() *job { return &job{make(chan term, 16)} }

func (j *job) lead(ctx context.Context, token int64) error {
	j.terms <- term{ctx, token}
	<-ctx.Done()
	return context.Cause(ctx)
}

func isFree(t *testing.T, m *relock.Mutex) {
	t.Helper()
	state, err := m.State(t.Context())
	require.NoError(t, err)
	require.Empty(t, state.Owner)
}

func TestElection_OneLeadsAndTheNextFollowsAResignation(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		const processes, each = 3, 4
		key := redistest.Key(t)
		var leading, terms atomic.Int64
		var last int64 // token, guarded by the lock
		var runs []<-chan error
		for range processes {
			m := locksOn(t, b.Client(t)).Mutex(key, relock.WithFencing())
			for range each { // with one handle
				runs = append(runs, begin(t.Context(), m, func(ctx context.Context, token int64) error {
					defer leading.Add(-1)
					if leading.Add(1) != 1 || token <= last || ctx.Err() != nil {
						return errCustom
					}
					last = token
					terms.Add(1)
					return nil
				}))
			}
		}
		for _, run := range runs {
			require.NoError(t, redistest.Receive(t, run))
		}
		require.EqualValues(t, processes*each, terms.Load())
	})
}

func TestElection_ReturnOfLeadEndsRun(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		m := locksOn(t, b.Client(t)).Mutex(redistest.Key(t))
		for _, want := range []error{nil, errCustom, context.Canceled, relock.ErrLost} { // of another context, and another lock
			err := election.Run(t.Context(), m, func(_ context.Context, token int64) error {
				require.Zero(t, token)
				require.Equal(t, 1, m.HoldCount(), "on the goroutine of Run")
				return want
			})
			require.Equal(t, want, err)
			isFree(t, m)
		}
	})
}

func TestElection_LeaderGivesWayAfterItsTime(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		const least = 200 * time.Millisecond
		key := redistest.Key(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first, second, setbacks := newJob(), newJob(), make(chan error, 16)
		yields := []election.Option{election.WithYield(least), election.OnSetback(func(err error) { setbacks <- err })}
		runs := []<-chan error{begin(ctx, locksOn(t, b.Client(t)).Mutex(key), first.lead, yields...)}
		leads := redistest.Receive(t, first.terms)
		for i := range 6 { // in turns, as soon as the other one waits
			began := time.Now()
			if i == 0 {
				runs = append(runs, begin(ctx, locksOn(t, b.Client(t)).Mutex(key), second.lead, yields...))
			}
			next := redistest.Receive(t, []*job{second, first}[i%2].terms)
			require.ErrorIs(t, context.Cause(leads.ctx), election.ErrYielded)
			if leads = next; i > 0 {
				require.GreaterOrEqual(t, time.Since(began), least-50*time.Millisecond)
			}
		}
		cancel()
		for _, run := range runs {
			require.ErrorIs(t, redistest.Receive(t, run), context.Canceled)
		}
		require.Empty(t, setbacks, "it is none")
	})
}

func TestElection_LeaderThatNobodyWaitsForLeadsOn(t *testing.T) {
	redistest.InBubble(t, func(t *testing.T, b *redistest.Backend) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		j := newJob()
		run := begin(ctx, locksOn(t, b.Client(t)).Mutex("key"), j.lead, election.WithYield(time.Second))
		leads := redistest.Receive(t, j.terms)
		time.Sleep(time.Hour)
		require.NoError(t, leads.ctx.Err())
		cancel()
		require.ErrorIs(t, redistest.Receive(t, run), context.Canceled)
	})
}

func TestElection_ErrorOfLeadThatGivesWayIsASetback(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		key := redistest.Key(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		setbacks, leads := make(chan error, 1), make(chan struct{}, 16)
		run := begin(ctx, locksOn(t, b.Client(t)).Mutex(key), func(ctx context.Context, _ int64) error {
			leads <- struct{}{}
			<-ctx.Done()
			return errCustom
		}, election.WithYield(0), election.OnSetback(func(err error) { setbacks <- err }))
		redistest.Receive(t, leads)
		other := locksOn(t, b.Client(t)).Mutex(key)
		require.NoError(t, other.Lock(ctx))
		require.ErrorIs(t, redistest.Receive(t, setbacks), errCustom)
		require.NoError(t, other.Unlock())
		redistest.Receive(t, leads) // again
		cancel()
		require.ErrorIs(t, redistest.Receive(t, run), errCustom)
	})
}

func TestElection_LeadsAgainAfterALossWithAHigherToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := relocktest.New(t)
		m, j := c.Mutex("job", relock.WithFencing()), newJob()
		setbacks := make(chan error, 16)
		ctx, cancel := context.WithCancel(t.Context())
		run := begin(ctx, m, j.lead, election.OnSetback(func(err error) { setbacks <- err }))
		last := term{}
		for range 5 {
			next := <-j.terms
			require.Greater(t, next.token, last.token)
			require.NoError(t, next.ctx.Err())
			relocktest.Lose(t, c, "job")
			require.ErrorIs(t, context.Cause(next.ctx), relock.ErrLost)
			require.ErrorIs(t, <-setbacks, relock.ErrLost)
			last = next
		}
		<-j.terms
		cancel()
		require.ErrorIs(t, <-run, context.Canceled)
		require.Empty(t, setbacks)
		isFree(t, m)
	})
}

// The error of lead about a lost term is reported, but does not end Run: the loss may be its cause.
func TestElection_ErrorOfLeadAfterALossIsASetback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := relocktest.New(t)
		var setback error
		terms := 0
		err := election.Run(t.Context(), c.Mutex("job"), func(context.Context, int64) error {
			if terms++; terms == 1 {
				relocktest.Lose(t, c, "job")
				return errCustom
			}
			return nil
		}, election.OnSetback(func(err error) { setback = err }))
		require.NoError(t, err)
		require.Equal(t, 2, terms)
		require.ErrorIs(t, setback, errCustom)
		require.ErrorIs(t, setback, relock.ErrLost)
	})
}

func TestElection_RunEndsWithItsContext(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, c *relock.Client){
		"while it leads":                     func(*testing.T, *relock.Client) {},
		"while another process leads":        func(t *testing.T, c *relock.Client) { relocktest.HoldElsewhere(t, c, "job") },
		"while Redis does not answer":        func(t *testing.T, c *relock.Client) { relocktest.Outage(t, c, time.Hour) },
		"when it has ended before it begins": nil,
	} {
		for _, after := range []time.Duration{0, time.Millisecond, time.Second, 5*time.Second + 300*time.Millisecond, time.Minute} {
			t.Run(name+", after "+after.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c, j := relocktest.New(t), newJob()
					ctx, cancel := context.WithCancelCause(t.Context())
					if prepare == nil {
						cancel(errCustom)
					} else {
						prepare(t, c)
					}
					run := begin(ctx, c.Mutex("job"), j.lead)
					time.Sleep(after)
					began := time.Now()
					cancel(errCustom)
					require.ErrorIs(t, <-run, errCustom)
					require.Less(t, time.Since(began), time.Second)
				})
			})
		}
	}
}

func TestElection_RunReportsTheLastSetbackAtTheEndOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := relocktest.New(t)
		relocktest.HoldElsewhere(t, c, "job")
		ctx, cancel := context.WithCancel(t.Context())
		err := election.Run(ctx, c.Mutex("job", relock.WithWaitTimeout(time.Second)), newJob().lead,
			election.OnSetback(func(error) { cancel() }))
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, relock.ErrTimeout)
	})
}

func TestElection_LeaderStepsDownInAnOutageAndLeadsAgain(t *testing.T) {
	redistest.Slow(t)
	synctest.Test(t, func(t *testing.T) {
		c, j := relocktest.New(t), newJob()
		setbacks := 0
		ctx, cancel := context.WithCancel(t.Context())
		run := begin(ctx, c.Mutex("job"), j.lead, election.OnSetback(func(error) { setbacks++ }))
		first := <-j.terms
		const outage = 10 * time.Minute
		relocktest.Outage(t, c, outage)
		began := time.Now()
		<-first.ctx.Done()
		require.LessOrEqual(t, time.Since(began), 30*time.Second, "before the lease ends on Redis")
		<-j.terms
		require.InDelta(t, outage, time.Since(began), float64(10*time.Second))
		cancel()
		require.ErrorIs(t, <-run, context.Canceled)
		require.Greater(t, setbacks, 16)
		require.Less(t, setbacks, 1600)
	})
}

// Each try fails at once here: only the pauses keep it from a hot loop.
func TestElection_PausesBetweenTriesWhileRedisRefuses(t *testing.T) {
	redistest.Slow(t)
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
			return nil, syscall.ECONNREFUSED
		}})
		defer rdb.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		setbacks := 0
		err := election.Run(ctx, locksOn(t, rdb).Mutex("job"), newJob().lead, election.OnSetback(func(error) { setbacks++ }))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Positive(t, setbacks)
		require.Less(t, setbacks, 20)
	})
}

// The pauses are long while nothing goes well, and short again after a term.
func TestElection_FirstTryAfterATermComesSoon(t *testing.T) {
	redistest.Slow(t)
	synctest.Test(t, func(t *testing.T) {
		c, j := relocktest.New(t), newJob()
		relocktest.Outage(t, c, 10*time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		run := begin(ctx, c.Mutex("job"), j.lead)
		<-j.terms
		for range 10 {
			began := time.Now()
			relocktest.Lose(t, c, "job")
			<-j.terms
			require.LessOrEqual(t, time.Since(began), 16*time.Millisecond)
			require.GreaterOrEqual(t, time.Since(began), 8*time.Millisecond)
		}
		cancel()
		require.ErrorIs(t, <-run, context.Canceled)
	})
}

func TestElection_DeadLeaderIsFollowedAfterItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, j := relocktest.New(t), newJob()
		rdb := relocktest.Redis(t, c)
		require.NoError(t, rdb.HSet(t.Context(), "job", "dead:1", 1).Err())
		require.NoError(t, rdb.PExpire(t.Context(), "job", 30*time.Second).Err())
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		run := begin(ctx, c.Mutex("job"), j.lead)
		<-j.terms
		require.InDelta(t, 30*time.Second, time.Since(began), float64(time.Second))
		cancel()
		require.ErrorIs(t, <-run, context.Canceled)
	})
}

func TestElection_TimedOutWaitIsASetback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, j := relocktest.New(t), newJob()
		release := relocktest.HoldElsewhere(t, c, "job")
		setbacks := make(chan error, 16)
		ctx, cancel := context.WithCancel(t.Context())
		run := begin(ctx, c.Mutex("job", relock.WithWaitTimeout(time.Second)), j.lead, election.OnSetback(func(err error) { setbacks <- err }))
		for range 3 {
			require.ErrorIs(t, <-setbacks, relock.ErrTimeout)
		}
		release()
		<-j.terms
		cancel()
		require.ErrorIs(t, <-run, context.Canceled)
	})
}

func TestElection_LeadThatDoesNotReturnResigns(t *testing.T) {
	for name, leave := range map[string]func(){"by a panic": func() { panic(errCustom) }, "by Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			m := relocktest.New(t).Mutex("job")
			panicked := make(chan any)
			go func() {
				defer func() { panicked <- recover() }()
				_ = election.Run(t.Context(), m, func(context.Context, int64) error {
					leave()
					return nil
				})
			}()
			if got := <-panicked; name == "by a panic" {
				require.Equal(t, errCustom, got)
			}
			isFree(t, m)
		})
	}
}

func TestElection_PermanentErrorEndsRun(t *testing.T) {
	t.Run("the client is closed while another process leads", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := relocktest.New(t)
			relocktest.HoldElsewhere(t, c, "job")
			run := begin(t.Context(), c.Mutex("job"), newJob().lead)
			time.Sleep(time.Minute)
			require.NoError(t, c.Close())
			require.ErrorIs(t, <-run, relock.ErrClosed)
		})
	})
	t.Run("the client is closed while it leads", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, j := relocktest.New(t), newJob()
			run := begin(t.Context(), c.Mutex("job"), j.lead)
			<-j.terms
			require.NoError(t, c.Close())
			require.ErrorIs(t, <-run, relock.ErrClosed)
		})
	})
	t.Run("the Redis client is closed", func(t *testing.T) {
		rdb := redistest.Mini(t).Client(t)
		c := locksOn(t, rdb)
		require.NoError(t, rdb.Close())
		require.ErrorIs(t, redistest.Receive(t, begin(t.Context(), c.Mutex("job"), newJob().lead)), redis.ErrClosed)
	})
	t.Run("the key is something else", func(t *testing.T) {
		c := relocktest.New(t)
		require.NoError(t, relocktest.Redis(t, c).Set(t.Context(), "job", "x", 0).Err())
		require.ErrorIs(t, redistest.Receive(t, begin(t.Context(), c.Mutex("job"), newJob().lead)), relock.ErrInvalidName)
	})
}

func TestElection_HolderOfTheLockCannotCampaign(t *testing.T) {
	c := relocktest.New(t)
	m := c.Mutex("job")
	require.NoError(t, m.Lock(t.Context()))
	require.ErrorIs(t, election.Run(t.Context(), m, newJob().lead), relock.ErrReentrant)
	relocktest.Lose(t, c, "job")
	require.ErrorIs(t, election.Run(t.Context(), m, newJob().lead), relock.ErrLost)
	require.ErrorIs(t, m.Unlock(), relock.ErrLost)
	require.NoError(t, election.Run(t.Context(), m, func(context.Context, int64) error { return nil }))
}

func TestElection_BadInputEndsRunBeforeAnythingIsSent(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // no one answers there
	defer rdb.Close()
	c, lead := locksOn(t, rdb), newJob().lead
	var nilContext context.Context
	for name, err := range map[string]error{
		"nil context":   election.Run(nilContext, c.Mutex("job"), lead),
		"nil Mutex":     election.Run(t.Context(), nil, lead),
		"nil lead":      election.Run(t.Context(), c.Mutex("job"), nil),
		"nil Option":    election.Run(t.Context(), c.Mutex("job"), lead, nil),
		"nil OnSetback": election.Run(t.Context(), c.Mutex("job"), lead, election.OnSetback(nil)),
		"bad yield":     election.Run(t.Context(), c.Mutex("job"), lead, election.WithYield(-1)),
		"bad option":    election.Run(t.Context(), c.Mutex("job", relock.WithTTL(1)), lead),
	} {
		require.ErrorIs(t, err, relock.ErrInvalidOption, name)
		require.ErrorContains(t, err, "election: ", name)
	}
	require.ErrorIs(t, election.Run(t.Context(), c.Mutex("a{b"), lead), relock.ErrInvalidName)
	quorum, err := relock.NewQuorum([]redis.UniversalClient{rdb})
	require.NoError(t, err)
	defer quorum.Close()
	require.ErrorIs(t, election.Run(t.Context(), quorum.FairMutex("job"), lead), relock.ErrUnsupported)
}
