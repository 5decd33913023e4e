package redisexec

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
)

// flights are the copies of one call in flight. They outlast the wait for each copy, but not the call.
type flights struct {
	exec       *Executor
	call       context.Context // the caller's
	ctx        context.Context // ends with the call
	cancel     context.CancelFunc
	script     *Script
	keys, args []any
	enough     <-chan struct{} // see CallOptions, as patience
	patience   time.Duration
	landed     chan answer
}

func (x *Executor) newFlights(c *try, s *Script, keys, args []any) *flights {
	f := &flights{
		exec: x, call: c.ctx, script: s, keys: slices.Clone(keys), args: slices.Clone(args),
		enough: c.e.Enough, patience: c.e.Patience, landed: make(chan answer),
	}
	f.ctx, f.cancel = context.WithCancel(c.ctx)
	return f
}

// end gives up all copies in flight. f may be nil.
func (f *flights) end() {
	if f != nil {
		f.cancel()
	}
}

// fly runs send, which sends a copy, and passes on its answer. false: the executor is closed.
func (f *flights) fly(c try, send func(c try) answer) bool {
	c.ctx, c.wait, c.patience = f.ctx, f.ctx, 0
	return f.exec.aside(func() {
		a := guarded(func() answer { return send(c) })
		if a.server == nil { // of a panic
			a.server, a.sent = f.exec.anywhere, c.sent
		}
		a.n = c.n
		select {
		case f.landed <- a:
		case <-f.ctx.Done():
			a.giveUp()
		}
	})
}

// goOn lets the copy c, whose answer may be pending, continue in the background.
func (f *flights) goOn(c *try, pending func(context.Context) answer) {
	if pending != nil {
		f.fly(*c, func(c try) answer {
			a := pending(f.ctx)
			f.exec.sendAll(&c, f.script, f.keys, f.args, &a)
			return a
		})
	}
}

// next sends the copy after c, which becomes c. It returns the answer to this copy, or to an earlier one that is answered
// first.
func (f *flights) next(c *try) answer {
	pause := clock.Backoff(c.n)
	if a, landed := f.await(0, pause); landed {
		return a
	}
	c.n++
	c.sent = f.exec.Now()
	c.patience = c.e.growing(f.call, c.n)
	err := redis.ErrClosed
	if f.fly(*c, func(c try) answer { return f.exec.send(&c, f.script, f.keys, f.args) }) {
		if a, landed := f.await(c.n, c.patience); landed {
			return a
		}
		if err = f.call.Err(); err == nil {
			err = lockerr.NoAnswerWithin(c.patience)
		}
	}
	return answer{err: err, sent: c.sent, n: c.n, server: f.exec.serverOf(f.ctx, f.keys[0].(string))}
}

// await waits for d for an answer to any copy, or for an error of the nth. false: there is none. When the answer is not needed
// any more, it waits no longer than the usual patience from then on.
func (f *flights) await(n int, d time.Duration) (answer, bool) {
	began, timer, enough := time.Now(), time.NewTimer(d), f.enough
	defer timer.Stop()
	for {
		select {
		case <-enough:
			enough = nil
			timer.Reset(max(0, min(d-time.Since(began), f.patience)))
		case a := <-f.landed:
			// mutant: patience-fixed/2
			if f.script.judge(a.err).answered || a.n == n {
				return a, true
			}
			a.server.record(a.err, f.exec.Now())
		case <-timer.C:
			return answer{}, false
		case <-f.call.Done():
			return answer{}, false
		}
	}
}
