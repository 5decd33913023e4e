package redisexec

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
)

// A lane is a route to one Redis process. Each engine begins with the shared lane. If a copy of a command
// is not answered on the current lane, the connection may be dead: a client is not notified if a gateway has dropped the
// connection, and after a quiet night this may be the state of all connections of a pool. So the next copy, of any call, uses a
// new lane, with a connection that is dialed for it.
//
//	current --a copy is unanswered, and nothing else was answered since it was sent--> suspect
//	suspect --answered--> current
//	suspect --another command--> replaced by a new lane of our own, which is current
//	replaced --answered, while the new one is still opening--> current again: it was only slow
//	a new lane that cannot be opened --> the shared lane is current again
//	a new lane behind Sentinel --after some time--> the shared lane is current again
//
// Invariants:
//   - A lane that has answered is not closed because it is slow. After it is replaced, commands on it may still be answered. It
//     is closed when none can be answered any more (Executor.longest).
//   - A new lane has the time of two copies to answer before it is replaced, the next one has twice that time, and so on. A
//     lane that never answered is closed then. So an outage opens one connection at a time, however many calls fail, and its
//     end is noticed soon.
//   - Behind Sentinel, go-redis closes the connections of its pools after a failover, but would not close those of a lane of
//     our own, though the old master may be alive. So no command is sent on such a lane after lane.until: by then go-redis
//     has given up the connection of the pool that was silent. If others are, too, each costs another new lane.
type lane struct {
	pipe *pipeline     // nil: each command has a connection of rdb's pool to itself
	rdb  *redis.Client // of the shared lane, or without a pipeline

	ours   bool    // false: the shared one
	own    *dialed // the connection of rdb, if that is ours
	opened clock.Instant
	until  clock.Instant // when the shared lane is to be current again; zero: never

	answers atomic.Uint64 // that have come
	took    atomic.Int64  // the time until the last one
	suspect atomic.Bool
}

// openSharedLane returns the first lane of g, which also has the application's pools.
func (x *Executor) openSharedLane(g *engine) *lane {
	l := &lane{rdb: x.cloneOf(g.node), opened: x.Now()}
	if !x.Unpipelined {
		l.pipe = x.openPipeline(g)
		if isBehindSentinel(g.node) {
			l.pipe.pool = l.rdb
		}
	}
	return l
}

// openOwnLane returns a lane of g on connections of our own. Without a pipeline the pool is as large as the application's. In a
// small pool a few failed dials would be too many: after as many failed dials as the pool has room for, go-redis dials once a
// second until the pool is closed, and a little longer.
func (x *Executor) openOwnLane(g *engine) *lane {
	l := &lane{ours: true, opened: x.Now()}
	if isBehindSentinel(g.node) {
		l.until = l.opened.After(max(x.longest(), g.node.Options().ReadTimeout))
	}
	if x.Unpipelined {
		l.own = new(dialed)
		o := ownOptions(g.node.Options(), g.node.Options().PoolSize, x.readTimeout(g.node))
		o.Dialer = l.own.dialer(o.Dialer)
		l.rdb = redis.NewClient(o)
	} else {
		l.pipe = x.openPipeline(g)
	}
	return l
}

// close ends a lane. If the connection is the library's own, it interrupts commands in flight, for which go-redis would wait
// until their time-outs. On the shared lane, it waits for them.
func (l *lane) close() {
	switch {
	case l.own != nil:
		l.own.close()
		_ = l.rdb.Close()
	case l.pipe != nil && l.ours:
		l.pipe.close(0)
	case l.pipe != nil:
		l.pipe.close(dialTime / 2) // so Close sees the end of it
	}
}

// dialed is the last connection that a client of our own has dialed.
type dialed struct {
	mu     sync.Mutex
	conn   net.Conn // nil: none yet
	closed bool     // connections that are dialed from now on are closed at once
}

// dialer is dial, and d records its connections.
func (d *dialed) dialer(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.conn = conn; d.closed {
			_ = conn.Close()
		}
		return conn, nil
	}
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

func (d *dialed) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.conn != nil {
		_ = d.conn.Close()
	}
}

// pace returns the wait for a copy on l if patience is the usual wait: it is longer if the last answer was slow.
func (l *lane) pace(patience time.Duration) time.Duration {
	return max(patience, 2*time.Duration(l.took.Load())) // mutant: patience-fixed/3
}

// isSuspect reports whether the nth copy of a command needs another lane than l. The copy before the third has gone on l:
// if that is new, and has answered nothing yet, the third does not wait until l is suspect.
func (l *lane) isSuspect(n int) bool {
	return l.suspect.Load() || n > 2 && l.ours && l.answers.Load() == 0
}

// isOver reports whether no more commands are to be sent on l.
func (l *lane) isOver(now clock.Clock) bool {
	return l.until != (clock.Instant{}) && now().Until(l.until) <= 0
}

// unanswered records that a copy on l was not answered in its time, when l had given so many answers before it.
func (l *lane) unanswered(answers uint64) {
	if l.answers.Load() == answers {
		l.suspect.Store(true)
	}
}

// answered records that Redis has answered something on l, which was sent so long ago.
func (g *engine) answered(l *lane, took time.Duration) {
	l.answers.Add(1)
	l.took.Store(int64(took))
	if l.suspect.Load() {
		l.suspect.Store(false)
	}
	if g.fresh.Load() != 0 {
		g.fresh.Store(0)
	}
	if current := g.lane.Load(); current != l && current.answers.Load() == 0 {
		g.exec.switchTo(g, current, l)
	}
}

// switchTo makes `to` the current lane of g in the place of from, if that is still current.
func (x *Executor) switchTo(g *engine, from, to *lane) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if g.lane.Load() == from && (to == g.shared || g.lanes[to]) {
		to.suspect.Store(false)
		g.lane.Store(to)
		x.retire(g, from, x.longest())
	}
}

// laneOf returns the lane for the nth copy of a command of g. Before the third copy, two were not answered. One of them may have
// been sent on a new lane that was dead from the beginning, so this lane has less time.
func (x *Executor) laneOf(g *engine, n int) *lane {
	l := g.lane.Load()
	if l.isOver(x.Now) {
		x.switchTo(g, l, g.shared)
		l = g.lane.Load()
	}
	if !l.isSuspect(n) {
		return l
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.Now()
	trial := min(x.Patience<<min(g.fresh.Load(), 5), max(2*x.Patience, x.longest()))
	if n == 3 {
		trial = x.Patience
	}
	switch l = g.lane.Load(); {
	case x.engines[g.node] != g, !l.isSuspect(n): // mutant: silent-lane-reused
		return l
	case l.ours && l.answers.Load() == 0 && now.Since(l.opened) < trial:
		return l // it may be opening still
	}
	fresh := x.openOwnLane(g)
	g.lanes[fresh] = true
	g.lane.Store(fresh)
	g.fresh.Add(1)
	if l.answers.Load() == 0 {
		x.retire(g, l, 0)
	} else {
		x.retire(g, l, x.longest())
	}
	return fresh
}

// retire closes a lane of the library's own after d, unless it is current again by then. mu is held.
func (x *Executor) retire(g *engine, l *lane, d time.Duration) {
	if !l.ours {
		return
	}
	time.AfterFunc(d, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if !x.closed && g.lanes[l] && g.lane.Load() != l {
			delete(g.lanes, l)
			x.goAside(l.close)
		}
	})
}

// barred gives up a lane on which no connection can be opened.
func (x *Executor) barred(g *engine, l *lane) {
	if l.ours && l.answers.Load() == 0 {
		x.switchTo(g, l, g.shared)
	}
}
