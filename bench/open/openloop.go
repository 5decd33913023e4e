package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/bench/contend"
)

// load starts each arrival when it is due, even if earlier ones still wait. Time counts from the intended start: an arrival
// for which no goroutine is free, or that the machine starts late, has waited all the same.
func load(c contend.Client, o order) answer {
	a := answer{Got: make([]int64, len(o.Arrivals)), Gave: make([]int64, len(o.Arrivals))}
	ctx, stop := context.WithDeadline(context.Background(), time.UnixMicro(o.Start+o.Duration))
	defer stop()
	var served, lost atomic.Int64
	due := make(chan int, len(o.Arrivals)) // the dispatcher never waits for a goroutine
	var pool sync.WaitGroup
	for range min(o.Workers, len(o.Arrivals)) {
		pool.Go(func() {
			for i := range due {
				var failure error
				if a.Got[i], a.Gave[i], failure = once(ctx, c, o, i); failure != nil {
					lost.Add(1)
				}
				if a.Got[i] >= 0 {
					served.Add(1)
				}
			}
		})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i, at := range o.Arrivals {
		time.Sleep(time.Until(time.UnixMicro(o.Start + at)))
		due <- i
	}
	close(due)
	pool.Wait()
	runtime.ReadMemStats(&after)
	a.Served, a.Lost = int(served.Load()), int(lost.Load())
	a.Allocs, a.GCs = int64(after.Mallocs-before.Mallocs), int64(after.NumGC-before.NumGC)
	return a
}

// once is one arrival: when it had the lock, and when it began to unlock; timedOut or callFailed if it never had it.
func once(ctx context.Context, c contend.Client, o order, i int) (got, gave int64, err error) {
	m := c.Mutex(o.nameOf(i))
	if err := m.Lock(ctx); err != nil {
		if isEnd(ctx, err) {
			return timedOut, timedOut, nil
		}
		return callFailed, callFailed, err
	}
	got = now() - o.Start
	if o.Hold > 0 {
		time.Sleep(time.Duration(o.Hold) * time.Microsecond)
	}
	gave = now() - o.Start
	return got, gave, m.Unlock()
}

func (o order) nameOf(i int) string {
	if len(o.Names) == 0 {
		return fmt.Sprintf("%s:%d", o.Name, i)
	}
	return fmt.Sprintf("%s:%d", o.Name, o.Names[i%len(o.Names)])
}

// closed has goroutines lock and unlock one after the other, and counts the pairs that end within the duration.
func closed(c contend.Client, o order) answer {
	time.Sleep(time.Until(time.UnixMicro(o.Start)))
	end := o.Start + o.Duration
	ctx, stop := context.WithDeadline(context.Background(), time.UnixMicro(end))
	defer stop()
	var next, served, lost atomic.Int64
	var pool sync.WaitGroup
	for range o.Workers {
		pool.Go(func() {
			for now() < end {
				got, _, err := once(ctx, c, o, int(next.Add(1)))
				if err != nil {
					lost.Add(1)
				} else if got >= 0 && now() <= end {
					served.Add(1)
				}
			}
		})
	}
	pool.Wait()
	return answer{Served: int(served.Load()), Lost: int(lost.Load())}
}
