package relock

import (
	"context"
	"sync"
)

// One command for the keys of a hold is in flight at a time, also for all holds of a batch. A command may last as long as
// Redis is silent, but the wait for the slot must not.

// slot is a mutex whose wait ends with a context. It makes a channel only if there is a wait. The zero slot is free. A
// goroutine may free a slot that another one took.
//
// mu is held only for a moment, never during a wait. So free does not block.
type slot struct {
	mu    sync.Mutex
	taken bool // from a take that was true to the next free
	// freed is closed when the slot is free again. take makes it, for all that wait then; nil: there is no wait.
	freed chan struct{}
}

// take waits until the slot is free, and takes it. false: ctx has ended, and the slot is not taken. A free slot
// is taken even if ctx has ended: the command with that ctx then fails by itself. All waiters
// are woken together, and one of them takes the slot, in no order.
func (s *slot) take(ctx context.Context) bool {
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
		freed := s.freed // free sets the field to nil
		s.mu.Unlock()
		// After the wake-up it checks again: another one may have been faster.
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}

// free frees the slot. It is called once for each take that returned true.
func (s *slot) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = false
	// All are woken, not one: the ctx of that one may end just now, and the slot would be free with others waiting.
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}
