package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/relock-go/relock/cmd/relock/internal/child"
)

// step is what is to be done with a command that runs.
type step int

const (
	goOn step = iota
	terminate
	kill
)

// plan determines when a command gets SIGTERM, and when it is killed.
type plan struct {
	killAfter time.Duration
	slack     time.Duration // before the end of the lease, for the kill itself
	over      time.Time     // of --max-hold; zero: none
	maxHold   time.Duration

	// A lock that was granted to a waiter in line has a short lease, until its first renewal a moment later. If no renewal
	// succeeds, half of that lease is the time from SIGTERM to SIGKILL.
	covered bool          // the lease has been long enough for killAfter
	half    time.Duration // of the lease at the start

	why     error // it got SIGTERM
	killAt  time.Time
	killing bool // that time has come
	killed  bool // SIGKILL has reached some of it

	asked       bool      // a signal that asks it to end was forwarded
	interrupted bool      // and that was SIGINT
	ended       time.Time // when its first process ended; zero: it has not
}

// longestSleep bounds the time until the clocks are looked at again: a deadline is of the wall clock.
const longestSleep = time.Second

var errNotRenewed = errors.New("renewal fails, and the lease is about to expire")

// newPlan returns the plan of a command that starts now, with a lease until deadline.
func newPlan(f *runFlags, now, deadline time.Time) *plan {
	p := &plan{killAfter: f.killAfter, slack: min(max(f.ttl/100, 5*time.Millisecond), 200*time.Millisecond), maxHold: f.maxHold}
	p.half = (deadline.Sub(now) - p.slack) / 2
	if f.maxHold > 0 {
		p.over = now.Add(f.maxHold)
	}
	return p
}

// next returns what is to be done now, or for how long nothing is. The lock is proven until deadline, if it
// is held at all; lost is the cause if it is not.
func (p *plan) next(now, deadline time.Time, held bool, lost error) (step, time.Duration) {
	last, grace := deadline.Add(-p.slack), p.killAfter // last: to be killed
	if p.covered = p.covered || now.Before(last.Add(-grace)); !p.covered {
		grace = p.half
	}
	if p.why == nil {
		wait := longestSleep
		until := func(t time.Time) bool {
			wait = min(wait, t.Sub(now))
			return !now.Before(t)
		}
		switch {
		case lost != nil:
			p.why = lost
		case !p.over.IsZero() && until(p.over):
			p.why = fmt.Errorf("--max-hold %v reached", p.maxHold)
		case held && until(last.Add(-grace)):
			p.why = errNotRenewed
		default:
			return goOn, max(wait, time.Millisecond)
		}
		p.killAt = now.Add(p.killAfter)
		return terminate, 0
	}
	if held && last.Before(p.killAt) {
		p.killAt = last
	}
	switch {
	case p.killing:
		return goOn, longestSleep
	case !now.Before(p.killAt):
		p.killing = true
		return kill, 0
	default:
		return goOn, min(max(p.killAt.Sub(now), time.Millisecond), longestSleep)
	}
}

// waitsUntil returns until when the rest of a command that was asked to end is waited for, after the end of its first process.
func (p *plan) waitsUntil() time.Time {
	if p.why != nil {
		return p.killAt.Add(time.Second) // to be killed takes a moment
	}
	return p.ended.Add(max(p.killAfter, 100*time.Millisecond)) // to see that nothing is left takes a moment
}

// noteSignal records a signal that is forwarded to the command.
func (p *plan) noteSignal(sig os.Signal) {
	p.asked = p.asked || child.AsksToEnd(sig)
	p.interrupted = p.interrupted || sig == os.Interrupt
}

// message is what err says, without the name of this program.
func message(err error) string { return strings.TrimPrefix(err.Error(), "relock: ") }
