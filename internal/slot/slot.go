// Package slot has a mutex whose wait ends with a context.
package slot

import (
	"context"
	"sync"
)

// Slot is a mutex whose wait ends with a context. It makes a channel only if there is a wait. The
// zero Slot is free.
type Slot struct {
	mu    sync.Mutex
	taken bool
	freed chan struct{} // closed when it is free again; nil: no one waits
}

// Take waits until the slot is free, and takes it. false: ctx has ended.
func (s *Slot) Take(ctx context.Context) bool {
	for {
		s.mu.Lock()
		if !s.taken {
			s.taken = true
			s.mu.Unlock()
			return true
		}
		if s.freed == nil {
			s.freed = make(chan struct{})
		}
		freed := s.freed
		s.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}

// Free gives the slot back.
func (s *Slot) Free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = false
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}
