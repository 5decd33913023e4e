package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/bench/contend"
	"github.com/relock-go/relock/bench/stat"
	"github.com/relock-go/relock/internal/redistest"
)

// bench runs cells.
type bench struct {
	config
	server   *server
	progress io.Writer
	cells    int
}

func newBench(c config, progress io.Writer) (*bench, error) {
	b := &bench{config: c, server: &server{addr: c.redis, rdb: contend.GoRedis(setup{Addr: c.redis})}, progress: progress}
	if _, err := b.server.version(context.Background()); err != nil {
		b.close()
		return nil, fmt.Errorf("the Redis at %s: %w", c.redis, err)
	}
	return b, nil
}

func (b *bench) close() { _ = b.server.rdb.Close() }

// measure runs the cells of a scenario, round by round. A contender whose last rounds are void is left out, because each lost waiter
// takes a further 20 s.
func (b *bench) measure(ctx context.Context, s *scenario, r *report) error {
	for _, l := range s.loads {
		if !b.measures(s, l) {
			continue
		}
		names := b.partsOf(s)
		for round := range b.rounds {
			for i := range names {
				name := names[(i+round)%len(names)]
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if r.hopeless(s, l, name) {
					continue
				}
				f, err := b.cell(ctx, s, l, name, round)
				r.add(s, l, name, sample{round: round, figures: f, err: err})
				fmt.Fprintf(b.progress, "round %d/%d  %s %s  %-16s  %s\n",
					round+1, b.rounds, s.name, l.label, name, s.brief(f, err))
			}
		}
	}
	return nil
}

// cell is one measurement: of one contender, in processes of its own.
type cell struct {
	*bench
	scenario  *scenario
	load      load
	contender contender
	round     int
	addr      string   // where the contender connects to
	addrs     []string // of several servers, where it connects to those
	name      string   // of its lock; unique
}

func (b *bench) cell(ctx context.Context, s *scenario, l load, contender string, round int) (figures, error) {
	who, err := contenderNamed(contender)
	if err != nil {
		return nil, err
	}
	b.cells++
	c := &cell{bench: b, scenario: s, load: l, contender: who, round: round, addr: b.redis,
		name: fmt.Sprintf("bench:%d:%d", time.Now().UnixNano(), b.cells)}
	return s.measure(ctx, c)
}

// open starts workers that use the contender. They have to be stopped, error or not.
func (c *cell) open(n int, lease time.Duration) (team, error) {
	var t team
	for range n {
		p, err := startProcess()
		if err != nil {
			return t, err
		}
		t = append(t, p)
	}
	_, err := t.each(func(i int) order {
		return order{Verb: openClient, Contender: c.contender.name, Setup: setup{Addr: c.addr, Addrs: c.addrs, Lease: lease, Limit: c.load.limit},
			Check: i == 0, Name: c.name + ":check"}
	})
	return t, err
}

// looped has the results of a team in one run.
type looped struct {
	answers []answer
	start   time.Time
	server  time.Duration // processor time of Redis
}

// costs returns the processor times of the clients and of Redis for each pair. They limit what a busy machine can do, and vary
// less than the elapsed time.
func (l *looped) costs(f figures) figures {
	client := time.Duration(0)
	for _, a := range l.answers {
		client += a.Run.CPU
	}
	n := float64(l.pairs())
	f["client"] = client.Seconds() * 1e6 / n
	f["server"] = l.server.Seconds() * 1e6 / n
	return f
}

// ops returns the pairs per second, all goroutines together.
func (l *looped) ops() float64 {
	rate := 0.0
	for _, a := range l.answers {
		rate += float64(a.Run.Ops) / a.Run.Elapsed.Seconds()
	}
	return rate
}

// spans returns what each goroutine of each process did.
func (l *looped) spans() [][]span {
	var all [][]span
	for _, a := range l.answers {
		all = append(all, a.Run.Spans...)
	}
	return all
}

// pairs returns how often a lock was acquired and released.
func (l *looped) pairs() int {
	n := 0
	for _, a := range l.answers {
		n += a.Run.Ops
	}
	return n
}

// sent returns how many commands the clients sent.
func (l *looped) sent() int64 {
	n := int64(0)
	for _, a := range l.answers {
		n += a.Run.Sent
	}
	return n
}

// turns is how often each process may hold the lock in a measurement, at least.
const turns = 10

// window is how long the cell is measured, once it is warm.
func (c *cell) window() time.Duration { return c.load.window(c.duration) }

func (l load) window(duration time.Duration) time.Duration {
	return max(duration, time.Duration(turns*l.processes)*l.hold)
}

// whole is how long a cell is measured whose scenario takes several times the duration.
func (c *cell) whole() time.Duration { return time.Duration(c.scenario.times) * c.duration }

// loop has the load's goroutines do o in a loop, first to warm up, then to be measured.
func (c *cell) loop(ctx context.Context, o order) (*looped, error) {
	t, err := c.open(max(1, c.load.processes), 0)
	defer t.stop()
	if err != nil {
		return nil, err
	}
	o.Verb, o.Name, o.Goroutines = runLoop, c.name, c.load.goroutines
	o.Start, o.Duration = soon(), warmUp(c.duration)
	if _, err := t.each(func(int) order { return o }); err != nil {
		return nil, err
	}
	busy, err := c.server.cpuTime(ctx)
	if err != nil {
		return nil, err
	}
	o.Start, o.Duration = soon(), c.window()
	answers, err := t.each(func(i int) order {
		o := o
		if c.profiles != "" {
			file := fmt.Sprintf("%s-%s-%s-%d-%d", c.scenario.name, c.load.label, c.contender.name, c.round, i)
			o.Profiles = filepath.Join(c.profiles, strings.Map(fileRune, file))
		}
		return o
	})
	if err != nil {
		return nil, err
	}
	spent, err1 := c.server.cpuTime(ctx)
	_, err2 := t.each(func(int) order { return order{Verb: closeClient} })
	return &looped{answers: answers, start: o.Start, server: spent - busy}, errors.Join(err1, err2)
}

func warmUp(duration time.Duration) time.Duration { return min(duration/4, 200*time.Millisecond) }

// soon returns a time at which all workers can begin an order that is sent now.
func soon() time.Time { return time.Now().Add(30 * time.Millisecond) }

func fileRune(r rune) rune {
	if strings.ContainsRune(" ,×/", r) {
		return '_'
	}
	return r
}

// slowly runs a measurement through a relay that delays everything by linkLatency each way.
func slowly(measure measurement) measurement {
	return func(ctx context.Context, c *cell) (figures, error) {
		relay, err := redistest.StartRelay(c.redis)
		if err != nil {
			return nil, err
		}
		defer relay.Close()
		relay.Latency(linkLatency)
		trip, err := roundTrip(ctx, relay.Addr)
		if err != nil {
			return nil, err
		}
		slow := *c
		slow.addr = relay.Addr
		f, err := measure(ctx, &slow)
		if err != nil {
			return nil, err
		}
		f["trip"] = trip.Seconds()
		if us, ok := f["us"]; ok {
			f["trips"] = us / 1e6 / trip.Seconds()
		}
		if rate, ok := f["rate"]; ok {
			f["trips"] = 1 / rate / trip.Seconds()
		}
		return f, nil
	}
}

// votingServers is how many servers there are where locks live on a majority of them.
const votingServers = 3

// onSeveral runs a measurement on servers of its own. What those do is not counted: the
// figures are those of the clients.
func onSeveral(measure measurement) measurement {
	return func(ctx context.Context, c *cell) (figures, error) {
		several := *c
		for range votingServers {
			server, err := redistest.StartServer("")
			if err != nil {
				return nil, err
			}
			defer server.Close()
			several.addrs = append(several.addrs, server.Addr)
		}
		return measure(ctx, &several)
	}
}

const linkLatency = time.Millisecond

// roundTrip is how long a PING takes: the median of some.
func roundTrip(ctx context.Context, addr string) (time.Duration, error) {
	rdb := contend.GoRedis(setup{Addr: addr})
	defer rdb.Close()
	var trips []time.Duration
	for range 21 {
		began := time.Now()
		if err := rdb.Ping(ctx).Err(); err != nil {
			return 0, err
		}
		trips = append(trips, time.Since(began))
	}
	slices.Sort(trips)
	return stat.Quantile(trips, 0.5), nil
}
