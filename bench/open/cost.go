package main

import (
	"context"
	"fmt"
	"time"
)

// footprint is the memory that locks and waiters take, in bytes: by the account of the runtime of the client (of the kernel,
// where that has none), and of the server.
type footprint struct {
	HeldClient, HeldServer       float64 // for each lock that is held
	WaitingClient, WaitingServer float64 // for each goroutine or thread that waits
	ProcessClient, ProcessServer float64 // for each process with one waiter
	Locks, Waiters, Processes    int
}

// How many are measured. A lock of PostgreSQL, and a waiter of Java, Python and PostgreSQL, take a connection or a thread.
const (
	heldLocks   = 1000
	loneWaiters = 8
)

// settle is how long waiters may take until they all wait. Nothing shows it in all kinds of servers.
const settle = time.Second

func (e *environment) measureFootprint(ctx context.Context, c contender, s *service, try int) (f footprint, err error) {
	f = footprint{Locks: heldLocks, Waiters: min(1000, c.threads-1), Processes: loneWaiters}
	if c.server == onPostgres {
		f.Locks = c.threads / 2 // each has a connection
	}
	p, err := e.startProcess(c, order{Addr: s.addr})
	if err != nil {
		return f, err
	}
	defer p.stop()
	name := fmt.Sprintf("footprint:%s:%d", c.name, try)
	if _, err := p.call(order{Op: opHold, Name: name + ":warm", Count: f.Locks / 10}, time.Minute); err != nil {
		return f, err
	}
	f.HeldClient, f.HeldServer, err = p.growth(ctx, s, f.Locks, order{Op: opHold, Name: name, Count: f.Locks})
	if err != nil {
		return f, err
	}
	q, err := e.startProcess(c, order{Addr: s.addr})
	if err != nil {
		return f, err
	}
	defer q.stop()
	f.WaitingClient, f.WaitingServer, err = q.growth(ctx, s, f.Waiters, order{Op: opCrowd, Name: name + ":0", Count: f.Waiters})
	if err != nil {
		return f, err
	}
	before := s.memory(ctx)
	var lone []int
	for range f.Processes {
		one, err := e.startProcess(c, order{Addr: s.addr})
		if err != nil {
			return f, err
		}
		defer one.stop()
		if _, err := one.call(order{Op: opCrowd, Name: name + ":1", Count: 1}, time.Minute); err != nil {
			return f, err
		}
		lone = append(lone, one.pid())
	}
	time.Sleep(settle)
	f.ProcessClient = float64(memoryOf(lone)) / float64(f.Processes)
	f.ProcessServer = float64(s.memory(ctx)-before) / float64(f.Processes)
	return f, ctx.Err()
}

// growth returns by how much the client and the server grow with each of n.
func (p *process) growth(ctx context.Context, s *service, n int, o order) (client, server float64, err error) {
	before, err := p.call(order{Op: opUsage}, time.Minute)
	if err != nil {
		return 0, 0, err
	}
	held := s.memory(ctx)
	if _, err := p.call(o, time.Minute); err != nil {
		return 0, 0, err
	}
	time.Sleep(settle)
	after, err := p.call(order{Op: opUsage}, time.Minute)
	each := func(growth int64) float64 { return float64(growth) / float64(n) }
	return each(after.Heap - before.Heap), each(s.memory(ctx) - held), err
}
