package relock

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/deadlock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
)

// Which owners of this process have waited for long, for the checker of deadlocks, and what it finds. Package deadlock
// has the rest. There is no checker on a quorum.

// waitNote is what the checker has found for a waiter. It does not change.
type waitNote struct {
	behind   string // what the holder waits for; "": nothing is known
	deadlock string // the deadlock that the waiter is in; "": none
	ends     bool   // and the wait has to end for it
}

// checkDeadlocks starts the checker, because h waits.
func (h *hold) checkDeadlocks() {
	if c := h.session.deadlocks; c != nil && h.settings.deadlockCheck > 0 && h.kind.side != keys.Permits {
		c.Start()
	}
}

// longWaits returns the holds whose Lock has waited for long, and in what time the next one will have; negative: no other one
// waits.
func (s *session) longWaits() (long []*deadlock.Waiter, next time.Duration) {
	now := s.now()
	next = -1
	holds := make(map[keys.Owner][]deadlock.Held)
	var waits []*hold
	for _, h := range s.registry.all() {
		switch left, waiting := h.shortWait(now); {
		case !waiting:
			// mutant: deadlock-of-processes/1
			holds[h.owner] = append(holds[h.owner], h.heldOnRedis()...)
		case left <= 0:
			waits = append(waits, h)
		case next < 0 || left < next:
			next = left
		}
	}
	// In the order in which they came: the same calls have the same effect in each run of a simulation.
	slices.SortFunc(waits, func(a, b *hold) int {
		return cmp.Or(cmp.Compare(a.started.Mono, b.started.Mono), cmp.Compare(a.owner.String(), b.owner.String()))
	})
	for _, h := range waits {
		// mutant: deadlock-of-processes/2
		mine := holds[h.owner]
		slices.SortFunc(mine, func(a, b deadlock.Held) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Field, b.Field)) })
		long = append(long, &deadlock.Waiter{
			// A fixed owner may begin several waits at the same time, for different names.
			ID: h.owner.String() + "@" + strconv.FormatInt(int64(h.started.Mono), 36) + strconv.Quote(h.wanting().Name), Since: h.started.Time(),
			For: h.wanting().Keys, Owner: h.owner.Who(), Holds: mine,
			Reported: h.settings.deadlockReported, Shared: h.owner.Fixed != "",
			Behind: h.noteBehind, Found: h.noteDeadlock,
		})
	}
	return long, next
}

// shortWait reports whether h waits, and is checked; and in what time its wait will be long. A TryLock ends by itself, and a
// wait for a permit is in no deadlock.
func (h *hold) shortWait(now clock.Instant) (left time.Duration, waiting bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != acquiring || !h.waits || h.settings.deadlockCheck == 0 || h.kind.side == keys.Permits {
		return 0, false
	}
	return h.settings.deadlockCheck - now.Since(h.started), true
}

// wanting returns what h wants, or has.
func (h *hold) wanting() *keys.Set {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.target
}

// heldOnRedis returns the locks that h holds, as Redis has them. A permit has no owner that could wait.
func (h *hold) heldOnRedis() (all []deadlock.Held) {
	h.mu.Lock()
	phase, t := h.phase, h.target
	h.mu.Unlock()
	if phase != held || h.kind.side == keys.Permits {
		return nil
	}
	field := h.onRedis().Field
	for _, key := range t.Keys {
		all = append(all, deadlock.Held{Key: key, Field: field})
	}
	return all
}

// noteBehind records what the holder of the lock waits for.
func (h *hold) noteBehind(text string) {
	if n := h.note.Load(); n == nil && text != "" || n != nil && n.deadlock == "" && n.behind != text {
		h.note.Store(&waitNote{behind: text})
	}
}

// noteDeadlock reports a deadlock once. ends: the Lock returns.
func (h *hold) noteDeadlock(text string, ends bool) {
	n := h.note.Load()
	if n != nil && n.deadlock != "" && n.ends == ends {
		return
	}
	h.note.Store(&waitNote{deadlock: text, ends: ends})
	if ends {
		h.alarm.Ring()
	}
	if hook := h.settings.hooks.Deadlock; hook != nil && (n == nil || n.deadlock == "") {
		t := h.wanting()
		e := h.kind.event(t, h.session.now().Since(h.started), lockerr.Wrap("lock", t.Name, deadlocked(text)))
		h.session.goroutines.Go(func() { h.session.report("Deadlock", hook, h.owner, e) }) // or it would delay the check of all others
	}
}

// refused returns why the wait has to end; nil: it goes on.
func (h *hold) refused() error {
	if n := h.note.Load(); n != nil && n.ends {
		return deadlocked(n.deadlock)
	}
	return nil
}

func deadlocked(text string) error { return fmt.Errorf("%w: %s", ErrDeadlock, text) }

// alsoWaits adds to the error of a wait that has ended what the holder waits for. nil stays nil.
func (h *hold) alsoWaits(err error) error {
	n := h.note.Load()
	switch {
	case err == nil || n == nil || !byContext(err):
		return err
	case n.deadlock != "":
		return fmt.Errorf("%w; deadlock: %s", err, n.deadlock)
	case n.behind != "":
		return fmt.Errorf("%w; %s", err, n.behind)
	default:
		return err
	}
}
