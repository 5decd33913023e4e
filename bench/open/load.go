package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// loadResult is what one window of arrivals has shown.
type loadResult struct {
	waits    *hdrhistogram.Histogram // µs from the intended start to the lock
	arrivals int
	served   int
	unserved int
	lost     int // calls that failed
	overlaps int // holds that began before the one before them had ended

	clientCPU, serverCPU time.Duration
	bytes                int64
	allocs, gcs          int64
}

// newHistogram has three significant digits, from 1 µs to an hour.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, micros(time.Hour), 3) }

// span is a hold.
type span struct{ got, gave int64 }

// add counts the answer of one process. spans has the holds of each name of all processes.
func (r *loadResult) add(o order, a answer, spans map[int][]span) error {
	if len(a.Got) != len(o.Arrivals) || len(a.Gave) != len(o.Arrivals) {
		return fmt.Errorf("a worker answered for %d of %d arrivals", len(a.Got), len(o.Arrivals))
	}
	for i, due := range o.Arrivals {
		got := a.Got[i]
		switch {
		case got == callFailed: // it has no wait
			continue
		case got < 0:
			r.unserved++
			got = o.Duration
		default:
			r.served++
			if len(o.Names) > 0 {
				spans[o.Names[i]] = append(spans[o.Names[i]], span{got, a.Gave[i]})
			}
		}
		if err := r.waits.RecordValue(max(1, got-due)); err != nil {
			return err
		}
	}
	r.arrivals += len(o.Arrivals)
	r.lost += a.Lost
	r.allocs += a.Allocs
	r.gcs += a.GCs
	return nil
}

// overlapping counts the holds of one name that began while another one lasted.
func overlapping(spans []span) (n int) {
	slices.SortFunc(spans, func(a, b span) int { return int(a.got - b.got) })
	end := int64(0)
	for i, s := range spans {
		if i > 0 && s.got < end {
			n++
		}
		end = max(end, s.gave)
	}
	return n
}

// cellRun is one contender in one scenario, in one round.
type cellRun struct {
	c       contender
	s       scenario
	service *service
	workers []*process
	seed    uint64
	runs    int // windows so far: each has names and arrivals of its own
}

// slack is what a worker may need beyond the time of an order.
const slack = 30 * time.Second

// lead is how long before a window its orders are sent.
func (r *cellRun) lead() time.Duration {
	return 100*time.Millisecond + time.Duration(len(r.workers))*5*time.Millisecond
}

// all gives each worker an order, and passes the answers on.
func (r *cellRun) all(takes time.Duration, make func(i int) order, got func(o order, a answer) error) error {
	orders, answers := []order{}, []<-chan answer{}
	for i, p := range r.workers {
		o := make(i)
		orders, answers = append(orders, o), append(answers, p.send(o))
	}
	var failure error
	for i, p := range r.workers {
		a, err := p.receive(answers[i], takes+slack)
		if err == nil {
			err = got(orders[i], a)
		}
		failure = errors.Join(failure, err)
	}
	return failure
}

// name returns the name of the locks of a window.
func (r *cellRun) name() string {
	r.runs++
	return fmt.Sprintf("open:%s:%s:%d:%d", r.s.name, r.c.name, r.seed, r.runs)
}

// random returns the same numbers for each contender: they meet the same arrivals.
func (r *cellRun) random(worker int) uint64 { return uint64(r.runs)<<16 | uint64(worker) }

// limit returns the pairs of lock and unlock per second of a closed loop, and the number of calls that failed.
func (r *cellRun) limit(window time.Duration) (perSecond float64, lost int, err error) {
	name, start, served := r.name(), time.Now().Add(r.lead()), 0
	err = r.all(window, func(i int) order {
		o := order{Op: opClosed, Name: fmt.Sprintf("%s:%d", name, i), Start: start.UnixMicro(), Duration: micros(window), Hold: micros(r.s.hold),
			Workers: min(r.c.threads, r.s.closed/r.s.processes)}
		if r.s.names > 0 {
			o.Name, o.Names = name, newZipf(r.s.names, skew).draw(randomOf(r.seed, r.random(i)), 4096)
		}
		return o
	}, func(_ order, a answer) error {
		served, lost = served+a.Served, lost+a.Lost
		return nil
	})
	return float64(served) / window.Seconds(), lost, err
}

// load has arrivals at a rate, and measures what they wait and cost.
func (r *cellRun) load(ctx context.Context, rate float64, window time.Duration) (loadResult, error) {
	result := loadResult{waits: newHistogram()}
	name, start, spans := r.name(), time.Now().Add(r.lead()), make(map[int][]span)
	orders := make([]order, len(r.workers))
	for i := range orders {
		random := randomOf(r.seed, r.random(i))
		orders[i] = order{Op: opLoad, Name: fmt.Sprintf("%s:%d", name, i), Start: start.UnixMicro(), Hold: micros(r.s.hold), Workers: r.c.threads,
			Duration: micros(window + patience), Arrivals: arrivals(random, rate/float64(len(r.workers)), window)}
		if r.s.names > 0 {
			orders[i].Name, orders[i].Names = name, newZipf(r.s.names, skew).draw(random, len(orders[i].Arrivals))
		}
	}
	clients, servers, bytes := r.clientCPU(), r.serverCPU(), loopback()
	err := r.all(window+patience, func(i int) order { return orders[i] }, func(o order, a answer) error { return result.add(o, a, spans) })
	result.clientCPU, result.serverCPU, result.bytes = r.clientCPU()-clients, r.serverCPU()-servers, loopback()-bytes
	for _, holds := range spans {
		result.overlaps += overlapping(holds)
	}
	return result, errors.Join(err, ctx.Err())
}

func (r *cellRun) clientCPU() (total time.Duration) {
	for _, p := range r.workers {
		total += cpuClock(p.pid())
	}
	return total
}

func (r *cellRun) serverCPU() (total time.Duration) {
	for _, pid := range r.service.pids() {
		total += cpuClock(pid)
	}
	return total
}
