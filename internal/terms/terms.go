// Package terms has what the options of a handle ask for: the defaults, the limits, and what options that
// belong together must not say.
//
// Options are checked at two times. An option that is bad by itself is rejected when it is applied. Options
// that contradict each other are found when all are known: EndList looks at one list of options, Resolve at
// the result of all lists. An option is never adjusted: the first bad one is the error, of New or of each
// call.
package terms

import (
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// Limits of the options.
const (
	MinTTL           = protocol.MinTTL
	MaxTTL           = 100 * 365 * 24 * time.Hour // beyond it points in time overflow
	MinRenewInterval = lease.MinRenewInterval
	MinSafetyPoll    = 10 * time.Millisecond
	MinReplicasWait  = 10 * time.Millisecond

	// CounterLife is how long a fencing counter outlives its last use.
	CounterLife = 24 * time.Hour

	defaultUnlockTimeout = 5 * time.Second
)

// Terms are what a handle asks of its holds and its calls. Options write them while a handle is made. They do
// not change after that, so holds read them without a mutex. Durations are 0 if there is no bound, or none
// was given: see Resolve.
type Terms struct {
	protocol.Terms
	RenewInterval time.Duration
	MaxHold       time.Duration // a hold is not renewed for longer
	MinHold       time.Duration // its keys are kept for as long
	WaitTimeout   time.Duration
	UnlockTimeout time.Duration
	Owner         string // "": the calling goroutine
	Reentrant     bool
	LocalHandoffs int
	Replicas      redisexec.Replicas

	// Given says which options of renewal are in the list that is being applied. Those of a handle replace its
	// client's, but within one list they must not contradict each other.
	Given struct{ Fixed, Interval, MaxHold bool }

	Err error // of the first bad option
}

// Default returns the terms of a client without options.
func Default() Terms {
	return Terms{
		Terms:         protocol.Terms{TTL: 30 * time.Second, Renewed: true, SafetyPoll: 5 * time.Second},
		Reentrant:     true,
		LocalHandoffs: 16,
	}
}

// Reject records a bad option, unless there was one before.
func (t *Terms) Reject(format string, args ...any) {
	if t.Err == nil {
		t.Err = fmt.Errorf("%w: %s", lockerr.ErrInvalidOption, fmt.Sprintf(format, args...))
	}
}

// EndList checks what the options of one list say together, and forgets which options that list has. So a
// handle may have WithRenewInterval although its client has WithoutRenewal: the later list replaces the
// earlier one.
func (t *Terms) EndList() {
	switch {
	case t.Given.Fixed && t.Given.Interval:
		t.Reject("WithoutRenewal and WithRenewInterval contradict each other: use one of them")
	case t.Given.MaxHold && !t.Renewed:
		t.Reject("WithMaxHold and WithoutRenewal contradict each other: without renewal the TTL is the bound")
	}
	t.Given = Terms{}.Given
}

// Resolve fills in what depends on other options, and checks what all of them say together. It comes last. A
// client keeps its terms unresolved, because a handle may still change what they depend on: a third of the
// client's TTL would be the wrong interval for a handle with another TTL.
func (t *Terms) Resolve() {
	if t.RenewInterval == 0 {
		t.RenewInterval = t.TTL / 3
	} else if t.Renewed && t.RenewInterval > t.TTL*2/3 {
		t.Reject("WithRenewInterval(%v) is too long for a TTL of %v: use at most two thirds of the TTL, so that a failed renewal can be tried again", t.RenewInterval, t.TTL)
	}
	if t.UnlockTimeout == 0 {
		t.UnlockTimeout = min(defaultUnlockTimeout, t.TTL)
	} else if t.UnlockTimeout > t.TTL {
		t.Reject("WithUnlockTimeout(%v) is longer than the TTL of %v: use at most the TTL, because the lock is free after that", t.UnlockTimeout, t.TTL)
	}
	if t.MaxHold != 0 && t.MaxHold < t.TTL {
		t.Reject("WithMaxHold(%v) is shorter than the TTL of %v: use at least the TTL, or set a shorter WithTTL", t.MaxHold, t.TTL)
	}
	if t.Replicas.Timeout > t.TTL/6 {
		t.Reject("WithReplicas(%d, %v) waits too long for a TTL of %v: use at most a sixth of the TTL", t.Replicas.N, t.Replicas.Timeout, t.TTL)
	}
}

// Follow reports whether a hold on these terms can begin with what is left of the lease of another. Redis is
// told only afterwards. So the hold can if it asks for nothing that only Redis can give (a token, replicas),
// if its own lease is renewed and not shorter, and if enough is left to tell Redis in time. With a fixed
// lease it could never make up for what the hold before has used.
func (t *Terms) Follow(left time.Duration) bool {
	return !t.Fencing && t.Replicas.N == 0 && t.Renewed && left <= t.TTL && left >= t.EntryLease()/3
}
