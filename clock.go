package relock

import "time"

// instant is a point in time on two clocks. The monotonic clock never jumps but stands
// still while the machine is suspended; the wall clock goes on but can be set. Of two
// instants the longer distance counts wherever a lease might have run out: a clock that
// is set forward costs a false loss, never a hold that outlives its lease.
type instant struct {
	mono, wall time.Duration
}

// epoch is what instants are counted from.
var epoch = time.Now()

// clock tells the time. Tests put in one whose two clocks drift apart.
type clock func() instant

// systemClock is the machine's.
func systemClock() instant {
	now := time.Now()
	return instant{mono: now.Sub(epoch), wall: time.Duration(now.UnixNano())}
}

// after returns the instant d later.
func (i instant) after(d time.Duration) instant {
	return instant{mono: i.mono + d, wall: i.wall + d}
}

// since returns the time from start to i on the clock that shows more of it.
func (i instant) since(start instant) time.Duration {
	return max(i.mono-start.mono, i.wall-start.wall)
}

// until returns what is left before end, on the clock that shows less.
func (i instant) until(end instant) time.Duration {
	return -i.since(end)
}

// latest returns the later of two instants, clock by clock.
func latest(a, b instant) instant {
	return instant{mono: max(a.mono, b.mono), wall: max(a.wall, b.wall)}
}

// drift returns how far the two clocks have moved apart between start and i.
func (i instant) drift(start instant) time.Duration {
	d := (i.mono - start.mono) - (i.wall - start.wall)
	return max(d, -d)
}

// margin is what a local deadline is earlier than the lease on Redis.
func margin(lease time.Duration) time.Duration {
	return max(lease/100, 5*time.Millisecond)
}

// deadline is when a lease is over that was asked for by a request sent then. The request
// was executed no earlier, so Redis keeps the key at least until then.
func deadline(sent instant, lease time.Duration) instant {
	return sent.after(lease - margin(lease))
}
