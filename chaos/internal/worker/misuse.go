package worker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/locker"
)

// misuse breaks one of the rules of the library, drawn at random, and records whether it was
// told so.
func (w *worker) misuse() {
	wrongs := []func(){w.unlockNothing, w.unlockTwice, w.unlockAnothers, w.outliveTheLease, w.closeWhileHeld}
	wrongs[w.r.IntN(len(wrongs))]()
	w.breathe()
}

// expect records whether err is what the misuse has to be answered with.
func (u *use) expect(err, want error, what string) {
	e := history.Event{Kind: history.Misused, Outcome: history.OK, Note: what}
	if !errors.Is(err, want) {
		e.Outcome, e.Err = history.Failed, fmt.Sprintf("%v, not %v", err, want)
	}
	u.tell(e)
}

func (w *worker) self() string { return fmt.Sprintf("p%d.w%d", w.Process, w.id) }

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

// outliveTheLease does not renew, locks again in the lost hold, and unlocks it.
func (w *worker) outliveTheLease() {
	const lease = 150 * time.Millisecond
	u := w.use(w.names(), w.self(), relock.WithTTL(lease), relock.WithoutRenewal())
	u.lease, u.fixed = lease, true
	if u.lock() != history.OK {
		return
	}
	u.spend(2 * lease)
	if u.ask() { // the process stops, and cut it short
		u.unlockAll()
		return
	}
	u.expect(u.m.Lock(u.life), relock.ErrLost, "Lock inside a lost hold")
	u.unlockAll()
	u.expect(u.m.Unlock(), relock.ErrNotHeld, "Unlock after everything was unlocked")
}

// closeWhileHeld closes a client of the library that holds a lock.
func (w *worker) closeWhileHeld() {
	brief, err := w.newLocks()
	if err != nil {
		w.left("New: %v", err)
		return
	}
	u := w.useOf(brief, w.names(), fmt.Sprintf("%s.c%d", w.self(), w.number()))
	if u.lock() != history.OK {
		_ = brief.Close() // it was told already why Redis cannot be reached
		return
	}
	u.spend(w.length())
	if !u.ask() {
		u.unlockAll()
		_ = brief.Close()
		return
	}
	for u.depth > 1 {
		u.unlock()
	}
	u.unwatch()
	op := u.number()
	u.tell(history.Event{Op: op, Kind: history.UnlockCall, Depth: 1})
	closed := brief.Close()
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
