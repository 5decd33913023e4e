package relock

import (
	"testing"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// chronicle records the events of hooks.
type chronicle = locktest.Chronicle[Event, Hooks]

// resolved is s changed by opts.
func resolved(s settings, opts []MutexOption) settings {
	s.apply(opts)
	return s
}

// sentAt returns when the request was sent that proved a lease until deadline.
func sentAt(deadline clock.Instant, lasts time.Duration) clock.Instant {
	return deadline.After(clock.Margin(lasts) - lasts)
}

// endsAt has a lease end at deadline.
func endsAt(l *lease.Lease, deadline clock.Instant) {
	l.Grant(sentAt(deadline, time.Minute), time.Minute)
}
