package worker

import (
	"context"
	"fmt"
	"strings"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
)

// locker is what a use locks: a Mutex of any kind, or one side of an RWMutex.
type locker interface {
	Lock(ctx context.Context) error
	TryLock(ctx context.Context) (bool, error)
	Unlock() error
	HoldCount() int
	FencingToken() int64
	Context(ctx context.Context) context.Context

	// levels is what Redis says that HoldCount is.
	levels(ctx context.Context) (int, error)
}

type mutex struct{ *relock.Mutex }

func (m mutex) levels(ctx context.Context) (int, error) {
	s, err := m.State(ctx)
	return s.Count, err
}

// writeSide is the side of a read-write lock that excludes all others.
type writeSide struct{ *relock.RWMutex }

func (m writeSide) levels(ctx context.Context) (int, error) {
	s, err := m.State(ctx)
	return s.Count, err
}

// readSide is the side that many may have, of an owner with a fixed name: so that it is found
// among the readers.
type readSide struct {
	*relock.RWMutex
	owner string
}

func (m readSide) Lock(ctx context.Context) error            { return m.RLock(ctx) }
func (m readSide) TryLock(ctx context.Context) (bool, error) { return m.TryRLock(ctx) }
func (m readSide) Unlock() error                             { return m.RUnlock() }
func (m readSide) HoldCount() int                            { return m.RHoldCount() }
func (m readSide) FencingToken() int64                       { return 0 }

func (m readSide) Context(ctx context.Context) context.Context { return m.RContext(ctx) }

func (m readSide) levels(ctx context.Context) (int, error) {
	s, err := m.State(ctx)
	n := 0
	for field, count := range s.Readers {
		if strings.HasSuffix(field, ":"+m.owner) {
			n = max(n, count) // one that was given up may not be undone yet
		}
	}
	return n, err
}

// sides prepares a write hold and a read hold of a read-write lock by the worker.
func (w *worker) sides(name string) (write, read *use) {
	owner := fmt.Sprintf("p%d.w%d.sides", w.Process, w.id)
	write, read = w.prepare([]string{name}, owner), w.prepare([]string{name}, owner)
	write.m = writeSide{w.locks.RWMutex(name, write.options(relock.WithOwner(owner))...)}
	read.m = readSide{w.locks.RWMutex(name, read.options(relock.WithOwner(owner))...), owner}
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
