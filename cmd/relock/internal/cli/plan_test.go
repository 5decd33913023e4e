package cli

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlan_CommandIsNotifiedAndKilledBeforeTheLeaseEnds(t *testing.T) {
	now := time.Now()
	deadline := now.Add(20 * time.Second)
	p := newPlan(&runFlags{ttl: 30 * time.Second, killAfter: 10 * time.Second}, now, deadline)
	step, wait := p.next(now, deadline, true, nil)
	require.Equal(t, goOn, step)
	require.LessOrEqual(t, wait, longestSleep)
	last := deadline.Add(-p.slack)
	step, _ = p.next(last.Add(-10*time.Second-time.Millisecond), deadline, true, nil)
	require.Equal(t, goOn, step)
	step, _ = p.next(last.Add(-10*time.Second), deadline, true, nil)
	require.Equal(t, terminate, step)
	require.ErrorIs(t, p.why, errNotRenewed)
	step, _ = p.next(last.Add(-time.Millisecond), deadline, true, nil)
	require.Equal(t, goOn, step)
	step, _ = p.next(last, deadline, true, nil)
	require.Equal(t, kill, step)
	step, _ = p.next(last, deadline, true, nil)
	require.Equal(t, goOn, step, "once")
}

func TestPlan_SuccessfulRenewalPostponesTheEnd(t *testing.T) {
	now := time.Now()
	p := newPlan(&runFlags{ttl: 30 * time.Second, killAfter: 10 * time.Second}, now, now.Add(30*time.Second))
	for i := range 100 {
		at := now.Add(time.Duration(i) * 10 * time.Second)
		step, _ := p.next(at, at.Add(20*time.Second), true, nil)
		require.Equal(t, goOn, step)
	}
}

func TestPlan_GraceOfMaxHoldIsNotLongerThanTheLease(t *testing.T) {
	now := time.Now()
	p := newPlan(&runFlags{ttl: 30 * time.Second, killAfter: 10 * time.Second, maxHold: time.Minute}, now, now.Add(30*time.Second))
	over := now.Add(time.Minute)
	step, _ := p.next(over, over.Add(11*time.Second), true, nil)
	require.Equal(t, terminate, step)
	deadline := over.Add(5 * time.Second)
	step, _ = p.next(deadline.Add(-p.slack), deadline, true, nil)
	require.Equal(t, kill, step)
}

func TestPlan_UnforeseeableLossHasItsGrace(t *testing.T) {
	now, lost := time.Now(), errors.New("taken away")
	p := newPlan(&runFlags{ttl: 30 * time.Second, killAfter: 10 * time.Second}, now, now.Add(30*time.Second))
	step, _ := p.next(now, time.Time{}, false, lost)
	require.Equal(t, terminate, step)
	step, _ = p.next(now.Add(9*time.Second), time.Time{}, false, lost)
	require.Equal(t, goOn, step)
	step, _ = p.next(now.Add(10*time.Second), time.Time{}, false, lost)
	require.Equal(t, kill, step)
}

// A grant in line has a short lease until its first renewal.
func TestPlan_CommandOnAShortLeaseHasHalfOfItAsItsGrace(t *testing.T) {
	now := time.Now()
	deadline := now.Add(5 * time.Second)
	for _, renewed := range []bool{false, true} {
		p := newPlan(&runFlags{ttl: 30 * time.Second, killAfter: 10 * time.Second}, now, deadline)
		half := deadline.Add(-p.slack).Add(-p.half)
		require.InDelta(t, 2500*time.Millisecond, half.Sub(now), float64(p.slack))
		step, wait := p.next(now, deadline, true, nil)
		require.Equal(t, goOn, step)
		require.Positive(t, wait)
		step, _ = p.next(half.Add(-time.Millisecond), deadline, true, nil)
		require.Equal(t, goOn, step)
		if renewed {
			later := now.Add(30 * time.Second)
			step, _ = p.next(half, later, true, nil)
			require.Equal(t, goOn, step)
			step, _ = p.next(later.Add(-p.slack-10*time.Second), later, true, nil)
			require.Equal(t, terminate, step, "the whole grace")
			continue
		}
		step, _ = p.next(half, deadline, true, nil)
		require.Equal(t, terminate, step)
		last := deadline.Add(-p.slack)
		step, _ = p.next(last.Add(-time.Millisecond), deadline, true, nil)
		require.Equal(t, goOn, step)
		step, _ = p.next(last, deadline, true, nil)
		require.Equal(t, kill, step)
	}
}

func TestPlan_ForeignTextCannotControlTheTerminal(t *testing.T) {
	require.Equal(t, "a?[31mb??c", clean("a\x1b[31mb\n\u009bc"))
}
