package relock

import (
	"context"
	"sync"
)

// One command about the keys of a hold is under way at a time, and of all holds of a batch. A command may last as long as
// Redis is silent, and the wait for it must not.

// slot is a mutex whose wait ends with a context. It makes a channel only if there is a wait. The zero slot is free. It
// may be freed by another goroutine than the one that took it.
//
// mu is held for a moment only, never during a wait. So free does not block.
type slot struct {
	mu    sync.Mutex
	taken bool // from a take that was true to the next free
	// freed is closed when the slot is free again. take makes it, for all that wait then; nil: none waits.
	freed chan struct{}
}

// take waits until the slot is free, and takes it. false: ctx has ended, and the slot is not taken. A slot
// that is free is taken even if ctx has ended: what is sent with that ctx then fails by itself. All that wait
// are woken together, and one gets it, in no order.
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
		// Woken, it looks again: another one may have been faster.
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}

// free gives the slot back. It is called once for each take that was true.
func (s *slot) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = false
	// All are woken, not one: that one's ctx may end just now, and the slot would be free with others waiting.
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}
