package player

import (
	"context"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
)

// readOrWrite is a use of a read-write lock: to read, to write, or to write and then to read.
func (p *player) readOrWrite() {
	name, owner := Pick(p.Drawer, p.Sided...), p.self()+".sides"
	write, read := p.prepare([]string{name}, owner), p.prepare([]string{name}, owner)
	write.m = WriteSide{p.Locks.RWMutex(name, write.options(relock.WithOwner(owner))...)}
	read.m = ReadSide{RWMutex: p.Locks.RWMutex(name, read.options(relock.WithOwner(owner))...), Owner: owner}
	read.read = true
	if p.Chance(p.Reads) {
		if read.lock() == history.OK {
			read.spend(p.Length(p.Drawer))
			if p.Chance(0.1) {
				read.upgrade(write)
			}
			read.unlockAll()
		}
		return
	}
	if write.lock() != history.OK {
		return
	}
	write.spend(p.Length(p.Drawer))
	if p.Chance(0.4) && read.inside(write) {
		write.unlockAll()
		read.spend(p.Length(p.Drawer))
		read.unlockAll()
		return
	}
	write.unlockAll()
}

// inside locks the read side inside a write hold, which never waits.
func (u *use) inside(write *use) bool {
	u.eager = u.Chance(0.7)
	outcome := u.lock()
	u.eager = false
	if outcome == history.Taken && u.Kept && write.ask() {
		u.record(history.Event{Kind: history.Misused, Outcome: history.Failed, Err: "false", Note: "TryRLock inside a write hold"})
	}
	return outcome == history.OK
}

// upgrade locks the write side inside a read hold, which has to be refused.
func (u *use) upgrade(write *use) {
	if !u.ask() {
		return
	}
	ctx, cancel := context.WithTimeout(u.Life, u.TTL)
	defer cancel()
	err := write.m.Lock(ctx)
	u.Gate()
	if u.ask() && ctx.Err() == nil {
		u.expect(err, relock.ErrUpgrade, "Lock inside a read hold")
	}
}
