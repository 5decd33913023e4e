package relockgocron_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relockgocron"
	"github.com/relock-go/relock/relocktest"
)

func TestBadInput_IsRefusedWhereItIsGiven(t *testing.T) {
	locks := relocktest.New(t)
	newLocker := func(locks *relock.Client, opts ...relockgocron.LockerOption) error {
		_, err := relockgocron.NewLocker(locks, opts...)
		return err
	}
	newElector := func(locks *relock.Client, name string, opts ...relockgocron.ElectorOption) error {
		_, err := relockgocron.NewElector(locks, name, opts...)
		return err
	}
	for want, err := range map[string]error{
		"relockgocron: new locker: relock: invalid option: nil Client":                                                                                                newLocker(nil),
		"relockgocron: new locker: relock: invalid option: nil LockerOption":                                                                                          newLocker(locks, nil),
		"relockgocron: new locker: relock: invalid option: KeepFor(-1ns): must not be negative":                                                                       newLocker(locks, relockgocron.KeepFor(-1)),
		`relockgocron: new locker: WithConcurrency(0): relock: read state of "job": invalid option: a semaphore with the limit 0: it must be from 1 to 10000`:         newLocker(locks, relockgocron.WithConcurrency(0)),
		`relockgocron: new locker: WithConcurrency(-1): relock: read state of "job": invalid option: a semaphore with the limit -1: it must be from 1 to 10000`:       newLocker(locks, relockgocron.WithConcurrency(-1)),
		`relockgocron: new locker: WithConcurrency(10001): relock: read state of "job": invalid option: a semaphore with the limit 10001: it must be from 1 to 10000`: newLocker(locks, relockgocron.WithConcurrency(10_001)),
		"relockgocron: new elector: relock: invalid option: nil Client":                                                                                               newElector(nil, "leader"),
		"relockgocron: new elector: relock: invalid option: nil ElectorOption":                                                                                        newElector(locks, "leader", nil),
		"relockgocron: new elector: relock: invalid option: OnSetback(nil)":                                                                                           newElector(locks, "leader", relockgocron.OnSetback(nil)),
	} {
		require.ErrorIs(t, err, relock.ErrInvalidOption)
		require.EqualError(t, err, want)
	}
	for _, name := range []string{"", "a{b", "{}x"} {
		require.ErrorIs(t, newElector(locks, name), relock.ErrInvalidName, name)
	}
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // no server has this port
	defer nowhere.Close()
	quorum, err := relock.NewQuorum([]redis.UniversalClient{nowhere})
	require.NoError(t, err)
	defer quorum.Close()
	require.NoError(t, newLocker(quorum))
	require.ErrorIs(t, newLocker(quorum, relockgocron.WithConcurrency(3)), relock.ErrUnsupported, "before anything is sent")

	var nilContext context.Context
	for _, opts := range [][]relockgocron.LockerOption{nil, {relockgocron.WithConcurrency(3)}} {
		_, err := lockerOf(t, locks, opts...).Lock(nilContext, "nightly")
		require.ErrorIs(t, err, relock.ErrInvalidOption)
		require.ErrorContains(t, err, "the context is nil")
	}

	locker, elector := lockerOf(t, locks), electorOf(t, locks, "leader")
	_, err = locker.Lock(t.Context(), "nightly")
	require.NoError(t, err)
	elector.Start()
	awaitLead(t, elector)
	for name, do := range map[string]doing{"nightly": locker.Do, "leader": elector.Do} {
		for _, err := range []error{do(nilContext, nothing), do(t.Context(), nil)} {
			require.ErrorIs(t, err, relock.ErrInvalidOption)
			require.EqualError(t, err, `relockgocron: do "`+name+`": relock: invalid option: the context or the function is nil`)
		}
	}
}

// lockErrorOf returns the error that gocron reports for a run that cannot be locked.
func lockErrorOf(t *testing.T, locks *relock.Client, name string) error {
	t.Helper()
	job, refused := addJob(t, started(t, gocron.WithDistributedLocker(lockerOf(t, locks))), never(), name, func() {
		t.Error("the job was run")
	})
	require.NoError(t, job.RunNow())
	return redistest.Receive(t, refused)
}

func TestJob_WithAnInvalidLockNameIsNotRun(t *testing.T) {
	err := lockErrorOf(t, relocktest.New(t), "a{b")
	require.ErrorIs(t, err, relock.ErrInvalidName)
	require.ErrorContains(t, err, `"a{b"`)
}

func TestJob_NamedLikeAForeignKeyIsNotRun(t *testing.T) {
	locks := relocktest.New(t)
	require.NoError(t, relocktest.Redis(t, locks).Set(t.Context(), "report", "data", 0).Err())
	require.ErrorIs(t, lockErrorOf(t, locks, "report"), relock.ErrInvalidName)
}

func TestJob_IsNotRunWithoutRedis(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // no one answers there
	defer rdb.Close()
	err := lockErrorOf(t, locksOn(t, rdb), "nightly")
	require.NotErrorIs(t, err, relockgocron.ErrHeldElsewhere, "a Redis that is down never looks like another run")
	require.ErrorContains(t, err, `"nightly"`)
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.ErrorContains(t, err, "connection refused")
}

func wrongPassword(t *testing.T) *relock.Client {
	t.Helper()
	server := redistest.NewServer(t, "--requirepass", "right")
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, Password: "wrong"})
	t.Cleanup(func() { rdb.Close() })
	return locksOn(t, rdb)
}

func TestJob_IsNotRunWithTheWrongPassword(t *testing.T) {
	err := lockErrorOf(t, wrongPassword(t), "nightly")
	require.NotErrorIs(t, err, relockgocron.ErrHeldElsewhere)
	require.ErrorContains(t, err, "WRONGPASS")
}

func TestElector_DoesNotLeadWithTheWrongPassword(t *testing.T) {
	setbacks := make(chan error, 1000)
	e := electorOf(t, wrongPassword(t), "leader", relockgocron.OnSetback(func(err error) { setbacks <- err }))
	e.Start()
	require.ErrorContains(t, redistest.Receive(t, setbacks), "WRONGPASS")
	err := e.IsLeader(t.Context())
	require.ErrorIs(t, err, relockgocron.ErrNotLeader)
	require.ErrorContains(t, err, "WRONGPASS")
	require.NoError(t, e.Stop())
}

func TestJob_IsNotRunAfterClose(t *testing.T) {
	locks := relocktest.New(t)
	require.NoError(t, locks.Close())
	require.ErrorIs(t, lockErrorOf(t, locks, "nightly"), relock.ErrClosed)

	e := electorOf(t, locks, "leader")
	e.Start()
	redistest.Eventually(t, "the campaign ends", func() bool {
		err := e.IsLeader(t.Context())
		require.ErrorIs(t, err, relockgocron.ErrNotLeader)
		return errors.Is(err, relock.ErrClosed)
	})
	require.ErrorIs(t, e.Stop(), relock.ErrClosed)
}

func TestLocker_ReleaseOfAKeptLockAfterCloseDoesNoHarm(t *testing.T) {
	locks := relocktest.New(t)
	l := lockerOf(t, locks, relockgocron.KeepFor(50*time.Millisecond))
	lock, err := l.Lock(t.Context(), "nightly")
	require.NoError(t, err)
	unlock(t, lock)
	require.NoError(t, locks.Close())
	next, err := lockerOf(t, locksOn(t, relocktest.Redis(t, locks))).Lock(t.Context(), "nightly")
	require.NoError(t, err, "Close has given it back")
	unlock(t, next)
}
