package redisexec

import (
	"context"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/lockerr"
)

// Limits are contexts that bound requests. A context for each request would cost seven allocations and a timer, and nearly every
// request is answered long before its end. So requests that begin at about the same time share one. It ends at the requested time,
// or earlier by at most a 64th of that time. It need not be released, because its timer ends it.
type Limits struct {
	mu      sync.Mutex
	current map[time.Duration]*limit
}

// sharedFor is the part of its time for which a limit is given to others: so many times as many
// are alive at once, of each length.
const sharedFor = 64

// mostLimits bounds the number of stored limits of different length. Applications use a few.
const mostLimits = 16

// limit is a context that ends by the clock alone.
type limit struct {
	context.Context
	cancel context.CancelFunc // never called: others may use it
	shared time.Time          // until then it is given to others; written once, when it is made
}

// After returns a context that ends in d, because Redis did not answer.
func (l *Limits) After(d time.Duration) *limit { return l.from(time.Now(), d) }

// from is After at now.
func (l *Limits) from(now time.Time, d time.Duration) *limit {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.current[d]; c != nil && now.Before(c.shared) {
		return c
	}
	c := &limit{shared: now.Add(d / sharedFor)}
	c.Context, c.cancel = context.WithTimeoutCause(context.Background(), d, lockerr.NoAnswerWithin(d))
	// Limits that are dropped continue for the requests that have them.
	if l.current == nil || len(l.current) >= mostLimits {
		l.current = make(map[time.Duration]*limit)
	}
	l.current[d] = c
	return c
}

// within returns a context that ends with ctx, or in d.
func (l *Limits) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if now := time.Now(); outlasts(ctx, now, d) {
		return l.from(now, d), func() {}
	}
	return context.WithTimeout(ctx, d)
}

// endOf returns the earlier one of end and the end of ctx by the clock. watch: ctx may end before that.
func endOf(ctx context.Context, end time.Time) (until time.Time, watch bool) {
	if d, ends := ctx.Deadline(); ends && d.Before(end) {
		end = d
	}
	_, byTime := ctx.(*limit)
	return end, !byTime && ctx.Done() != nil
}

// overAt returns why a wait until end is over, which was for patience, or for less if ctx ended.
func overAt(ctx context.Context, end time.Time, patience time.Duration) error {
	if d, ends := ctx.Deadline(); ends && !d.After(end) {
		select {
		case <-ctx.Done(): // at any moment
		case <-time.After(MinCopyPatience): // not if the wall clock has been set, or ctx does not keep its deadline
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return lockerr.NoAnswerWithin(patience)
}

// outlasts reports whether ctx certainly does not end within d after now. For most contexts this is unknown.
func outlasts(ctx context.Context, now time.Time, d time.Duration) bool {
	if c, byTime := ctx.(*limit); byTime {
		end, _ := c.Deadline()
		return end.Sub(now) >= d
	}
	return ctx.Done() == nil
}
