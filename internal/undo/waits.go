package undo

import (
	"slices"
	"sync"

	"github.com/relock-go/relock/internal/group"
)

// Waits are the undos of one attempt, for a caller that waits until they are settled. A Lock that fails does
// that for a moment: the next try, of any owner, then does not meet what it has left on Redis. The zero value
// has none. It is safe for concurrent use: a hand-over that comes too late adds one from the goroutine of the
// holder.
type Waits struct {
	mu      sync.Mutex
	pending []<-chan struct{} // each is closed when it is settled; Add and Next drop those that are
}

// Add has one more be waited for. settled is closed sooner or later: see [Add].
func (w *Waits) Add(settled <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(slices.DeleteFunc(w.pending, group.Closed), settled)
}

// Next returns one that is not settled yet; nil: all are. It does not block: the caller waits for the
// channel, and then asks again, because others may have been added.
func (w *Waits) Next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending = slices.DeleteFunc(w.pending, group.Closed); len(w.pending) > 0 {
		return w.pending[0]
	}
	return nil
}

// Forget has none be waited for. They go on in the background.
func (w *Waits) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = nil
}
