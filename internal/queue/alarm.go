package queue

import "sync"

// Alarm wakes the owner of tickets. It has room for one ring: until the owner receives it, more rings add nothing. Most
// alarms never wake anyone, so it makes a channel only if it is waited for. The zero Alarm has not rung.
type Alarm struct {
	mu   sync.Mutex
	rung bool          // while c is nil
	c    chan struct{} // nil: it has not been waited for
}

// Ring wakes the owner, or keeps it from falling asleep. It never blocks.
func (a *Alarm) Ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.c == nil {
		a.rung = true
		return
	}
	select {
	case a.c <- struct{}{}:
	default:
	}
}

// C is what the owner waits for. It gets each ring once, those of before the first call, too.
func (a *Alarm) C() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.c == nil {
		a.c = make(chan struct{}, 1)
		if a.rung {
			a.c <- struct{}{}
		}
	}
	return a.c
}
