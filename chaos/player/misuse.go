package player

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
)

// misuse breaks one of the rules of the library, or closes a client that holds a lock, and records whether the right error was
// returned.
func (p *player) misuse() {
	another := p.closeWhileHeld
	if p.Outlives {
		another = p.outliveTheLease
	}
	Pick(p.Drawer, p.unlockNothing, p.unlockTwice, p.unlockAnothers, another, p.closeWhileHeld)()
}

// expect records whether err is the right error for the misuse.
func (u *use) expect(err, want error, what string) {
	e := history.Event{Kind: history.Misused, Outcome: history.OK, Note: what}
	if !errors.Is(err, want) {
		e.Outcome, e.Err = history.Failed, fmt.Sprintf("%v, not %v", err, want)
	}
	u.record(e)
}

func (p *player) unlockNothing() {
	u := p.use(p.Choose(p.Drawer), p.self())
	u.expect(u.m.Unlock(), relock.ErrNotHeld, "Unlock of a lock that is not held")
}

func (p *player) unlockTwice() {
	u := p.use(p.Choose(p.Drawer), p.self())
	if u.lock() == history.OK {
		u.unlockAll()
		u.expect(u.m.Unlock(), relock.ErrNotHeld, "a second Unlock")
	}
}

func (p *player) unlockAnothers() {
	u := p.use(p.Choose(p.Drawer), p.self())
	if u.lock() != history.OK {
		return
	}
	var other sync.WaitGroup
	other.Go(func() { u.expect(u.m.Unlock(), relock.ErrNotHeld, "Unlock by another goroutine") })
	other.Wait()
	u.unlockAll()
}

// outliveTheLease does not renew, and unlocks a hold that it has lost.
func (p *player) outliveTheLease() {
	const lease = 150 * time.Millisecond
	u := p.prepare(p.Choose(p.Drawer), p.self())
	u.lease, u.fixed = lease, true
	u.of(p.Locks)
	if u.lock() != history.OK {
		return
	}
	u.spend(2 * lease)
	lost := !u.ask() // it is not lost if the process stops, which ends the wait early
	u.unlockAll()
	if lost {
		u.expect(u.m.Unlock(), relock.ErrNotHeld, "Unlock after everything was unlocked")
	}
}

// closeWhileHeld closes a client that holds a lock, as a program does at its end.
func (p *player) closeWhileHeld() {
	locks, shut, err := p.NewLocks()
	if err != nil {
		p.Record(history.Event{Kind: history.Left, Note: fmt.Sprintf("New: %v", err)})
		return
	}
	defer func() { _ = shut() }() // the first Close has reported why Redis cannot be reached
	u := p.prepare(p.Choose(p.Drawer), fmt.Sprintf("%s.c%d", p.self(), p.number()))
	u.of(locks)
	if u.lock() != history.OK {
		return
	}
	u.spend(p.Length(p.Drawer))
	for u.depth > 1 {
		u.unlock()
	}
	if !u.ask() {
		u.unlockAll()
		return
	}
	u.unwatch()
	op := u.number()
	u.record(history.Event{Op: op, Kind: history.UnlockCall, Depth: 1})
	closed := shut()
	u.Gate()
	u.Holding.Add(-1)
	unlocked := u.m.Unlock()
	e := history.Event{Op: op, Kind: history.UnlockReturn, Outcome: OutcomeOf(closed), Err: Text(closed), Count: u.m.HoldCount()}
	if errors.Is(unlocked, relock.ErrLost) { // before it could be closed
		e.Outcome, e.Err = history.IsLost, Text(unlocked)
	} else {
		u.expect(unlocked, relock.ErrClosed, "Unlock after Close")
	}
	u.record(e)
	u.expect(u.m.Unlock(), relock.ErrNotHeld, "Unlock after the last one")
	u.expect(u.m.Lock(u.Life), relock.ErrClosed, "Lock after Close")
}
