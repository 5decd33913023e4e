package asynqlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/recipes/asynqlock"
	"github.com/relock-go/relock/relocktest"
)

func byPayload(task *asynq.Task) string { return "account:" + string(task.Payload()) }

func locksOn(t *testing.T, rdb redis.UniversalClient) *relock.Client {
	t.Helper()
	c, err := relock.New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// startWorkers starts an asynq server on queue. Failures are sent to failed.
func startWorkers(t *testing.T, b *redistest.Backend, queue string, failed chan<- error, handle asynq.HandlerFunc) *asynq.Server {
	t.Helper()
	mux := asynq.NewServeMux()
	mux.Use(asynqlock.Exclusive(locksOn(t, b.Client(t)), byPayload))
	mux.Handle("pay", handle)
	s := asynq.NewServerFromRedisClient(b.Client(t), asynq.Config{
		Concurrency: 10, Queues: map[string]int{queue: 1}, LogLevel: asynq.FatalLevel,
		IsFailure: asynqlock.IsFailure,
		RetryDelayFunc: func(n int, err error, task *asynq.Task) time.Duration {
			return asynqlock.RetryDelay(n, err, task) / 20
		},
		TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: 20 * time.Millisecond,
		ShutdownTimeout: 10 * time.Millisecond,
		ErrorHandler:    asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { failed <- err }),
	})
	require.NoError(t, s.Start(mux))
	t.Cleanup(s.Shutdown)
	return s
}

func enqueue(t *testing.T, b *redistest.Backend, queue, account string) {
	t.Helper()
	_, err := asynq.NewClientFromRedisClient(b.Client(t)).Enqueue(asynq.NewTask("pay", []byte(account)),
		asynq.Queue(queue), asynq.MaxRetry(1), asynq.Retention(time.Hour))
	require.NoError(t, err)
}

func TestTask_OfOneNameRunsOneAfterAnotherAndNoneFails(t *testing.T) {
	b, queue := redistest.Redis(t), redistest.Key(t)
	const tasks = 6
	failed, end := make(chan error, 1000), make(chan struct{})
	var running, runs, twice atomic.Int32
	for range 2 {
		startWorkers(t, b, queue, failed, func(context.Context, *asynq.Task) error {
			if running.Add(1) != 1 {
				twice.Add(1)
			}
			<-end
			running.Add(-1)
			runs.Add(1)
			return nil
		})
	}
	for range tasks {
		enqueue(t, b, queue, queue)
	}
	for range 2 * tasks { // more than there are retries
		require.ErrorIs(t, redistest.Receive(t, failed), asynqlock.ErrBusy)
	}
	close(end)
	inspector := asynq.NewInspectorFromRedisClient(b.Client(t))
	redistest.Eventually(t, "all tasks are done", func() bool {
		info, err := inspector.GetQueueInfo(queue)
		require.NoError(t, err)
		require.Zero(t, info.Archived)
		return info.Completed == tasks
	})
	require.EqualValues(t, tasks, runs.Load())
	require.Zero(t, twice.Load())
	done, err := inspector.ListCompletedTasks(queue)
	require.NoError(t, err)
	require.Len(t, done, tasks)
	for _, task := range done {
		require.Zero(t, task.Retried, "being busy uses up no retry")
	}
}

func TestTask_OfDifferentNamesRunAtTheSameTime(t *testing.T) {
	b, queue := redistest.Redis(t), redistest.Key(t)
	begun, end, failed := make(chan struct{}, 2), make(chan struct{}), make(chan error, 1000)
	startWorkers(t, b, queue, failed, func(context.Context, *asynq.Task) error {
		begun <- struct{}{}
		<-end
		return nil
	})
	enqueue(t, b, queue, queue+"a")
	enqueue(t, b, queue, queue+"b")
	redistest.Receive(t, begun)
	redistest.Receive(t, begun)
	close(end)
	require.Empty(t, failed)
}

// At shutdown asynq gives up on a handler that does not stop. Another server gets its task meanwhile.
func TestTask_AbandonedByAsynqDoesNotRunTwiceAtOnce(t *testing.T) {
	b, queue := redistest.Redis(t), redistest.Key(t)
	begun, end, failed := make(chan int, 2), make(chan struct{}), make(chan error, 1000)
	handle := func(n int) asynq.HandlerFunc {
		return func(context.Context, *asynq.Task) error {
			begun <- n
			<-end
			return nil
		}
	}
	first := startWorkers(t, b, queue, failed, handle(1))
	enqueue(t, b, queue, queue)
	require.Equal(t, 1, redistest.Receive(t, begun))
	first.Shutdown()
	startWorkers(t, b, queue, failed, handle(2))
	require.ErrorIs(t, redistest.Receive(t, failed), asynqlock.ErrBusy, "the second server has the task")
	require.Empty(t, begun)
	close(end)
	require.Equal(t, 2, redistest.Receive(t, begun))
}

// process has the middleware process a task of name.
func process(ctx context.Context, locks *relock.Client, name string, handle asynq.HandlerFunc) error {
	middleware := asynqlock.Exclusive(locks, func(*asynq.Task) string { return name })
	return middleware(handle).ProcessTask(ctx, asynq.NewTask("pay", nil))
}

func TestTask_LossEndsTheHandlersContextAndFailsIt(t *testing.T) {
	locks := relocktest.New(t)
	for _, result := range []error{nil, asynq.SkipRetry} {
		err := process(t.Context(), locks, "7", func(ctx context.Context, _ *asynq.Task) error {
			require.NoError(t, ctx.Err())
			relocktest.Lose(t, locks, "7")
			redistest.Receive(t, ctx.Done())
			require.ErrorIs(t, context.Cause(ctx), relock.ErrLost)
			return result
		})
		require.ErrorIs(t, err, relock.ErrLost)
		require.True(t, asynqlock.IsFailure(err))
		if result != nil {
			require.ErrorIs(t, err, result)
		}
	}
}

func TestTask_HandlersResultIsReturnedAndTheLockReleased(t *testing.T) {
	locks := relocktest.New(t)
	broken := errors.New("broken")
	for _, want := range []error{nil, broken} {
		require.Equal(t, want, process(t.Context(), locks, "7", func(context.Context, *asynq.Task) error { return want }))
	}
	require.Panics(t, func() {
		_ = process(t.Context(), locks, "7", func(context.Context, *asynq.Task) error { panic(broken) })
	})
	held, err := locks.Mutex("7").TryLock(t.Context())
	require.NoError(t, err)
	require.True(t, held)
}

func TestTask_DoneOneIsNotRepeatedIfTheReleaseFailed(t *testing.T) {
	locks := relocktest.New(t, relock.WithTTL(time.Second), relock.WithUnlockTimeout(20*time.Millisecond))
	require.NoError(t, process(t.Context(), locks, "7", func(context.Context, *asynq.Task) error {
		relocktest.Outage(t, locks, 200*time.Millisecond)
		return nil
	}))
}

func TestTask_OwnerIsThatOfTheRun(t *testing.T) {
	locks := relocktest.New(t)
	require.NoError(t, process(t.Context(), locks, "7", func(ctx context.Context, _ *asynq.Task) error {
		never := func(context.Context, *asynq.Task) error { return errors.New("it runs twice") }
		require.ErrorIs(t, process(ctx, locks, "7", never), asynqlock.ErrBusy)
		return locks.Mutex("7", relock.WithOwnerFrom(ctx)).Do(ctx, func(context.Context) error { return nil })
	}))
}

func TestTask_NeverRunsWithoutItsLock(t *testing.T) {
	locks := relocktest.New(t)
	never := func(context.Context, *asynq.Task) error {
		t.Error("it runs")
		return nil
	}
	err := process(t.Context(), locks, "a{b", never)
	require.ErrorIs(t, err, relock.ErrInvalidName)
	require.True(t, asynqlock.IsFailure(err))
	release := relocktest.HoldElsewhere(t, locks, "7")
	err = process(t.Context(), locks, "7", never)
	require.EqualError(t, err, `another task has the lock: "7"`)
	require.False(t, asynqlock.IsFailure(err))
	release()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // no one answers there
	defer rdb.Close()
	err = process(t.Context(), locksOn(t, rdb), "7", never)
	require.ErrorContains(t, err, "connection refused")
	require.True(t, asynqlock.IsFailure(err))
}

func TestTask_BusyOneReturnsSoonAndAFailedOneWhenAsynqSays(t *testing.T) {
	task := asynq.NewTask("pay", nil)
	for n := range 20 {
		require.Less(t, asynqlock.RetryDelay(n, asynqlock.ErrBusy, task), 2*time.Second)
	}
	require.Greater(t, asynqlock.RetryDelay(20, errors.New("broken"), task), time.Hour)
}
