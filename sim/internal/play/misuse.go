package play

import (
	"errors"
	"fmt"
	"sync"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/locker"
)

// misuse breaks one of the rules of the library, or closes a client that holds a lock, and records whether
// it was told so.
func (w *worker) misuse() {
	pick(w.drawer, w.unlockNothing, w.unlockTwice, w.unlockAnothers, w.closeWhileHeld, w.closeWhileHeld)()
}

// expect records whether err is what the misuse has to be answered with.
func (u *use) expect(err, want error, what string) {
	e := history.Event{Kind: history.Misused, Outcome: history.OK, Note: what}
	if !errors.Is(err, want) {
		e.Outcome, e.Err = history.Failed, fmt.Sprintf("%v, not %v", err, want)
	}
	u.tell(e)
}

func (w *worker) unlockNothing() {
	u := w.use(w.names(), w.self())
	u.expect(u.m.Unlock(), relock.ErrNotHeld, "Unlock of a lock that is not held")
}

func (w *worker) unlockTwice() {
	u := w.use(w.names(), w.self())
	if u.lock() == history.OK {
		u.unlockAll()
		u.expect(u.m.Unlock(), relock.ErrNotHeld, "a second Unlock")
	}
}

func (w *worker) unlockAnothers() {
	u := w.use(w.names(), w.self())
	if u.lock() != history.OK {
		return
	}
	var other sync.WaitGroup
	other.Go(func() { u.expect(u.m.Unlock(), relock.ErrNotHeld, "Unlock by another goroutine") })
	other.Wait()
	u.unlockAll()
}

// closeWhileHeld closes a client of the library that holds a lock, as a program does that is told to end.
func (w *worker) closeWhileHeld() {
	b, err := w.newBrief()
	if err != nil {
		w.left("New: %v", err)
		return
	}
	defer func() { _ = b.close() }() // it was told already why Redis cannot be reached
	u := w.useOf(b.locks, w.names(), fmt.Sprintf("%s.c%d", w.self(), w.calls.Add(1)))
	if u.lock() != history.OK {
		return
	}
	u.spend(w.length())
	for u.depth > 1 {
		u.unlock()
	}
	if !u.ask() {
		u.unlockAll()
		return
	}
	u.unwatch()
	op := int(u.calls.Add(1))
	u.tell(history.Event{Op: op, Kind: history.UnlockCall, Depth: 1})
	closed := b.close()
	u.gate()
	u.holding.Add(-1)
	unlocked := u.m.Unlock()
	e := history.Event{Op: op, Kind: history.UnlockReturn, Outcome: locker.OutcomeOf(closed), Err: locker.Text(closed), Count: u.m.HoldCount()}
	if errors.Is(unlocked, relock.ErrLost) { // before it could be closed
		e.Outcome, e.Err = history.IsLost, locker.Text(unlocked)
	} else {
		u.expect(unlocked, relock.ErrClosed, "Unlock after Close")
	}
	u.tell(e)
	u.expect(u.m.Unlock(), relock.ErrNotHeld, "Unlock after the last one")
	u.expect(u.m.Lock(u.life), relock.ErrClosed, "Lock after Close")
}
