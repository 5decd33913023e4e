package relock

import (
	"context"
	"slices"
	"sync"
)

// One command for the keys of a hold is in flight at a time, also for all holds of a batch. A command may last as long as
// Redis is silent, but the wait for the slot must not.

// slot is a mutex with a first-in, first-out queue. Its wait ends with a context. The zero slot is free. A goroutine may
// free a slot that another one took.
//
// Without the order, renewals that are always due would take the slot again and again before an Unlock that waits for it.
//
// mu is held only for a moment, never during a wait. So free does not block.
type slot struct {
	mu      sync.Mutex
	taken   bool            // from a take that was true to the next free that finds no waiter
	waiters []chan struct{} // only while taken. free closes the first and removes it: its take has the slot then
}

// take waits until the slot is free and all that waited before have had it, and takes it. false: ctx has ended, and the
// slot is not taken. A free slot is taken even if ctx has ended: the command with that ctx then fails by itself.
func (s *slot) take(ctx context.Context) bool {
	s.mu.Lock()
	if !s.taken {
		s.taken = true
		s.mu.Unlock()
		return true
	}
	mine := make(chan struct{})
	s.waiters = append(s.waiters, mine)
	s.mu.Unlock()
	select {
	case <-mine:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiters, mine)
	if i < 0 { // free has just given it the slot
		return true
	}
	s.waiters = slices.Delete(s.waiters, i, i+1)
	return false
}

// free gives the slot to the first that waits. It is called once for each take that returned true.
func (s *slot) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiters) == 0 {
		s.taken, s.waiters = false, nil
		return
	}
	close(s.waiters[0])
	s.waiters = slices.Delete(s.waiters, 0, 1)
}
