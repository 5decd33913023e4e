package relock

import "time"

// Hooks observe what happens to locks: for metrics, traces and logs. Any field may be
// nil. A hook is called on the goroutine in which the event was met, with no internal
// lock held, and delays it: be quick, and do not call back into the lock it is about. A panic in
// a hook is not recovered: it unwinds the call that met the event, and ends the program if that
// was on a goroutine of the library, as a renewal is. If Acquired panics the lock is given back; if
// another hook does in Unlock, that takes all its parts away first. A hook may call Client.Close
// itself, but not wait for another goroutine that does.
// Events may come at the same time, on different goroutines: the end of a hold may be told
// before or during a renewal that was under way, or whose hook was.
//
// Each Acquired is followed by one Released or one Lost. A hold calls the hooks of its oldest
// open level.
type Hooks struct {
	// Acquired is called when a hold begins. Re-entry begins none. Elapsed is the time
	// that was waited.
	Acquired func(Event)

	// Contended is called once by each Lock that finds the lock taken and starts to wait; those of
	// a fixed owner that wait for the same are one. Elapsed is the time since Lock was called.
	Contended func(Event)

	// Released is called when a hold has ended by its last Unlock or by Close. Elapsed is
	// how long it was held, Err what Redis said if it could not be told.
	Released func(Event)

	// Renewed is called after each renewal of the lease. Elapsed is the time the renewal took.
	Renewed func(Event)

	// RenewFailed is called after each renewal that Redis did not answer, or refused, or that
	// too few replicas confirmed. The hold is not lost yet: the watchdog tries again until
	// the lease has run out. Elapsed is the time the attempt took, Err says why it failed.
	RenewFailed func(Event)

	// Lost is called when a hold ended without the holder's doing. Elapsed is how long it
	// was held, Err says how the loss was found out.
	Lost func(Event)
}

// Event tells what happened to one lock.
type Event struct {
	Name    string        // the lock's name; those of a MultiMutex as they were given, joined by commas
	Owner   string        // the owner's field on Redis, a writer's ends in :write; empty while it is still waiting
	Token   int64         // the fencing token; 0 without WithFencing
	Elapsed time.Duration // see the hook
	Err     error         // see the hook
}

// report calls hook, if there is one.
func report(hook func(Event), event Event) {
	if hook != nil {
		hook(event)
	}
}

// hooks are those of the oldest open level. mu is held.
func (h *hold) hooks() *Hooks {
	if len(h.levels) > 0 {
		return &h.levels[0].settings.hooks
	}
	return &h.settings.hooks
}

// event describes the hold. mu is held.
func (h *hold) event(elapsed time.Duration, err error) Event {
	return Event{Name: h.target.Name, Owner: h.name.field, Token: h.name.token, Elapsed: elapsed, Err: err}
}
