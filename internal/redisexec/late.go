package redisexec

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// late are the commands that their callers have given up while they were under way, each on a
// connection of its own. A later command for the same key, on another connection, could overtake it. If it gives a
// lock back, and the late one gets it, the lock would be no one's until its TTL is over. So the later one waits
// until they have ended. In a pipeline commands keep their order.
//
//	under way --end--> ended
//	under way --giveUp: its caller has gone--> given up, in the map --end--> ended, and those that wait go on
//	given up --one patience later--> forgotten, and those that wait go on: its connection may be dead
//
// The caller gives up, and the goroutine that sends ends: whichever comes first decides whether it is ever in the
// map. Only first copies wait. A second one is sent because something is stuck, which may be the one waited for.
type late struct {
	// n is how many there are: most of the time none, and then no command takes mu for it. It changes under mu.
	n  atomic.Int64
	mu sync.Mutex
	of map[any]map[*underWay]struct{} // by key
}

// underWay is a command that is, from before it is sent until it has ended.
type underWay struct {
	keys []any
	over chan struct{} // closed when it has ended

	// What follows is guarded by late.
	ended, givenUp bool
}

func newUnderWay(keys []any) *underWay {
	return &underWay{keys: keys, over: make(chan struct{})}
}

// giveUp says that the caller of c does not wait for it any more. Later commands do so for d at most.
func (l *late) giveUp(c *underWay, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.ended {
		return
	}
	time.AfterFunc(d, func() { l.end(c) })
	c.givenUp = true
	l.n.Add(1)
	if l.of == nil {
		l.of = make(map[any]map[*underWay]struct{})
	}
	for _, key := range c.keys {
		if l.of[key] == nil {
			l.of[key] = make(map[*underWay]struct{})
		}
		l.of[key][c] = struct{}{}
	}
}

// end says that no command is to wait for c any more: it was answered, has failed, was not sent, or is forgotten.
func (l *late) end(c *underWay) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	close(c.over)
	if !c.givenUp {
		return
	}
	l.n.Add(-1)
	for _, key := range c.keys {
		if delete(l.of[key], c); len(l.of[key]) == 0 {
			delete(l.of, key)
		}
	}
}

// await waits for those that were given up before and have one of these keys. false: ctx ended first. It does not
// wait for those that are given up meanwhile: no order was promised between them and this one.
func (l *late) await(ctx context.Context, keys []any) bool {
	if l.n.Load() == 0 {
		return true
	}
	for _, c := range l.with(keys) {
		select {
		case <-c.over:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// has reports whether one that was given up has one of these keys.
func (l *late) has(keys []any) bool { return l.n.Load() != 0 && len(l.with(keys)) != 0 }

// with returns those that have one of these keys.
func (l *late) with(keys []any) []*underWay {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*underWay
	for _, key := range keys {
		for c := range l.of[key] {
			if !slices.Contains(list, c) {
				list = append(list, c)
			}
		}
	}
	return list
}
