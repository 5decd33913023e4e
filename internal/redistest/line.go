package redistest

import (
	"sync"
	"time"
)

// line is one direction of a connection: a queue whose items leave in order, each when it is due. The wait for one item
// does not delay the next, so a latency does not reduce the throughput. It has one reader.
type line[T any] struct {
	mu    sync.Mutex // guards items
	items []timed[T]
	wake  chan struct{} // has a token if items may have been added since the last read
}

type timed[T any] struct {
	due   time.Time
	value T
}

func newLine[T any]() *line[T] {
	return &line[T]{wake: make(chan struct{}, 1)}
}

// push appends v, to be taken after the delay. It never blocks.
func (l *line[T]) push(v T, delay time.Duration) {
	l.mu.Lock()
	l.items = append(l.items, timed[T]{time.Now().Add(delay), v})
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// next takes the first item, and calls idle before it waits for one. It returns false
// once stop is closed.
func (l *line[T]) next(stop <-chan struct{}, idle func()) (v T, ok bool) {
	for {
		first, found := l.first()
		if !found {
			idle()
			select {
			case <-l.wake:
				continue
			case <-stop:
				return v, false
			}
		}
		if wait := time.Until(first.due); wait > 0 {
			idle()
			if !pause(wait, stop) {
				return v, false
			}
		}
		l.drop()
		return first.value, true
	}
}

func (l *line[T]) first() (item timed[T], ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.items) == 0 {
		return item, false
	}
	return l.items[0], true
}

func (l *line[T]) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items[0] = timed[T]{} // frees its bytes
	l.items = l.items[1:]
}

// pause waits for d and reports whether it passed before stop was closed.
func pause(d time.Duration, stop <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-stop:
		return false
	}
}
