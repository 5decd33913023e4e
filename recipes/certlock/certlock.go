// Package certlock locks the storage of certmagic: of all nodes that share it, one obtains each
// certificate.
package certlock

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/caddyserver/certmagic"

	"github.com/relock-go/relock"
)

// Storage is a certmagic.Storage that locks with a relock.Client. [New] returns it. It is safe for
// concurrent use.
type Storage struct {
	certmagic.Storage // for all but the locks
	locks             *relock.Client

	mu   sync.Mutex
	held map[string][]*relock.Mutex // by name; at most one of each name is not lost
}

var (
	_ certmagic.Storage   = (*Storage)(nil)
	_ certmagic.TryLocker = (*Storage)(nil)
)

// New returns a Storage with the data of storage and the locks of locks. It closes neither.
func New(storage certmagic.Storage, locks *relock.Client) *Storage {
	return &Storage{Storage: storage, locks: locks, held: make(map[string][]*relock.Mutex)}
}

// Lock waits for the lock of name, or until ctx ends. The lock is renewed until Unlock.
func (s *Storage) Lock(ctx context.Context, name string) error {
	m := s.mutex(ctx, name)
	if err := m.Lock(ctx); err != nil {
		return err
	}
	s.took(name, m)
	return nil
}

// TryLock acquires the lock of name if it is free. Otherwise it returns false.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	m := s.mutex(ctx, name)
	held, err := m.TryLock(ctx)
	if held {
		s.took(name, m)
	}
	return held, err
}

// Unlock releases the lock of name, on any goroutine. After a loss it returns relock.ErrLost, which
// certmagic logs: another node may have obtained the same certificate. If this Storage does not hold
// the lock, it returns relock.ErrNotHeld.
func (s *Storage) Unlock(_ context.Context, name string) error {
	m := s.give(name)
	if m == nil {
		return fmt.Errorf("certlock: unlock %q: %w", name, relock.ErrNotHeld)
	}
	return m.Unlock()
}

// mutex returns a handle with an owner of its own: goroutines that ask for one name exclude each
// other, and any of them can unlock.
func (s *Storage) mutex(ctx context.Context, name string) *relock.Mutex {
	return s.locks.Mutex("certmagic:"+name, relock.WithOwnerFrom(relock.NewOwner(ctx)))
}

func (s *Storage) took(name string, m *relock.Mutex) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[name] = append(s.held[name], m)
}

// give returns the handle to unlock, or nil. A lost handle comes first, so that the next goroutine does not get it.
func (s *Storage) give(name string) *relock.Mutex {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held[name]
	if len(held) == 0 {
		return nil
	}
	i := max(0, slices.IndexFunc(held, func(m *relock.Mutex) bool { return m.HoldCount() == 0 }))
	m := held[i]
	s.held[name] = slices.Delete(held, i, i+1)
	if len(s.held[name]) == 0 {
		delete(s.held, name)
	}
	return m
}
