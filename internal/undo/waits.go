package undo

import (
	"slices"
	"sync"

	"github.com/relock-go/relock/internal/group"
)

// Waits are the undos of one attempt, for a caller that waits until they are settled. The zero value has none. It
// is safe for concurrent use.
type Waits struct {
	mu      sync.Mutex
	pending []<-chan struct{} // each is closed when it is settled
}

// Add has one more be waited for.
func (w *Waits) Add(settled <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(slices.DeleteFunc(w.pending, group.Closed), settled)
}

// Next returns one that is not settled yet; nil: all are.
func (w *Waits) Next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending = slices.DeleteFunc(w.pending, group.Closed); len(w.pending) > 0 {
		return w.pending[0]
	}
	return nil
}

// Forget has none be waited for.
func (w *Waits) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = nil
}
