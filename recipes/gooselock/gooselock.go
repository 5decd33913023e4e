// Package gooselock has one process at a time migrate a database with goose.
package gooselock

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/relock-go/relock"
)

// Up migrates under the lock name. The context of the migrations ends when the lock is lost; what the
// database does with one that is under way then is up to its driver. The provider needs no locker.
func Up(ctx context.Context, locks *relock.Client, name string, p *goose.Provider) (done []*goose.MigrationResult, err error) {
	err = locks.Mutex(name).Do(ctx, func(ctx context.Context) (err error) {
		done, err = p.Up(ctx)
		return err
	})
	return done, err
}

// Locker is a lock.Locker, for goose.WithLocker: where goose is called by code that cannot call Up.
// goose is not told of a loss: it shows when the migration has ended, in its error.
type Locker struct {
	locks *relock.Client
	name  string

	mu   sync.Mutex
	held []*relock.Mutex // of which one at most is not lost
}

var _ lock.Locker = (*Locker)(nil)

// New returns a Locker of the lock name, which all processes that migrate one database have in common.
func New(locks *relock.Client, name string) *Locker { return &Locker{locks: locks, name: name} }

// Lock waits for the lock. It is renewed until Unlock. The owner is one of its own, because goose lets
// the next goroutine in before it unlocks.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	m := l.locks.Mutex(l.name, relock.WithOwnerFrom(relock.NewOwner(ctx)))
	if err := m.Lock(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = append(l.held, m)
	return nil
}

// Unlock gives the lock back.
func (l *Locker) Unlock(context.Context, *sql.DB) error {
	m := l.give()
	if m == nil {
		return fmt.Errorf("gooselock: unlock %q: %w", l.name, relock.ErrNotHeld)
	}
	return m.Unlock()
}

// give returns the handle to unlock, or nil: a lost one first, so that it is not that of the next
// goroutine.
func (l *Locker) give() *relock.Mutex {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held) == 0 {
		return nil
	}
	i := max(0, slices.IndexFunc(l.held, func(m *relock.Mutex) bool { return m.HoldCount() == 0 }))
	m := l.held[i]
	l.held = slices.Delete(l.held, i, i+1)
	return m
}
