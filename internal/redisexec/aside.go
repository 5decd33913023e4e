package redisexec

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/guard"
)

// outside runs f, which talks to Redis past the engines, and waits for its answer, or for ctx: then
// it is given up.
func (x *Executor) outside(ctx context.Context, f func() answer, givenUp func()) answer {
	answered := make(chan answer, 1)
	if !x.aside(func() { answered <- guarded(f) }) {
		return answer{err: redis.ErrClosed}
	}
	select {
	case a := <-answered:
		return a
	case <-ctx.Done():
		givenUp()
		return answer{err: ctx.Err()}
	}
}

// inside runs f, which talks to Redis past the engines' pipelines, and which Close waits for, on its
// caller's goroutine.
func (x *Executor) inside(f func() answer) (a answer) {
	x.insides.Run(func() { // counted before the look, between which and the rest Close could come
		if a.err = redis.ErrClosed; !x.isClosed() {
			a = guarded(f)
		}
	})
	return a
}

func (x *Executor) isClosed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.closed
}

// guarded returns the answer of f, which may panic.
func guarded(f func() answer) (a answer) {
	defer guard.Recover(&a.err)
	return f()
}

// aside runs f, which calls the Redis client, in a goroutine that Close waits for. false: x is
// closed.
func (x *Executor) aside(f func()) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.closed {
		x.goAside(f)
	}
	return !x.closed
}

// goAside is aside when mu is held. A panic ends f and nothing else.
func (x *Executor) goAside(f func()) {
	x.asides.Go(func() {
		var err error
		defer guard.Recover(&err)
		f()
	})
}
