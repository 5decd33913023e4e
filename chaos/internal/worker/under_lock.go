package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/locker"
)

// spend lets d pass under the lock, or less if the hold is lost or the process stops.
func (u *use) spend(d time.Duration) {
	// A re-entry lengthens the lease, too: within a long hold they are rare, so that there
	// is something to renew.
	again := 0.1
	if d > u.lease/4 {
		again = 0.01
	}
	for end := time.Now().Add(d); u.ask() && time.Now().Before(end) && u.hold.Err() == nil && !u.stopped(); {
		u.act(again)
		u.rest(u.hold, min(u.between(2*time.Millisecond, 10*time.Millisecond), time.Until(end)))
	}
	if u.hold.Err() != nil && u.chance(0.5) {
		u.write() // as a careless user does, which does not look
	}
}

func (u *use) stopped() bool {
	select {
	case <-u.stopping:
		return true
	default:
		return false
	}
}

// act is something that is done under a lock: lock it again, for instance, with the
// probability given.
func (u *use) act(again float64) {
	switch p := u.r.Float64(); {
	case p < 0.3:
		if u.ask() {
			u.write()
		}
	case p < 0.3+again && u.depth < 3:
		u.lock()
	case p < 0.5 && u.depth > 1:
		u.unlock()
	case p < 0.6 && u.Work.Counts:
		u.compare()
	}
}

// write writes to what the lock protects, or to each of what several locks do.
func (u *use) write() {
	if u.resource == nil || u.read || u.Work.Untokened {
		return
	}
	token := u.m.FencingToken()
	for _, lock := range u.locks {
		e := history.Event{Worker: u.id, Owner: u.owner, Lock: lock, Op: u.op, Kind: history.WriteCall, Token: token}
		u.record(e)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		accepted, err := u.resource.Write(ctx, lock, token, fmt.Sprintf("%s/%d", u.owner, u.op))
		cancel()
		e.Kind, e.Outcome, e.Err = history.WriteReturn, locker.OutcomeOf(err), locker.Text(err)
		if err == nil && !accepted {
			e.Outcome = history.Refused
		}
		u.record(e)
	}
}

// compare records what Redis says of the levels, if the hold is valid before and after.
func (u *use) compare() {
	if len(u.locks) > 1 || u.shared || !u.ask() {
		return
	}
	if u.Work.Untokened && u.depth < 2 {
		return // Redis may not know the hold yet: to lock it again waits for that
	}
	ctx, cancel := context.WithTimeout(u.life, u.Work.TTL)
	defer cancel()
	n, token, err := u.m.OnRedis(ctx)
	at := history.Now() // the hold was valid then, if it is now
	if err == nil && u.ask() {
		u.tell(history.Event{At: at, Kind: history.Counted, Depth: u.depth, Count: n, Token: token})
	}
}

// trust goes by the context of the hold, as work does that was started under the lock,
// until that ends or distrust is called, which records when it was last valid.
func (u *use) trust() (distrust func()) {
	ctx, over := u.m.Context(u.life), make(chan struct{})
	var trusting sync.WaitGroup
	var last int64
	trusting.Go(func() {
		for {
			at := history.Now()
			if ctx.Err() != nil {
				return
			}
			last = at
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() {
		close(over)
		trusting.Wait()
		if last != 0 {
			u.tell(history.Event{At: last, Kind: history.Held})
		}
	}
}
