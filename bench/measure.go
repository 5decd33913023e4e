package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/relock-go/relock/bench/stat"
)

// measurePairs measures what a lock and its unlock cost a single goroutine.
func measurePairs(o order) measurement {
	return func(ctx context.Context, c *cell) (figures, error) {
		l, err := c.loop(ctx, o)
		if err != nil {
			return nil, err
		}
		r := l.answers[0].Run
		n := float64(r.Ops)
		return l.costs(figures{
			"us":     float64(r.Elapsed.Microseconds()) / n,
			"allocs": math.Round(float64(r.Allocs) / n), // a lock makes whole objects: a fraction is the runtime's
			"bytes":  float64(r.Bytes) / n,
			"sent":   float64(r.Sent) / n,
		}), nil
	}
}

// measureParallel measures how much goroutines with a lock each get done together.
func measureParallel(ctx context.Context, c *cell) (figures, error) {
	l, err := c.loop(ctx, order{OwnNames: true})
	if err != nil {
		return nil, err
	}
	return l.costs(figures{"ops": l.ops()}), nil
}

// measureShared measures how goroutines, of one or several processes, share a lock.
func measureShared(ctx context.Context, c *cell) (figures, error) {
	l, err := c.loop(ctx, order{Keep: c.load.hold})
	if err != nil {
		return nil, err
	}
	h, err := newHistory(l.spans(), l.start, c.window())
	if err != nil {
		return nil, err
	}
	return c.sharing(l, h), nil
}

// measurePermits measures how goroutines, of several processes, share a semaphore. More holders than its limit do not
// make the cell void: they are a figure.
func measurePermits(ctx context.Context, c *cell) (figures, error) {
	l, err := c.loop(ctx, order{Keep: c.load.hold})
	if err != nil {
		return nil, err
	}
	h := gather(l.spans(), l.start, c.window())
	if err := h.idle(); err != nil {
		return nil, err
	}
	f := c.sharing(l, h)
	f["over"] = float64(overLimit(h.spans, max(1, c.load.limit)))
	return f, nil
}

// sharing returns the figures of goroutines that share a name.
func (c *cell) sharing(l *looped, h *history) figures {
	sent, pairs := float64(l.sent()), float64(l.pairs())
	return l.costs(figures{
		"rate":     h.rate(),
		"commands": sent / pairs,
		"steady":   (sent - float64(startCommands*c.load.processes)) / pairs,
		"jain":     h.jain(),
		"unserved": float64(h.unserved()),
		"mean":     milliseconds(h.mean()),
		"p50":      milliseconds(h.wait(0.50)),
		"p99":      milliseconds(h.wait(0.99)),
		"max":      milliseconds(h.longest),
		"max/mean": h.longest.Seconds() / h.mean().Seconds(),
	})
}

// startCommands are what a process may send to begin with, beside what its holds need.
const startCommands = 2

// measureReaders measures how much goroutines get done together that read one name. Who
// cannot do that has a name for each, which is what readers are to be as fast as.
func measureReaders(ctx context.Context, c *cell) (figures, error) {
	l, err := c.loop(ctx, order{OwnNames: c.contender.name != rwName, Reads: 1})
	if err != nil {
		return nil, err
	}
	return l.costs(figures{"ops": l.ops()}), nil
}

// keptFor is how long goroutines that read and write hold the lock: so long that readers overlap.
const keptFor = 200 * time.Microsecond

// measureReadWrite measures how goroutines share a lock that they take to read so often,
// and else to write.
func measureReadWrite(share float64) measurement {
	return func(ctx context.Context, c *cell) (figures, error) {
		l, err := c.loop(ctx, order{Reads: share, Keep: keptFor})
		if err != nil {
			return nil, err
		}
		h, err := newHistory(l.spans(), l.start, c.duration)
		if err != nil {
			return nil, err
		}
		if h.reads.holds == 0 || h.writes.holds == 0 {
			return nil, fmt.Errorf("%w to read, or to write, within %v", errIdle, c.duration)
		}
		return l.costs(figures{
			"rate":   h.rate(),
			"reads":  float64(h.reads.holds) / h.window.Seconds(),
			"writes": float64(h.writes.holds) / h.window.Seconds(),
			"reader": milliseconds(h.reads.longest),
			"writer": milliseconds(h.writes.longest),
		}), nil
	}
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// idleGap is how long a waiter has waited when the lock is released: long enough for processors and connections to be idle. The
// holder gets the time of the release in advance, so that neither this process nor the delivery of an order runs during the
// measurement.
const idleGap = 30 * time.Millisecond

// measureWake measures the time from the release of a lock by one process until another process has it, or another client of the
// same process.
func measureWake(ctx context.Context, c *cell) (figures, error) {
	t, err := c.open(c.load.processes, 0)
	defer t.stop()
	if err != nil {
		return nil, err
	}
	return c.times(ctx, func() (took time.Duration, err error) {
		if len(t) == 1 {
			var a answer
			a, err = t[0].call(order{Verb: wakeNear, Name: c.name, After: idleGap})
			took = a.wait()
		} else {
			took, err = wakeOnce(t[0], t[1], c.name)
		}
		if err == nil && took < 0 {
			err = errors.New("two holders: the waiter got the lock before it was released")
		}
		return took, err
	})
}

// times returns how long once takes, again and again.
func (c *cell) times(ctx context.Context, once func() (time.Duration, error)) (figures, error) {
	var took []float64
	for end := time.Now().Add(c.whole()); len(took) == 0 || time.Now().Before(end) && ctx.Err() == nil; {
		d, err := once()
		if err != nil {
			return nil, err
		}
		took = append(took, float64(d.Microseconds()))
	}
	slices.Sort(took)
	return figures{"p50": stat.Quantile(took, 0.50), "p99": stat.Quantile(took, 0.99), "n": float64(len(took))}, nil
}

func wakeOnce(holder, waiter *process, name string) (time.Duration, error) {
	if _, err := holder.call(order{Verb: lockOne, Name: name}); err != nil {
		return 0, err
	}
	if err := waiter.send(order{Verb: lockOne, Name: name}); err != nil {
		return 0, err
	}
	given, err := holder.call(order{Verb: unlockOne, After: idleGap})
	if err != nil {
		return 0, err
	}
	got, err := waiter.receive(0)
	if err != nil {
		return 0, err
	}
	_, err = waiter.call(order{Verb: unlockOne})
	return time.Duration(got.At - given.At), err
}

// measureWanted measures how long another process waits for a lock that nobody holds, but that lingers.
func measureWanted(ctx context.Context, c *cell) (figures, error) {
	t, err := c.open(2, 0)
	defer t.stop()
	if err != nil {
		return nil, err
	}
	return c.times(ctx, func() (time.Duration, error) {
		for _, verb := range []verb{lockOne, unlockOne} {
			if _, err := t[0].call(order{Verb: verb, Name: c.name}); err != nil {
				return 0, err
			}
		}
		got, err := t[1].call(order{Verb: lockOne, Name: c.name, After: idleGap})
		if err != nil {
			return 0, err
		}
		_, err = t[1].call(order{Verb: unlockOne})
		return got.wait(), err
	})
}

// settling is what waiters are given to get from the start of waiting to waiting.
const settling = time.Second

// measureIdle measures the cost of waiters for Redis while nothing happens.
func measureIdle(ctx context.Context, c *cell) (figures, error) {
	t, err := c.open(2, 0)
	defer t.stop()
	if err != nil {
		return nil, err
	}
	holder, crowd := t[0], t[1]
	if _, err := holder.call(order{Verb: lockOne, Name: c.name}); err != nil {
		return nil, err
	}
	if _, err := crowd.call(order{Verb: startWaiting, Name: c.name, Goroutines: c.load.goroutines}); err != nil {
		return nil, err
	}
	time.Sleep(min(settling, c.duration))
	began := time.Now()
	before, err := t.sent()
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Until(began.Add(c.whole())))
	window := time.Since(began)
	after, err := t.sent()
	if err != nil {
		return nil, err
	}
	if _, err := crowd.call(order{Verb: stopWaiting}); err != nil {
		return nil, err
	}
	if _, err := holder.call(order{Verb: unlockOne}); err != nil {
		return nil, err
	}
	sent := float64(after - before)
	return figures{"rate": sent / window.Seconds(), "sent": sent, "window": window.Seconds()}, nil
}

// measureHold measures what locks cost that are held and renewed. Their lease is so short
// that the run sees a few renewals of each.
func measureHold(ctx context.Context, c *cell) (figures, error) {
	window := c.whole()
	interval := window / 2
	lease := 3 * interval
	t, err := c.open(1, lease)
	defer t.stop()
	if err != nil {
		return nil, err
	}
	m, err := c.server.monitor(c.name)
	if err != nil {
		return nil, err
	}
	empty, err := t[0].call(order{Verb: reportUsage})
	if err == nil {
		_, err = t[0].call(order{Verb: holdMany, Name: c.name, Locks: c.load.goroutines})
	}
	if err != nil {
		m.stop()
		return nil, err
	}
	began, seen := time.Now(), m.seen()
	first, err1 := t[0].call(order{Verb: reportUsage})
	time.Sleep(window)
	last, err2 := t[0].call(order{Verb: reportUsage})
	took, renewals := time.Since(began), m.seen()-seen
	longest, locks := m.stop()
	_, err3 := t[0].call(order{Verb: dropAll})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	if locks != c.load.goroutines {
		return nil, fmt.Errorf("commands about %d locks of %d were seen", locks, c.load.goroutines)
	}
	n := float64(c.load.goroutines)
	return figures{
		"bytes":      float64(int64(last.Usage.Memory)-int64(empty.Usage.Memory)) / n,
		"goroutines": float64(last.Usage.Goroutines-empty.Usage.Goroutines) / n,
		"rate":       float64(renewals) / took.Seconds(),
		"cpu":        100 * (last.Usage.CPU - first.Usage.CPU).Seconds() / took.Seconds(),
		"late":       max(0, longest-interval).Seconds(),
		"share":      max(0, longest-interval).Seconds() / interval.Seconds(),
	}, nil
}
