package relock

import (
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// The options of a handle: the defaults, the limits, and the contradictions between options.
//
// Options are checked at two times. An option that is invalid by itself is rejected when it is applied.
// Contradictions are found when all options are known: endList checks one list of options, resolve
// the result of all lists. An option is never adjusted: New, or each call, returns the error of the first invalid
// option.

// Limits of the options.
const (
	minTTL           = protocol.MinTTL
	maxTTL           = 100 * 365 * 24 * time.Hour // beyond it points in time overflow
	minRenewInterval = lease.MinRenewInterval
	minSafetyPoll    = 10 * time.Millisecond
	minReplicasWait  = 10 * time.Millisecond

	// counterLife is how long a fencing counter lives after its last use.
	counterLife = 24 * time.Hour

	defaultUnlockTimeout = 5 * time.Second
)

// settings are what a handle asks of its holds and its calls. Options write them while a handle is made. They
// do not change after that, so holds read them without a mutex. A duration of 0 means no bound, or that none
// was given: see resolve.
type settings struct {
	protocol.Terms
	renewInterval time.Duration
	maxHold       time.Duration // a hold is renewed for this long at most
	minHold       time.Duration // from the acquisition; 0: none
	waitTimeout   time.Duration
	unlockTimeout time.Duration
	owner         string // "": the calling goroutine
	asyncUnlock   bool
	linger        time.Duration // 0: none

	deadlockCheck    time.Duration // after which a wait is looked at; 0: it is not
	deadlockReported bool          // a deadlock does not end the wait

	reentrant     bool
	localHandoffs int
	replicas      redisexec.Replicas
	hooks         Hooks

	// given records which options of renewal are in the list that is being applied. Those of a handle replace its
	// client's, but within one list they must not contradict each other.
	given struct{ fixed, interval, maxHold bool }

	err error // of the first invalid option
}

// clientSettings are the options of a client.
type clientSettings struct {
	settings
	prefix    string
	sharded   bool
	pipelined bool
	registers bool
}

func defaultSettings() clientSettings {
	return clientSettings{
		pipelined: true,
		settings: settings{
			Terms:         protocol.Terms{TTL: protocol.UsualTTL, Renewed: true, SafetyPoll: 5 * time.Second},
			reentrant:     true,
			localHandoffs: 16,
			deadlockCheck: 5 * time.Second,
		},
	}
}

// newClientSettings returns the defaults, changed by opts.
func newClientSettings(opts []ClientOption) (clientSettings, error) {
	s := defaultSettings()
	for _, opt := range opts {
		if opt == nil {
			return s, fmt.Errorf("%w: a ClientOption is nil", ErrInvalidOption)
		}
		opt.applyToClient(&s)
	}
	s.endList()
	// A client keeps its settings unresolved, because a handle may still change what they depend on: a third of
	// the client's TTL would be the wrong interval for a handle with another TTL.
	resolved := s.settings
	resolved.apply(nil)
	resolved.checkLinger()
	return s, resolved.err
}

// apply changes s, the settings of a client, into those of a handle with opts.
func (s *settings) apply(opts []MutexOption) {
	for _, opt := range opts {
		if opt == nil {
			s.reject("a MutexOption is nil")
			continue
		}
		opt.applyToMutex(s)
	}
	s.endList()
	s.resolve()
}

// reject records the error of an invalid option, unless there is one already.
func (s *settings) reject(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("%w: %s", ErrInvalidOption, fmt.Sprintf(format, args...))
	}
}

// endList checks one list of options for contradictions, and forgets which options it has. So a
// handle may have WithRenewInterval although its client has WithoutRenewal: the later list replaces the
// earlier one.
func (s *settings) endList() {
	switch {
	case s.given.fixed && s.given.interval:
		s.reject("WithoutRenewal and WithRenewInterval contradict each other: use one of them")
	case s.given.maxHold && !s.Renewed:
		s.reject("WithMaxHold and WithoutRenewal contradict each other: without renewal the TTL is the bound")
	}
	s.given = settings{}.given
}

// resolve sets what depends on other options, and checks all options together. It comes last.
func (s *settings) resolve() {
	if s.renewInterval == 0 {
		s.renewInterval = s.TTL / 3
	} else if s.Renewed && s.renewInterval > s.TTL*2/3 {
		s.reject("WithRenewInterval(%v) is too long for a TTL of %v: use at most two thirds of the TTL, so that a failed renewal can be tried again", s.renewInterval, s.TTL)
	}
	if s.unlockTimeout == 0 {
		s.unlockTimeout = min(defaultUnlockTimeout, s.TTL)
	} else if s.unlockTimeout > s.TTL {
		s.reject("WithUnlockTimeout(%v) is longer than the TTL of %v: use at most the TTL, because the lock is free after that", s.unlockTimeout, s.TTL)
	}
	if s.maxHold != 0 && s.maxHold < s.TTL {
		s.reject("WithMaxHold(%v) is shorter than the TTL of %v: use at least the TTL, or set a shorter WithTTL", s.maxHold, s.TTL)
	}
	if s.replicas.Timeout > s.TTL/6 {
		s.reject("WithReplicas(%d, %v) waits too long for a TTL of %v: use at most a sixth of the TTL", s.replicas.N, s.replicas.Timeout, s.TTL)
	}
}

// checkLinger checks [WithLinger], which has no effect for most kinds of locks: a client that has it may have other locks with a
// shorter TTL.
func (s *settings) checkLinger() {
	if s.linger > s.TTL/3 {
		s.reject("WithLinger(%v) is too long for a TTL of %v: use at most a third of the TTL, so that the lease of the next hold can be renewed", s.linger, s.TTL)
	}
}

// canFollow reports whether a hold with these settings can begin with the rest, left, of another hold's lease, before
// Redis has its name. It can if it needs nothing that only Redis can provide (a token,
// replicas), if its own lease is renewed and not shorter, and if enough is left to write the name in time. With a
// fixed lease it could never make up for the part that the previous hold has used.
func (s *settings) canFollow(left time.Duration) bool {
	return !s.Fencing && s.replicas.N == 0 && s.Renewed && left <= s.TTL && left >= s.EntryLease()/3
}
