package player

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
)

// spend uses the lock for a time, or for less if the hold is lost or the process stops.
func (u *use) spend(d time.Duration) {
	end := time.Now().Add(d)
	if u.AtOnce && u.Chance(0.5) {
		u.compare()
	}
	// A re-entry extends the lease, too. In a long hold re-entries are rare, so that renewals are needed.
	again := 0.15
	if u.weight > 0 { // a permit is not entered again
		again = 0
	}
	for ; u.valid() && !u.over(); again /= 2 {
		u.act(again)
		left := time.Until(end)
		if left <= 0 {
			break
		}
		u.rest(u.hold, min(u.Between(u.Step[0], u.Step[1]), left))
	}
	u.Gate()
	if u.hold.Err() != nil && u.Chance(0.5) {
		u.write() // as a careless user does, without a check
	}
	if errors.Is(context.Cause(u.hold), relock.ErrLost) && !u.shared && u.weight == 0 && u.Chance(0.5) {
		u.lockLost()
	}
}

// valid reports whether the hold is valid, by one of two methods of the library.
func (u *use) valid() bool {
	if u.Chance(0.5) {
		return u.ask()
	}
	return u.hold.Err() == nil
}

// lockLost locks inside a lost hold, which has to be refused.
func (u *use) lockLost() {
	ctx, cancel := context.WithTimeout(u.Life, u.TTL)
	defer cancel()
	err := u.m.Lock(ctx)
	u.Gate()
	u.expect(err, relock.ErrLost, "Lock inside a lost hold")
}

// act performs an action under a lock. With the given probability it locks again.
func (u *use) act(again float64) {
	switch p := u.Float64(); {
	case p < 0.3:
		if u.ask() {
			u.write()
		}
	case p < 0.3+again && u.depth < 3:
		u.lock()
	case p < 0.5 && u.depth > 1:
		u.unlock()
	case p < 0.6:
		u.compare()
	default:
		u.ask()
	}
}

// write writes to the resource of the lock, or of each of several locks.
func (u *use) write() {
	if !u.Protected || u.read || u.weight > 0 || u.Untokened {
		return
	}
	token := u.m.FencingToken()
	for _, lock := range u.locks {
		e := history.Event{Worker: u.id, Owner: u.owner, Lock: lock, Op: u.op, Kind: history.WriteCall, Token: token}
		u.Record(e)
		accepted, err := u.Write(u.Drawer, lock, token, fmt.Sprintf("%s/%d", u.owner, u.op))
		u.Gate()
		e.Kind, e.Outcome, e.Err = history.WriteReturn, OutcomeOf(err), Text(err)
		if err == nil && !accepted {
			e.Outcome = history.Refused
		}
		u.Record(e)
	}
}

// compare records the hold count on Redis, if the hold is valid before and after.
func (u *use) compare() {
	if !u.Counted || len(u.locks) > 1 || u.shared || !u.ask() {
		return
	}
	if u.Untokened && u.depth < 2 {
		return // the name of the hold may not be on Redis yet; a re-entry waits for that
	}
	ctx, cancel := context.WithTimeout(u.Life, u.TTL)
	defer cancel()
	n, token, err := u.m.OnRedis(ctx)
	u.Gate()
	at := u.Now() // the hold was valid then, if it is now
	if err == nil && u.ask() {
		u.record(history.Event{At: at, Kind: history.Counted, Depth: u.depth, Count: n, Token: token})
	}
}
