package worker

import (
	"fmt"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/locker"
)

// sides prepares a write hold and a read hold of a read-write lock by the worker.
func (w *worker) sides(name string) (write, read *use) {
	owner := fmt.Sprintf("p%d.w%d.sides", w.Process, w.id)
	write, read = w.prepare([]string{name}, owner), w.prepare([]string{name}, owner)
	write.m = locker.WriteSide{RWMutex: w.locks.RWMutex(name, write.options(relock.WithOwner(owner))...)}
	read.m = locker.ReadSide{RWMutex: w.locks.RWMutex(name, read.options(relock.WithOwner(owner))...), Owner: owner}
	read.read = true
	return write, read
}

// readOrWrite is a use of a read-write lock: to read, or to write, or to write and then to
// go on reading.
func (w *worker) readOrWrite() {
	defer w.breathe()
	write, read := w.sides(w.Sided[w.r.IntN(len(w.Sided))])
	if w.chance(w.Work.Reads) {
		if read.lock() != history.OK {
			return
		}
		read.spend(w.length())
		if w.chance(0.1) {
			read.upgrade(write)
		}
		read.unlockAll()
		return
	}
	if write.lock() != history.OK {
		return
	}
	write.spend(w.length())
	if w.chance(0.3) && w.readOn(write, read) {
		write.unlockAll()
		read.spend(w.length())
		read.unlockAll()
		return
	}
	write.unlockAll()
}

// readOn locks the read side inside a write hold, which never has to wait.
func (w *worker) readOn(write, read *use) bool {
	read.eager = w.chance(0.7)
	outcome := read.lock()
	read.eager = false
	if outcome == history.Taken && w.Work.Kept && write.ask() {
		read.tell(history.Event{Kind: history.Misused, Outcome: history.Failed, Err: "false", Note: "TryRLock inside a write hold"})
	}
	return outcome == history.OK
}

// upgrade locks the write side inside a read hold, which has to be refused.
func (u *use) upgrade(write *use) {
	if !u.ask() {
		return
	}
	err := write.m.Lock(u.client.life)
	if u.ask() && u.client.life.Err() == nil {
		u.expect(err, relock.ErrUpgrade, "Lock inside a read hold")
	}
}
