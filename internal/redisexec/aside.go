package redisexec

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/goroutine"
)

// outside runs f, which uses Redis without an engine, and waits for its answer, or for the end of ctx: then the answer is
// pending. f continues in its goroutine until go-redis returns, which the end of ctx need not cause at once.
func (x *Executor) outside(ctx context.Context, f func() answer) answer {
	// With room, so that f can end when its caller has gone.
	answered := make(chan answer, 1)
	if !x.aside(func() { answered <- guarded(f) }) {
		return answer{err: redis.ErrClosed}
	}
	return receive(ctx, answered)
}

// receive waits for an answer, or for the end of ctx: then the answer is pending. An answer may arrive at the same moment. To
// ignore it is safe: the outcome counts as unknown.
func receive(ctx context.Context, answered <-chan answer) answer {
	select {
	case a := <-answered:
		return a
	case <-ctx.Done():
		return answer{err: ctx.Err(), pending: func(ctx context.Context) answer { return receive(ctx, answered) }}
	}
}

// guarded returns the answer of f, which may panic, as a hook of the application's client may. Then the answer is
// that panic, as an error that leaves it open what was executed.
func guarded(f func() answer) (a answer) {
	defer goroutine.Recover(&a.err)
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
		defer goroutine.Recover(&err)
		f()
	})
}
