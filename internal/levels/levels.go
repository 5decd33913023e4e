// Package levels knows what the open levels of a hold ask for: for how long its lease is, how often and until
// when it is renewed, which replicas confirm it, and until when its keys are kept when it ends.
//
// A level is one Lock that has not been unlocked. A hold begins without any, on the terms of the handle that
// wanted it. They count as long as no level is open: a hook may delay the caller that is to claim the hold.
//
// Levels of several handles may be open on one hold, with different options. The hold then does what the most
// demanding level wants: the longest lease, the shortest interval, most replicas, the latest min hold. When that
// level is unlocked, the others count again. Only its min hold stays.
package levels

import (
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/terms"
)

// Level is one Lock that has not been unlocked. S are the settings of its handle.
type Level[S any] struct {
	Settings S
	Terms    *terms.Terms // of them
	Target   *keys.Set    // what it locks; some of its keys may be in another hold

	// Both are set by from, and count from the beginning of the level, not of the hold.
	renewUntil clock.Instant // with MaxHold; else zero
	keepUntil  clock.Instant // with MinHold; else zero, or revoked
}

// from returns the level as it is when it begins at now.
func (lv Level[S]) from(now clock.Instant) Level[S] {
	lv.renewUntil, lv.keepUntil = clock.Instant{}, clock.Instant{}
	if lv.Terms.MaxHold > 0 {
		lv.renewUntil = now.After(lv.Terms.MaxHold)
	}
	if lv.Terms.MinHold > 0 {
		lv.keepUntil = now.After(lv.Terms.MinHold)
	}
	return lv
}

// renewedAt reports whether the level has its hold renewed at now.
func (lv Level[S]) renewedAt(now clock.Instant) bool {
	return lv.Terms.Renewed && (lv.Terms.MaxHold == 0 || now.Until(lv.renewUntil) > 0)
}

// Levels are the open levels of one hold. It is a value without a clock: all times are given to it. The mutex
// of the hold guards it. It must not be copied, because open may point into room.
type Levels[S any] struct {
	wish struct { // of the handle that wanted the hold; it never begins, so it has no times
		Settings S
		Terms    *terms.Terms
	}
	open []Level[S]  // the oldest first
	room [1]Level[S] // for the usual one level, which then is no allocation

	// keepUntil is what the levels that have ended ask for: until then the keys are kept. Zero: none does.
	keepUntil clock.Instant
}

// Init makes l the levels of a hold that a handle with these settings wants.
func (l *Levels[S]) Init(settings S, terms *terms.Terms) {
	l.wish.Settings, l.wish.Terms = settings, terms
	l.open = l.room[:0]
}

// Len returns how many levels are open.
func (l *Levels[S]) Len() int { return len(l.open) }

// Oldest returns the settings of the oldest open level. Events of the hold go to its hooks.
func (l *Levels[S]) Oldest() S {
	if len(l.open) > 0 {
		return l.open[0].Settings
	}
	return l.wish.Settings
}

// Push opens a level.
func (l *Levels[S]) Push(lv Level[S], now clock.Instant) { l.open = append(l.open, lv.from(now)) }

// Pop takes the newest level of t away. false: there is none. Levels on other sets of keys stay, even if they
// were opened later: an Unlock of a handle never takes away what a handle with other names has locked.
func (l *Levels[S]) Pop(t *keys.Set) (lv Level[S], popped bool) {
	i := l.newest(t)
	if i < 0 {
		return lv, false
	}
	lv = l.open[i]
	l.open = append(l.open[:i], l.open[i+1:]...)
	return lv, true
}

// Revoke has the newest level of t not keep anything: its Lock has failed. Without that a Lock that returned an
// error would block the key for its min hold.
func (l *Levels[S]) Revoke(t *keys.Set) {
	if i := l.newest(t); i >= 0 {
		l.open[i].keepUntil = clock.Instant{}
	}
}

// newest returns where the newest level of t is; -1: there is none.
func (l *Levels[S]) newest(t *keys.Set) int {
	i := len(l.open) - 1
	for i >= 0 && l.open[i].Target.ID != t.ID {
		i--
	}
	return i
}

// Counts returns the number of levels on each of keys. Commands carry these counts, never a step up or down: a
// command that is executed twice sets the same counts.
func (l *Levels[S]) Counts(keys []string) []int {
	counts := make([]int, len(keys))
	for _, lv := range l.open {
		for i, key := range keys {
			if lv.Target.Has(key) {
				counts[i]++
			}
		}
	}
	return counts
}

// TTL is the longest lease that is asked for.
func (l *Levels[S]) TTL() time.Duration {
	ttl := l.wish.Terms.TTL
	for _, lv := range l.open {
		ttl = max(ttl, lv.Terms.TTL)
	}
	return ttl
}

// Replicas are those that all of them ask for.
func (l *Levels[S]) Replicas() redisexec.Replicas {
	r := l.wish.Terms.Replicas
	for _, lv := range l.open {
		r = r.And(lv.Terms.Replicas)
	}
	return r
}

// RenewInterval is the shortest interval of the levels that want renewal at now; 0: none does. acquired is
// when the hold began: the wish counts from then. One level that is renewed keeps the hold for all, as the
// longest lease does.
func (l *Levels[S]) RenewInterval(now, acquired clock.Instant) time.Duration {
	interval := time.Duration(0)
	for _, lv := range l.deciding(acquired) {
		if lv.renewedAt(now) && (interval == 0 || lv.Terms.RenewInterval < interval) {
			interval = lv.Terms.RenewInterval
		}
	}
	return interval
}

// Renewed reports whether any of them asks for renewal, even if its MaxHold has ended that.
func (l *Levels[S]) Renewed() bool {
	for _, lv := range l.deciding(clock.Instant{}) {
		if lv.Terms.Renewed {
			return true
		}
	}
	return false
}

// deciding are the levels that decide about renewal: the open ones, or the one that is to come.
func (l *Levels[S]) deciding(acquired clock.Instant) []Level[S] {
	if len(l.open) > 0 {
		return l.open
	}
	return []Level[S]{Level[S]{Settings: l.wish.Settings, Terms: l.wish.Terms}.from(acquired)}
}

// KeepAll has the keys kept for all that are open: Close ends them. They stay open, for their Unlocks to find.
func (l *Levels[S]) KeepAll() {
	for _, lv := range l.open {
		l.Keep(lv)
	}
}

// Keep has the keys kept for a level that has ended. Of several times the latest counts. An inner level may
// ask for longer than the outer one, whose Unlock comes last.
func (l *Levels[S]) Keep(lv Level[S]) {
	if lv.keepUntil != (clock.Instant{}) && (l.keepUntil == (clock.Instant{}) || lv.keepUntil.Mono > l.keepUntil.Mono) {
		l.keepUntil = lv.keepUntil
	}
}

// KeepNothing is for a hold that was lost: another owner may have the keys already.
func (l *Levels[S]) KeepNothing() { l.keepUntil = clock.Instant{} }

// KeptUntil is until when the levels that have ended have the keys kept; zero: none does.
func (l *Levels[S]) KeptUntil() clock.Instant { return l.keepUntil }
