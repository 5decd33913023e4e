// Package gooselock makes one process at a time migrate a database with goose.
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

// Up calls p.Up while it holds the lock name, and waits for the lock before. If the lock is lost, the
// context of the migrations ends; what then happens to a migration in progress depends on the driver of
// the database. The provider needs no locker.
func Up(ctx context.Context, locks *relock.Client, name string, p *goose.Provider) (done []*goose.MigrationResult, err error) {
	err = locks.Mutex(name).Do(ctx, func(ctx context.Context) (err error) {
		done, err = p.Up(ctx)
		return err
	})
	return done, err
}

// Locker is a lock.Locker for goose.WithLocker, for code that cannot call [Up]. goose does not notice a
// loss of the lock until the migration has ended. Then it is in its error.
type Locker struct {
	locks *relock.Client
	name  string

	mu   sync.Mutex
	held []*relock.Mutex // at most one of them is not lost
}

var _ lock.Locker = (*Locker)(nil)

// New returns a Locker with the lock name. Use the same name in all processes that migrate one
// database.
func New(locks *relock.Client, name string) *Locker { return &Locker{locks: locks, name: name} }

// Lock waits for the lock, or until ctx ends. The lock is renewed until Unlock. Each Lock has its own
// owner, because goose lets the next goroutine in before it unlocks.
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

// Unlock releases the lock. After a loss it returns relock.ErrLost.
func (l *Locker) Unlock(context.Context, *sql.DB) error {
	m := l.give()
	if m == nil {
		return fmt.Errorf("gooselock: unlock %q: %w", l.name, relock.ErrNotHeld)
	}
	return m.Unlock()
}

// give returns the handle to unlock, or nil. A lost handle comes first, so that the next goroutine does not get it.
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
