// Package certlock has nodes that share a storage of certmagic obtain each certificate once.
package certlock

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/caddyserver/certmagic"

	"github.com/relock-go/relock"
)

// Storage is a certmagic.Storage with the locks of a relock.Client.
type Storage struct {
	certmagic.Storage // for all but the locks
	locks             *relock.Client

	mu   sync.Mutex
	held map[string][]*relock.Mutex // by name; of which one at most is not lost
}

var (
	_ certmagic.Storage   = (*Storage)(nil)
	_ certmagic.TryLocker = (*Storage)(nil)
)

// New returns storage with the locks of locks. Both stay the caller's.
func New(storage certmagic.Storage, locks *relock.Client) *Storage {
	return &Storage{Storage: storage, locks: locks, held: make(map[string][]*relock.Mutex)}
}

// Lock waits for the lock of name. It is renewed until Unlock.
func (s *Storage) Lock(ctx context.Context, name string) error {
	m := s.mutex(ctx, name)
	if err := m.Lock(ctx); err != nil {
		return err
	}
	s.took(name, m)
	return nil
}

// TryLock takes the lock of name if it is free.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	m := s.mutex(ctx, name)
	held, err := m.TryLock(ctx)
	if held {
		s.took(name, m)
	}
	return held, err
}

// Unlock gives the lock of name back, in any goroutine. After a loss it returns relock.ErrLost, which
// certmagic logs: another node may have done the same meanwhile.
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

// give returns the handle to unlock, or nil: a lost one first, so that it is not that of the next
// goroutine.
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
