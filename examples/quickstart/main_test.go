package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestQuickstart_RunsOnAnEmbeddedRedis(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), &out, "", kind))
			requireTimeline(t, out.String())
		})
	}
}

func TestQuickstart_RunsOnARealRedisAndLeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			servers := []*redistest.Server{redistest.NewServer(t)}
			addrs := servers[0].Addr
			for kind == "quorum" && len(servers) < quorumNodes {
				s := redistest.NewServer(t)
				servers, addrs = append(servers, s), addrs+","+s.Addr
			}
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), &out, addrs, kind))
			requireTimeline(t, out.String())
			for _, s := range servers {
				require.Empty(t, s.Client(t).Keys(t.Context(), "*").Val())
			}
		})
	}
}

func TestQuickstart_UnknownKindIsNamedInTheError(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, run(t.Context(), io.Discard, "", "round"), `"round"`)
}

func TestQuickstart_OnlyAQuorumTakesSeveralAddresses(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, run(t.Context(), io.Discard, "a:1,b:1", "plain"), "only -kind quorum takes several")
}

func requireTimeline(t *testing.T, out string) {
	t.Helper()
	require.Contains(t, out, "the counter is 100 of 100")
	require.Regexp(t, `calls the provider: \d of 2|Mutex and MultiMutex`, out)
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	require.LessOrEqual(t, len(lines), 42, "a timeline that a person can follow:\n%s", out)
	require.Regexp(t, `^OK: `, lines[len(lines)-1])
}

func TestQuickstart_TwoRunsOnOneRedisDoNotMeet(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	b := redistest.Mini(t)
	failed := make(chan error)
	for range 2 {
		go func() { failed <- run(t.Context(), io.Discard, b.Addr, "plain") }()
	}
	require.NoError(t, <-failed)
	require.NoError(t, <-failed)
	require.Empty(t, b.Miniredis.Keys())
}

func TestQuickstart_UnreachableRedisIsNamedInTheError(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())

	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, exitCode(&stdout, &stderr, addr, "plain"))
	require.Contains(t, stderr.String(), "quickstart failed: cannot use the Redis at "+addr)
	require.NotContains(t, stdout.String(), "OK")
}

func TestQuickstart_SilentRedisDoesNotHoldItUp(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var timeout net.Error // of the context, or of a connection that has its deadline
	require.ErrorAs(t, run(ctx, io.Discard, l.Addr().String(), "plain"), &timeout)
	require.True(t, timeout.Timeout())
}

func TestQuickstart_InterruptLeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	b := redistest.Mini(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := &trigger{text: "TryLock: false, the key has", fire: cancel}
	require.ErrorIs(t, run(ctx, out, b.Addr, "plain"), context.Canceled)
	require.Empty(t, b.Miniredis.Keys())
}

// trigger fires when text is printed.
type trigger struct {
	text string
	fire func()
}

func (w *trigger) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.text) {
		w.fire()
	}
	return len(p), nil
}

// noLock lets everybody in.
type noLock struct{}

func (noLock) Lock(context.Context) error { return nil }
func (noLock) Unlock() error              { return nil }

func TestQuickstart_DetectsALockThatDoesNotLock(t *testing.T) {
	t.Parallel()
	d := newTestDemo(t)
	err := d.count(t.Context(), func(*service) locker { return noLock{} })
	require.ErrorContains(t, err, "instead of 100")
	require.ErrorContains(t, err, "times a worker met another one")
}

func TestQuickstart_DetectsEachFaultOfTheCounterByItself(t *testing.T) {
	t.Parallel()
	var c counter
	require.NoError(t, c.check(100, 100))
	require.EqualError(t, c.check(99, 100), "the counter is 99 instead of 100")
	c.crowded.Add(2)
	require.EqualError(t, c.check(100, 100), "2 times a worker met another one at the counter")
}

func TestQuickstart_DetectsWrongLevels(t *testing.T) {
	t.Parallel()
	n := newTestDemo(t).nesting()
	require.NoError(t, n.mine.Lock(t.Context()))
	require.NoError(t, n.expect(t.Context(), "here", 1, false))
	require.ErrorContains(t, n.expect(t.Context(), "here", 2, false), "the hold count is 1 instead of 2")
	require.ErrorContains(t, n.expect(t.Context(), "here", 1, true), "TryLock of another worker says false")
	require.NoError(t, n.mine.Unlock())
	require.ErrorContains(t, n.expect(t.Context(), "here", 0, false), "TryLock of another worker says true")
	require.NoError(t, n.expect(t.Context(), "here", 0, true), "what a check took is released")
}

func TestQuickstart_DetectsALongJobWithoutAWatchdog(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	d := newTestDemo(t)
	err := d.longJob(t.Context(), relock.WithTTL(jobTTL), relock.WithoutRenewal())
	require.ErrorIs(t, err, relock.ErrLost)
}

func TestQuickstart_DetectsALongJobThatDidNotNeedItsWatchdog(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	d := newTestDemo(t)
	err := d.longJob(t.Context(), relock.WithTTL(time.Minute))
	require.EqualError(t, err, "the lock was never renewed")
}

func TestQuickstart_DetectsAHolderThatDoesNotLoseItsLock(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	d := newTestDemo(t)
	err := d.lose(t.Context(), func(context.Context) error { return nil })
	require.ErrorContains(t, err, "the holder's context did not end by the loss")
	require.ErrorContains(t, err, "the holder was not notified")
}

func TestQuickstart_DeletedKeyStopsItsHolder(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	d := newTestDemo(t)
	require.NoError(t, d.lose(t.Context(), func(ctx context.Context) error {
		return d.server.rdbs[0].Del(ctx, d.server.prefix+forcedLock).Err()
	}))
}

func TestQuickstart_DetectsAWaiterThatGetsAHeldLock(t *testing.T) {
	t.Parallel()
	d := newTestDemo(t)
	require.ErrorContains(t, d.waitBriefly(t.Context(), d.workers[0], noLock{}), "the waiter got a lock")
}

// stubborn is a lock whose wait does not end when its context does.
type stubborn struct{ noLock }

func (stubborn) Lock(ctx context.Context) error {
	time.Sleep(tooLate)
	return ctx.Err()
}

func TestQuickstart_DetectsAWaiterThatGivesUpTooLate(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	d := newTestDemo(t)
	require.ErrorContains(t, d.waitBriefly(t.Context(), d.workers[0], stubborn{}), "gave up after")
}

func TestQuickstart_DetectsASemaphoreThatLetsInTooMany(t *testing.T) {
	t.Parallel()
	redistest.Timed(t)
	d := newTestDemo(t)
	require.ErrorContains(t, d.callProvider(t.Context(), callLimit+1), "3 calls at a time: at most 2 are allowed")
}

func TestQuickstart_DetectsKeysThatAreLeft(t *testing.T) {
	t.Parallel()
	d := newTestDemo(t)
	require.NoError(t, d.checkNothingLeft(t.Context(), aMoment))
	require.NoError(t, d.workers[0].locks.Mutex(jobLock).Lock(t.Context()))
	require.EqualError(t, d.checkNothingLeft(t.Context(), time.Millisecond), "1 keys are left on Redis")
}

func newTestDemo(t *testing.T) *demo {
	t.Helper()
	d, err := newDemo(t.Context(), io.Discard, "", "plain")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.close()) })
	return d
}

func TestTimeline_LinesAreAligned(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	tl := newTimeline(&out)
	tl.print("a", "one")
	tl.print("operator", "two")
	lines := strings.Split(out.String(), "\n")
	require.Equal(t, strings.Index(lines[0], "one"), strings.Index(lines[1], "two"), fmt.Sprint(lines))
}
