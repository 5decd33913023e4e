package gooselock_test

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/recipes/gooselock"
	"github.com/relock-go/relock/relocktest"
)

func locksOn(t *testing.T, rdb redis.UniversalClient, opts ...relock.ClientOption) *relock.Client {
	t.Helper()
	c, err := relock.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// provider returns a goose that has one migration for the database.
func (d *database) provider(t *testing.T, migrate func(context.Context) error, opts ...goose.ProviderOption) *goose.Provider {
	t.Helper()
	db := sql.OpenDB(connector{})
	t.Cleanup(func() { db.Close() })
	up := &goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return migrate(ctx) }}
	p, err := goose.NewProvider("", db, nil, append(opts, goose.WithStore(d),
		goose.WithGoMigrations(goose.NewGoMigration(1, up, nil)), goose.WithDisableGlobalRegistry(true))...)
	require.NoError(t, err)
	return p
}

// migrateOn has two processes migrate one database at once.
func migrateOnTwo(t *testing.T, b *redistest.Backend, up func(locks *relock.Client, name string, d *database, migrate func(context.Context) error) error) {
	name, d := redistest.Key(t), newDatabase()
	waits, done := make(chan struct{}, 2), make(chan error, 2)
	var running, runs atomic.Int32
	hooks := relock.WithHooks(relock.Hooks{Contended: func(relock.Event) { waits <- struct{}{} }})
	for range 2 {
		locks := locksOn(t, b.Client(t), hooks)
		go func() {
			done <- up(locks, name, d, func(context.Context) error {
				if running.Add(1) == 1 && runs.Add(1) == 1 {
					redistest.Receive(t, waits)
				}
				running.Add(-1)
				return nil
			})
		}()
	}
	require.NoError(t, redistest.Receive(t, done))
	require.NoError(t, redistest.Receive(t, done))
	require.EqualValues(t, 1, runs.Load())
	require.Equal(t, []int64{1, 0}, d.versions())
}

func TestUp_MigratesOnceOnTwoProcesses(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		migrateOnTwo(t, b, func(locks *relock.Client, name string, d *database, migrate func(context.Context) error) error {
			_, err := gooselock.Up(t.Context(), locks, name, d.provider(t, migrate))
			return err
		})
	})
}

func TestLocker_MigratesOnceOnTwoProcesses(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		migrateOnTwo(t, b, func(locks *relock.Client, name string, d *database, migrate func(context.Context) error) error {
			_, err := d.provider(t, migrate, goose.WithLocker(gooselock.New(locks, name))).Up(t.Context())
			return err
		})
	})
}

func TestUp_StopsAtALossAndReportsIt(t *testing.T) {
	locks := relocktest.New(t)
	p := newDatabase().provider(t, func(ctx context.Context) error {
		relocktest.Lose(t, locks, "migrations")
		redistest.Receive(t, ctx.Done())
		return context.Cause(ctx)
	})
	done, err := gooselock.Up(t.Context(), locks, "migrations", p)
	require.ErrorIs(t, err, relock.ErrLost)
	require.Empty(t, done)
}

func TestLocker_ReportsALossAtTheEnd(t *testing.T) {
	locks := relocktest.New(t)
	p := newDatabase().provider(t, func(ctx context.Context) error {
		relocktest.Lose(t, locks, "migrations")
		return ctx.Err()
	}, goose.WithLocker(gooselock.New(locks, "migrations")))
	_, err := p.Up(t.Context())
	require.ErrorIs(t, err, relock.ErrLost)
}

func TestLocker_GoroutinesExcludeEachOther(t *testing.T) {
	locks := relocktest.New(t)
	l := gooselock.New(locks, "migrations")
	require.NoError(t, l.Lock(t.Context(), nil))
	next := make(chan error)
	go func() { next <- l.Lock(t.Context(), nil) }()
	require.NoError(t, l.Unlock(t.Context(), nil))
	require.NoError(t, redistest.Receive(t, next))

	relocktest.Lose(t, locks, "migrations")
	require.NoError(t, l.Lock(t.Context(), nil), "another goroutine follows")
	require.ErrorIs(t, l.Unlock(t.Context(), nil), relock.ErrLost)
	state, err := locks.Mutex("migrations").State(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, state.Owner, "what is held is not released instead")
	require.NoError(t, l.Unlock(t.Context(), nil))
	require.ErrorIs(t, l.Unlock(t.Context(), nil), relock.ErrNotHeld)
}

func TestUp_MigratesNothingWithoutTheLock(t *testing.T) {
	locks := relocktest.New(t, relock.WithTTL(time.Second))
	migrate := func(context.Context) error { return errors.New("it migrates") }
	d := newDatabase()
	for _, up := range []func(ctx context.Context, name string) error{
		func(ctx context.Context, name string) error {
			_, err := gooselock.Up(ctx, locks, name, d.provider(t, migrate))
			return err
		},
		func(ctx context.Context, name string) error {
			_, err := d.provider(t, migrate, goose.WithLocker(gooselock.New(locks, name))).Up(ctx)
			return err
		},
	} {
		require.ErrorIs(t, up(t.Context(), "a{b"), relock.ErrInvalidName)
		release := relocktest.HoldElsewhere(t, locks, "migrations")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		require.ErrorIs(t, up(ctx, "migrations"), context.DeadlineExceeded)
		cancel()
		release()
	}
}
