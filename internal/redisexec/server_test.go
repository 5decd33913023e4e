package redisexec

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redistest"
)

// Errors from the most informative to the least.
var tales = []error{
	replyError("LOADING Redis is loading the dataset in memory"),
	&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
	&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET},
	lockerr.NoAnswerWithin(time.Second),
}

func TestServer_KeepsTheMostInformativeErrorSinceItsLastAnswer(t *testing.T) {
	t.Parallel()
	var now clock.Instant
	for i, more := range tales {
		for j, less := range tales {
			s := &server{addr: "10.0.0.1:6379"}
			s.record(more, now)
			s.record(less, now.After(time.Minute))
			reply := s.explain(lockerr.NoAnswerWithin(time.Second), now.After(2*time.Minute))
			require.ErrorContains(t, reply, "10.0.0.1:6379: no answer from Redis within 1s")
			require.ErrorIs(t, reply, tales[min(i, j)])
			if i < j {
				require.ErrorContains(t, reply, "; 2m0s earlier: "+more.Error())
			}
			require.NotErrorIs(t, s.explain(tales[0], now), tales[1], "what says more needs no more")
			s.answered()
			require.EqualError(t, s.explain(lockerr.NoAnswerWithin(time.Second), now), "10.0.0.1:6379: no answer from Redis within 1s")
		}
	}
}

func TestServer_ErrorOfOneCommandIsNotItsState(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		replyError("NOPERM this user has no permissions to access one of the keys used as arguments"),
		replyError("CROSSSLOT Keys in request don't hash to the same slot"),
		context.Canceled, context.DeadlineExceeded, redis.ErrClosed,
	} {
		s := new(server)
		s.record(err, clock.Instant{})
		require.Nil(t, s.ailment.Load(), "%v", err)
	}
}

// onlyDialed is an executor that lets a test see when it looks.
func onlyDialed(t *testing.T, dial func(context.Context) (net.Conn, error)) (*Executor, *server, *atomic.Int64) {
	t.Helper()
	ahead := new(atomic.Int64) // of the wall clock
	now := func() clock.Instant {
		now := clock.System()
		now.Wall += time.Duration(ahead.Load())
		return now
	}
	x := New(clientOf(t, "127.0.0.1:1"), now, usualTTL)
	t.Cleanup(func() { x.Close(context.Background()) })
	return x, &server{dial: dial}, ahead
}

func TestServer_LookIsSharedForASecond(t *testing.T) {
	t.Parallel()
	var dials atomic.Int64
	dialing, refuse := make(chan struct{}, 3), make(chan struct{})
	x, s, ahead := onlyDialed(t, func(context.Context) (net.Conn, error) {
		dials.Add(1)
		dialing <- struct{}{}
		<-refuse
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			x.see(context.Background(), s, redistest.SoonEnough)
			if s.ailment.Load() == nil {
				t.Error("it did not wait for what was found")
			}
		})
	}
	redistest.Receive(t, dialing)
	x.see(context.Background(), s, time.Millisecond) // who has no time does not wait
	require.Nil(t, s.ailment.Load())
	close(refuse)
	all.Wait()
	x.see(context.Background(), s, redistest.SoonEnough)
	require.EqualValues(t, 1, dials.Load())

	ahead.Add(int64(lookLife))
	x.see(context.Background(), s, redistest.SoonEnough)
	require.EqualValues(t, 2, dials.Load(), "that was long ago")
}

func TestServer_PanickingDialerIsAFailedLook(t *testing.T) {
	t.Parallel()
	x, s, _ := onlyDialed(t, func(context.Context) (net.Conn, error) { panic("no network") })
	x.see(context.Background(), s, redistest.SoonEnough)
	require.Nil(t, s.ailment.Load())
	require.True(t, goroutine.Closed(s.look.over))
}

func TestServer_EndOfTheCallersContextIsNotItsError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Outcome{Err: redistest.DialTimedOut(t)}.Abandoned(ctx).Err
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "i/o timeout")
}
