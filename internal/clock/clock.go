// Package clock has the time of two clocks, and the arithmetic of leases and pauses.
package clock

import "time"

// Instant is a point in time on two clocks. The monotonic clock never jumps but stands still
// while the machine is suspended; the wall clock goes on but can be set. For the end of a
// lease, the longer of the two distances counts: a clock that is set forward causes a false
// loss, but never a hold that outlives its lease.
type Instant struct {
	Mono, Wall time.Duration
}

// epoch is the origin of the monotonic clock of instants.
var epoch = time.Now()

// Clock returns the current time. Tests use a Clock whose two clocks drift apart.
type Clock func() Instant

// System is the clock of the machine.
func System() Instant { return At(time.Now()) }

// OfClient returns the clock of a new client, which is the machine's. A simulation replaces this
// function before it makes a client, to stop or to set the clock of that client.
var OfClient = func() Clock { return System }

// At returns a time of the machine's clocks as an instant.
func At(t time.Time) Instant {
	return Instant{Mono: t.Sub(epoch), Wall: time.Duration(t.UnixNano())}
}

// After returns the instant d later.
func (i Instant) After(d time.Duration) Instant {
	return Instant{Mono: i.Mono + d, Wall: i.Wall + d}
}

// Time returns what the wall clock shows at i.
func (i Instant) Time() time.Time { return time.Unix(0, int64(i.Wall)) }

// Since returns the time from start to i, by the clock on which it is longer.
func (i Instant) Since(start Instant) time.Duration {
	return max(i.Mono-start.Mono, i.Wall-start.Wall)
}

// Until returns the time from i to end, by the clock on which it is shorter.
func (i Instant) Until(end Instant) time.Duration {
	return -i.Since(end)
}

// UntilMono returns the time from i to end on the monotonic clock, which cannot be set.
func (i Instant) UntilMono(end Instant) time.Duration { return end.Mono - i.Mono }

// Latest returns the later of two instants, clock by clock.
func Latest(a, b Instant) Instant {
	return Instant{Mono: max(a.Mono, b.Mono), Wall: max(a.Wall, b.Wall)}
}

// drift returns how far the two clocks have moved apart between start and i.
func (i Instant) drift(start Instant) time.Duration {
	d := (i.Mono - start.Mono) - (i.Wall - start.Wall)
	return max(d, -d)
}

// Margin returns how much earlier the local deadline is than the end of the lease on Redis.
func Margin(lease time.Duration) time.Duration {
	return max(lease/100, 5*time.Millisecond)
}

// Deadline returns the local deadline of a lease that was requested at sent. The request
// was executed no earlier, so Redis keeps the key at least until then.
func Deadline(sent Instant, lease time.Duration) Instant {
	return sent.After(lease - Margin(lease))
}
