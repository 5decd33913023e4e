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
// A level is one Lock that was not unlocked yet. A hold begins without any, with the options of the handle that
// acquires it. These count until a level is open: a hook may delay the caller.
//
// Several handles with different options may have levels on one hold. The hold then does what the most
// demanding level needs: the longest lease, the shortest interval, most replicas, the latest min hold. When that
// level is unlocked, the others count again. Only its min hold stays.

// level is one Lock that was not unlocked yet.
type level struct {
	settings *settings // of its handle
	target   *keys.Set // what it locks; some of its keys may be in another hold

	// from sets both. They count from the beginning of the level, not of the hold.
	renewUntil clock.Instant // with maxHold; else zero
	keepUntil  clock.Instant // with minHold; else zero, or revoked
}

// from returns the level with its times, if it begins at now.
func (lv level) from(now clock.Instant) level {
	lv.renewUntil, lv.keepUntil = clock.Instant{}, clock.Instant{}
	if lv.settings.maxHold > 0 {
		lv.renewUntil = now.After(lv.settings.maxHold)
	}
	if lv.settings.minHold > 0 {
		lv.keepUntil = now.After(lv.settings.minHold)
	}
	return lv
}

// levels are the open levels of one hold. It is a value without a clock: callers pass all times. The mutex
// of the hold guards it. It must not be copied, because open may point into room.
type levels struct {
	wish *settings // of the handle that acquires the hold
	open []level   // the oldest first
	room [1]level  // for the usual single level, to save an allocation

	// keepUntil is the latest min hold of the levels that have ended: until then the keys are reserved. Zero: none.
	keepUntil clock.Instant
}

// pop removes the newest level of t. false: there is none. Levels on other sets of keys stay, even if they
// were opened later: an Unlock of a handle never releases what a handle for other names has locked.
func (l *levels) pop(t *keys.Set) (lv level, popped bool) {
	i := l.newest(t)
	if i < 0 {
		return lv, false
	}
	lv = l.open[i]
	l.open = append(l.open[:i], l.open[i+1:]...)
	return lv, true
}

// revoke removes the min hold of the newest level of t: its Lock has failed. Otherwise a Lock that returned an
// error would reserve the key for its min hold.
func (l *levels) revoke(t *keys.Set) {
	if i := l.newest(t); i >= 0 {
		l.open[i].keepUntil = clock.Instant{}
	}
}

// newest returns where the newest level of t is; -1: there is none.
func (l *levels) newest(t *keys.Set) int {
	i := len(l.open) - 1
	for i >= 0 && l.open[i].target.ID != t.ID {
		i--
	}
	return i
}

// counts returns the number of levels on each of keys. Commands carry these counts, never a step up or down: a
// command that is executed twice sets the same counts.
func (l *levels) counts(keys []string) []int {
	counts := make([]int, len(keys))
	for _, lv := range l.open {
		for i, key := range keys {
			if lv.target.Has(key) {
				counts[i]++
			}
		}
	}
	return counts
}

// ttl is the longest lease that is asked for.
func (l *levels) ttl() time.Duration {
	ttl := l.wish.TTL
	for _, lv := range l.open {
		ttl = max(ttl, lv.settings.TTL)
	}
	return ttl
}

// replicas returns the replicas that satisfy all levels.
func (l *levels) replicas() redisexec.Replicas {
	r := l.wish.replicas
	for _, lv := range l.open {
		r = r.And(lv.settings.replicas)
	}
	return r
}

// renewInterval returns the shortest interval of the levels that are renewed at now; 0: none is. acquired is
// the beginning of the hold, from which wish counts. One level that is renewed keeps the hold for all, as the
// longest lease does.
func (l *levels) renewInterval(now, acquired clock.Instant) time.Duration {
	interval := time.Duration(0)
	for _, lv := range l.deciding(acquired) {
		s := lv.settings
		renewed := s.Renewed && (s.maxHold == 0 || now.Until(lv.renewUntil) > 0)
		if renewed && (interval == 0 || s.renewInterval < interval) {
			interval = s.renewInterval
		}
	}
	return interval
}

// renewed reports whether any level asks for renewal, even if its max hold has ended the renewal.
func (l *levels) renewed() bool {
	for _, lv := range l.deciding(clock.Instant{}) {
		if lv.settings.Renewed {
			return true
		}
	}
	return false
}

// deciding returns the levels that determine renewal: the open ones, or wish before the first.
func (l *levels) deciding(acquired clock.Instant) []level {
	if len(l.open) > 0 {
		return l.open
	}
	return []level{level{settings: l.wish}.from(acquired)}
}

// keep records the min hold of a level that has ended. The latest one counts: an inner level may
// ask for longer than the outer one, whose Unlock comes last.
func (l *levels) keep(ended ...level) {
	for _, lv := range ended {
		if lv.keepUntil != (clock.Instant{}) && (l.keepUntil == (clock.Instant{}) || lv.keepUntil.Mono > l.keepUntil.Mono) {
			l.keepUntil = lv.keepUntil
		}
	}
}
