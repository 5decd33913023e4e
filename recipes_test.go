package relock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/election"
	"github.com/relock-go/relock/fence"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relocktest"
)

// The recipes of docs/recipes.md. TestDocs_CodeCompiles holds the two together.

func nightly(ctx context.Context, locks *relock.Client, job func(context.Context) error) (err error) {
	m := locks.Mutex("cron:nightly", relock.WithMinHold(time.Minute)) // more than the clocks of nodes differ
	held, err := m.TryLock(ctx)
	if err != nil || !held {
		return err // not held: another node runs the job, or ran it within this minute
	}
	defer func() { err = errors.Join(err, m.Unlock()) }()
	return job(m.Context(ctx))
}

func TestRecipes_CronJobRunsOnOneNode(t *testing.T) {
	here, there, stop := twoProcesses()
	defer stop()
	runs := 0
	err := nightly(t.Context(), here, func(ctx context.Context) error {
		runs++
		return nightly(ctx, there, func(context.Context) error { runs++; return nil })
	})
	require.NoError(t, err)
	require.Equal(t, 1, runs)

	// The clock of this node is late: the job is over when it starts.
	require.NoError(t, nightly(t.Context(), there, func(context.Context) error { runs++; return nil }))
	require.Equal(t, 1, runs)
}

func TestRecipes_CronJobReportsALoss(t *testing.T) {
	here, there, stop := twoProcesses()
	defer stop()
	err := nightly(t.Context(), here, func(context.Context) error {
		_, err := there.Mutex("cron:nightly").ForceUnlock(t.Context())
		return err
	})
	require.ErrorIs(t, err, relock.ErrLost)
}

func summarize(ctx context.Context, locks *relock.Client, call func(context.Context) error) error {
	return locks.Semaphore("llm", 20).Do(ctx, call) // its ctx is cancelled with ErrLost if the permit is lost
}

func translate(ctx context.Context, locks *relock.Client, call func(context.Context) error) (err error) {
	permit, err := locks.Semaphore("llm", 20).AcquireN(ctx, 3) // a large call: all three, or it waits
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, permit.Release()) }()
	return call(permit.Context(ctx))
}

func TestRecipes_CallsAreLimitedOverTwoProcesses(t *testing.T) {
	here, there, stop := twoProcesses()
	defer stop()
	calls := here.Semaphore("llm", 20)
	err := summarize(t.Context(), here, func(ctx context.Context) error {
		return translate(ctx, there, func(ctx context.Context) error {
			state, err := calls.State(ctx)
			require.Equal(t, 4, state.InUse)
			return err
		})
	})
	require.NoError(t, err)
	all, err := calls.AcquireN(t.Context(), 20)
	require.NoError(t, err, "all were released")
	require.NoError(t, all.Release())
}

func migrateTenant(ctx context.Context, locks *relock.Client, tenant string, migrate func(context.Context) error) error {
	return locks.Mutex("migrate:"+tenant).Do(ctx, func(ctx context.Context) error { // each tenant by one process,
		return locks.Semaphore("migrations", 3).Do(ctx, migrate) // and at most three of them at a time
	})
}

func TestRecipes_AtMostThreeMigrationsRunAtATime(t *testing.T) {
	here, there, stop := twoProcesses()
	defer stop()
	const tenants = 8
	var running atomic.Int32
	begun, end, done := make(chan string, 2*tenants), make(chan struct{}), make(chan error, 2*tenants)
	for _, locks := range []*relock.Client{here, there} {
		for n := range tenants {
			tenant := fmt.Sprint("tenant", n)
			go func() {
				done <- migrateTenant(t.Context(), locks, tenant, func(ctx context.Context) error {
					defer running.Add(-1)
					if n := running.Add(1); n > 3 {
						return fmt.Errorf("%d at a time", n)
					}
					begun <- tenant
					<-end
					return ctx.Err()
				})
			}()
		}
	}
	together := map[string]bool{}
	for range 3 {
		together[redistest.Receive(t, begun)] = true
	}
	require.Len(t, together, 3, "of different tenants")
	redistest.Eventually(t, "all tenants wait", func() bool {
		state, err := here.Semaphore("migrations", 3).State(t.Context())
		return err == nil && state.InUse == 3 && state.Waiting == tenants-3
	})
	require.Empty(t, begun)
	close(end)
	for range 2 * tenants {
		require.NoError(t, redistest.Receive(t, done))
	}
}

func sendMail(ctx context.Context, locks *relock.Client, send func(context.Context) error) error {
	return locks.Semaphore("mail", 100, relock.WithMinHold(time.Minute), relock.WithTTL(time.Minute)).Do(ctx, send)
}

func TestRecipes_AtMostAHundredMailsBeginInAMinute(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	synctest.Test(t, func(t *testing.T) {
		here := relocktest.New(t)
		there, err := relock.New(relocktest.Redis(t, here))
		require.NoError(t, err)
		defer there.Close()
		const mails = 130
		began := time.Now()
		var mu sync.Mutex
		var starts []time.Duration
		var all sync.WaitGroup
		for i := range mails {
			all.Go(func() {
				if err := sendMail(t.Context(), []*relock.Client{here, there}[i%2], func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					starts = append(starts, time.Since(began))
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.Len(t, starts, mails)
		for i := range mails - 100 {
			require.GreaterOrEqual(t, starts[i+100]-starts[i], time.Minute-time.Millisecond)
		}
		require.Less(t, starts[mails-1], 2*time.Minute, "and no minute is wasted")
	})
}

func runScheduler(ctx context.Context, locks *relock.Client, schedule func(context.Context) error) error {
	return election.Run(ctx, locks.Mutex("scheduler"), func(ctx context.Context, token int64) error {
		return schedule(ctx) // until ctx ends: then another process may lead
	})
}

func TestRecipes_LeaderIsOneOfTwo(t *testing.T) {
	here, there, stop := twoProcesses()
	defer stop()
	ctx, resign := context.WithCancel(t.Context())
	leads, done := make(chan string, 2), make(chan error)
	for name, locks := range map[string]*relock.Client{"here": here, "there": there} {
		go func() {
			done <- runScheduler(ctx, locks, func(ctx context.Context) error {
				leads <- name
				<-ctx.Done()
				return ctx.Err()
			})
		}()
	}
	redistest.Receive(t, leads)
	resign()
	require.ErrorIs(t, redistest.Receive(t, done), context.Canceled)
	require.ErrorIs(t, redistest.Receive(t, done), context.Canceled)
	require.Empty(t, leads)
}

func compact(ctx context.Context, locks *relock.Client, step func(context.Context) (more bool, err error)) error {
	m := locks.Mutex("storage")
	for more := true; more; {
		err := m.Do(ctx, func(ctx context.Context) (err error) {
			wanted := m.Wanted(ctx)
			for {
				if more, err = step(ctx); err != nil || !more {
					return err
				}
				select {
				case <-wanted:
					return nil // another owner waits: it is first, and compact goes on after it
				default:
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func TestRecipes_LongJobGivesWay(t *testing.T) {
	here, there, stop := twoProcesses()
	defer stop()
	began, steps := make(chan struct{}), 0
	done := make(chan error)
	go func() {
		done <- compact(t.Context(), here, func(ctx context.Context) (bool, error) {
			if steps++; steps == 1 {
				close(began)
				select { // the work of a step
				case <-here.Mutex("storage").Wanted(ctx):
				case <-time.After(redistest.SoonEnough):
				}
			}
			return steps < 100, nil
		})
	}()
	<-began
	m := there.Mutex("storage")
	require.NoError(t, m.Lock(t.Context()))
	require.Less(t, steps, 100, "it gave way")
	require.NoError(t, m.Unlock())
	require.NoError(t, redistest.Receive(t, done))
	require.Equal(t, 100, steps)
}

type shop struct {
	locks  *relock.Client
	charge func(ctx context.Context) error
}

func (s *shop) checkout(w http.ResponseWriter, r *http.Request) {
	m := s.locks.Mutex("cart:"+r.PathValue("cart"), relock.WithWaitTimeout(2*time.Second))
	switch err := m.Do(r.Context(), s.charge); {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, relock.ErrTimeout): // another request works on this cart, or Redis is silent: err says which
		http.Error(w, "busy, try again", http.StatusConflict)
	case errors.Is(err, relock.ErrInvalidName): // the path had braces in it
		http.Error(w, "no such cart", http.StatusNotFound)
	default: // the charge may have been made all the same: it has to be idempotent
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	}
}

func TestRecipes_HandlerAnswersEachErrorInItsOwnWay(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	here, there, stop := twoProcesses()
	defer stop()
	s := &shop{locks: here, charge: func(context.Context) error { return nil }}
	checkout := func(cart string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		r.SetPathValue("cart", cart)
		w := httptest.NewRecorder()
		s.checkout(w, r)
		return w.Code
	}
	require.Equal(t, http.StatusNoContent, checkout("7"))
	require.Equal(t, http.StatusNotFound, checkout("a{b"))
	require.NoError(t, there.Mutex("cart:7").Lock(t.Context()))
	require.Equal(t, http.StatusConflict, checkout("7"))
	s.charge = func(context.Context) error { return errors.New("no") }
	require.Equal(t, http.StatusServiceUnavailable, checkout("8"))
}

func saveDocument(ctx context.Context, db *sql.DB, locks *relock.Client, id int, body string) error {
	m := locks.Mutex(fmt.Sprintf("doc:%d", id), relock.WithFencing())
	return m.Do(ctx, func(ctx context.Context) error {
		result, err := db.ExecContext(ctx,
			`UPDATE docs SET body = $1, token = $2 WHERE id = $3 AND token <= $2`,
			body, m.FencingToken(), id)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err == nil && n == 0 {
			err = errors.New("no such document, or a later holder has written it")
		}
		return err
	})
}

var _ = saveDocument // compiled only: the core module has no database driver

func saveDraft(ctx context.Context, rdb redis.UniversalClient, locks *relock.Client, id int, body string) error {
	m := locks.Mutex(fmt.Sprintf("draft:%d", id), relock.WithFencing())
	return m.Do(ctx, func(ctx context.Context) error {
		key := m.Name() + ":body"
		return fence.Set(ctx, rdb, m.FencingToken(), key, body, 0) // fence.ErrStale: a later holder has written it
	})
}

func TestRecipes_FencedWriteRefusesTheLateOne(t *testing.T) {
	here, there, stop := twoProcesses()
	defer stop()
	rdb, stopRedis := startRedis() // the data may be elsewhere
	defer stopRedis()
	slow := here.Mutex("draft:7", relock.WithFencing())
	require.NoError(t, slow.Lock(t.Context()))
	_, err := there.Mutex("draft:7").ForceUnlock(t.Context())
	require.NoError(t, err)
	require.NoError(t, saveDraft(t.Context(), rdb, there, 7, "next"))
	require.ErrorIs(t, fence.Set(t.Context(), rdb, slow.FencingToken(), "draft:7:body", "late", 0), fence.ErrStale)
	require.Equal(t, "next", rdb.Get(t.Context(), "draft:7:body").Val())
}

func shutdown(ctx context.Context, server *http.Server, locks *relock.Client, rdb *redis.Client) error {
	<-ctx.Done() // the signal to stop
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	err := server.Shutdown(limited)                     // 1. the handlers finish, and unlock
	return errors.Join(err, locks.Close(), rdb.Close()) // 2. Close releases what is still held
}

func TestRecipes_ShutdownClosesEverything(t *testing.T) {
	rdb, stop := startRedis()
	defer stop()
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	require.NoError(t, locks.Mutex("left").Lock(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, shutdown(ctx, &http.Server{ReadHeaderTimeout: time.Second}, locks, rdb))
	require.ErrorIs(t, locks.Mutex("left").Lock(t.Context()), relock.ErrClosed)
}

func TestRecipes_HooksCountWaitsAndLosses(t *testing.T) {
	rdb, stop := startRedis()
	defer stop()

	var waiting, losses atomic.Int64
	var outcomes []string
	observe := func(outcome string, _ time.Duration) { outcomes = append(outcomes, outcome) }
	ended := func(e relock.Event) {
		if e.Waited { // Contended came before
			waiting.Add(-1)
		}
		observe(string(e.Outcome), e.Elapsed) // in a histogram
	}
	hooks := relock.JoinHooks(relock.LogHooks(slog.Default()), relock.Hooks{
		Contended: func(relock.Event) { waiting.Add(1) },
		Acquired:  ended,
		Failed:    ended,
		Lost:      func(relock.Event) { losses.Add(1) },
	})
	locks, err := relock.New(rdb, relock.WithHooks(hooks))
	require.NoError(t, err)
	defer locks.Close()

	m := locks.Mutex("report", relock.WithOwner("one"))
	require.NoError(t, m.Lock(t.Context()))
	other := locks.Mutex("report", relock.WithWaitTimeout(10*time.Millisecond))
	require.ErrorIs(t, other.Lock(t.Context()), relock.ErrTimeout)
	require.Zero(t, waiting.Load())
	held, err := other.TryLock(t.Context())
	require.NoError(t, err)
	require.False(t, held)
	require.Equal(t, []string{"acquired", "timeout", "busy"}, outcomes)
	_, err = m.ForceUnlock(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(1), losses.Load())
	require.ErrorIs(t, m.Unlock(), relock.ErrLost)
}

func TestRecipes_TestsFakeFailures(t *testing.T) {
	t.Run("the test", func(t *testing.T) {
		locks := relocktest.New(t) // closed when the test is over
		err := locks.Mutex("orders:42").Do(t.Context(), func(ctx context.Context) error {
			relocktest.Lose(t, locks, "orders:42") // as if Redis had been silent for too long
			<-ctx.Done()                           // your code has to notice this
			return nil
		})
		require.ErrorIs(t, err, relock.ErrLost)

		release := relocktest.HoldElsewhere(t, locks, "orders:7") // another process has the lock
		held, err := locks.Mutex("orders:7").TryLock(t.Context())
		require.NoError(t, err)
		require.False(t, held)
		release()
		relocktest.Outage(t, locks, time.Minute) // Redis does not answer
	})
}

type locker interface {
	Do(ctx context.Context, fn func(ctx context.Context) error) error
}

type noLock struct{}

func (noLock) Do(ctx context.Context, fn func(ctx context.Context) error) error { return fn(ctx) }

func TestRecipes_InterfaceFitsALock(t *testing.T) {
	for _, m := range []locker{noLock{}, relocktest.New(t).Mutex("orders:42")} {
		done := errors.New("done")
		require.ErrorIs(t, m.Do(t.Context(), func(context.Context) error { return done }), done)
	}
}

// deposit shares its lock with Java: see interop.
func deposit(ctx context.Context, locks *relock.Client, rdb redis.UniversalClient, amount int) error {
	return locks.Mutex("account:42").Do(ctx, func(ctx context.Context) error {
		balance, err := rdb.Get(ctx, "balance:42").Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		return rdb.Set(ctx, "balance:42", balance+amount, 0).Err()
	})
}

func TestRecipes_JavaLosesNoDeposit(t *testing.T) {
	rdb := redistest.Mini(t).Client(t)
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	defer locks.Close()

	done := make(chan error)
	for range 10 {
		go func() { done <- deposit(t.Context(), locks, rdb, 1) }()
	}
	for range 10 {
		require.NoError(t, <-done)
	}
	require.Equal(t, "10", rdb.Get(t.Context(), "balance:42").Val())
}
