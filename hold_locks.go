package relock

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// What the Locks of a hold ask for: how long its lease is, how often and until when it is renewed,
// which replicas confirm it, and until when its keys are reserved after its end.
//
// An open Lock is one Lock that was not unlocked yet. A hold begins without any, with the options of the handle that
// acquires it: its TTL and replicas count from the beginning.
//
// Several handles with different options may have open Locks on one hold. The hold then does what the most
// demanding open Lock needs: the longest lease, the shortest interval, most replicas, the latest min hold. When that
// open Lock is unlocked, the others count again. Only its min hold stays.

// openLock is one Lock that was not unlocked yet.
type openLock struct {
	settings *settings // of its handle
	target   *keys.Set // what it locks; some of its keys may be in another hold

	// from sets both. They count from the beginning of the open Lock, not of the hold.
	renewUntil       clock.Instant // with maxHold; else zero
	placeholderUntil clock.Instant // with minHold; else zero, or revoked
}

// from returns the open Lock with its times, if it begins at now.
func (lock openLock) from(now clock.Instant) openLock {
	lock.renewUntil, lock.placeholderUntil = clock.Instant{}, clock.Instant{}
	if lock.settings.maxHold > 0 {
		lock.renewUntil = now.After(lock.settings.maxHold)
	}
	if lock.settings.minHold > 0 {
		lock.placeholderUntil = now.After(lock.settings.minHold)
	}
	return lock
}

// openLocks are the open Locks of one hold. It is a value without a clock: callers pass all times. The mutex
// of the hold guards it. It must not be copied, because open may point into room.
type openLocks struct {
	wish *settings   // of the handle that acquires the hold
	open []openLock  // the oldest first
	room [1]openLock // for the usual single open Lock, to save an allocation

	// placeholderUntil is the latest min hold of the open Locks that have ended: until then the keys are reserved. Zero: none.
	// placeholderReplicas are to confirm that.
	placeholderUntil    clock.Instant
	placeholderReplicas redisexec.Replicas
}

// pop removes the newest open Lock of t. false: there is none. Open Locks on other sets of keys stay, even if they
// were opened later: an Unlock of a handle never releases what a handle for other names has locked.
func (l *openLocks) pop(t *keys.Set) (lock openLock, popped bool) {
	i := l.newest(t)
	if i < 0 {
		return lock, false
	}
	lock = l.open[i]
	l.open = append(l.open[:i], l.open[i+1:]...)
	return lock, true
}

// revoke removes the min hold of the newest open Lock of t: its Lock has failed. Otherwise a Lock that returned an
// error would reserve the key for its min hold.
func (l *openLocks) revoke(t *keys.Set) {
	if i := l.newest(t); i >= 0 {
		l.open[i].placeholderUntil = clock.Instant{}
	}
}

// newest returns where the newest open Lock of t is; -1: there is none.
func (l *openLocks) newest(t *keys.Set) int {
	i := len(l.open) - 1
	for i >= 0 && l.open[i].target.ID != t.ID {
		i--
	}
	return i
}

// counts returns the number of open Locks on each of keys. Commands carry these counts, never a step up or down: a
// command that is executed twice sets the same counts.
func (l *openLocks) counts(keys []string) []int {
	counts := make([]int, len(keys))
	for _, lock := range l.open {
		for i, key := range keys {
			if lock.target.Has(key) {
				counts[i]++
			}
		}
	}
	return counts
}

// ttl is the longest lease that is asked for.
func (l *openLocks) ttl() time.Duration {
	ttl := l.wish.TTL
	for _, lock := range l.open {
		ttl = max(ttl, lock.settings.TTL)
	}
	return ttl
}

// replicas returns the replicas that satisfy all open Locks.
func (l *openLocks) replicas() redisexec.Replicas {
	r := l.wish.replicas
	for _, lock := range l.open {
		r = r.And(lock.settings.replicas)
	}
	return r
}

// renewInterval returns the shortest interval of the open Locks that are renewed at now; 0: none is. One open Lock that is
// renewed keeps the hold for all, as the longest lease does.
func (l *openLocks) renewInterval(now clock.Instant) time.Duration {
	interval := time.Duration(0)
	for _, lock := range l.open {
		s := lock.settings
		renewed := s.Renewed && (s.maxHold == 0 || now.Until(lock.renewUntil) > 0)
		if renewed && (interval == 0 || s.renewInterval < interval) {
			interval = s.renewInterval
		}
	}
	return interval
}

// renewed reports whether any open Lock asks for renewal, even if its max hold has ended the renewal.
func (l *openLocks) renewed() bool {
	for _, lock := range l.open {
		if lock.settings.Renewed {
			return true
		}
	}
	return false
}

// recordMinHold records the min hold of an open Lock that has ended. The latest one counts: an inner Lock may
// ask for longer than the outer one, whose Unlock comes last.
func (l *openLocks) recordMinHold(ended ...openLock) {
	for _, lock := range ended {
		if lock.placeholderUntil == (clock.Instant{}) {
			continue
		}
		l.placeholderReplicas = l.placeholderReplicas.And(lock.settings.replicas)
		if l.placeholderUntil == (clock.Instant{}) || lock.placeholderUntil.Mono > l.placeholderUntil.Mono {
			l.placeholderUntil = lock.placeholderUntil
		}
	}
}
