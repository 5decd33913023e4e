package redisexec

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// late has the commands that their callers have given up in flight, each on a connection of its own. A later command for the
// same key, on another connection, could overtake such a command. If the later one releases a lock, and the earlier one then
// acquires it, the lock would have no owner until its TTL ends. So the later command waits until the earlier ones have ended.
// In a pipeline commands keep their order.
//
//	in flight --end--> ended
//	in flight --giveUp: its caller has gone--> given up, in the map --end--> ended, and waiting commands continue
//	given up --one patience later--> removed, and waiting commands continue: its connection may be dead
//
// If the sending goroutine ends before the caller gives up, the command is never in the map. Only first copies wait. A second
// copy is sent because something hangs, which may be the command that it would wait for.
type late struct {
	// n is the number of these commands. Usually it is 0, and then no command takes mu. It changes under mu.
	n  atomic.Int64
	mu sync.Mutex
	of map[any]map[*underWay]struct{} // by key
}

// underWay is a command in flight, from before it is sent until it has ended.
type underWay struct {
	keys []any
	over chan struct{} // closed when it has ended

	// late guards the fields below.
	ended, givenUp bool
}

func newUnderWay(keys []any) *underWay {
	return &underWay{keys: keys, over: make(chan struct{})}
}

// giveUp records that the caller of c does not wait for it any more. Later commands wait for it for d at most.
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

// end records that no command has to wait for c any more: it was answered, has failed, was not sent, or is removed.
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

// await waits for the commands that were given up before and have one of these keys. false: ctx ended first. It does not wait for
// commands that are given up meanwhile, because these have no order with the caller's.
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

// has reports whether a command that was given up has one of these keys.
func (l *late) has(keys []any) bool { return l.n.Load() != 0 && len(l.with(keys)) != 0 }

// with returns the commands that have one of these keys.
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
