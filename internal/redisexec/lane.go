package redisexec

import (
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
)

// A lane is a way to one Redis process. Each engine begins with the lane of the application's pools. If a copy of
// a command stays unanswered on the current lane, the connection may be dead: nothing tells a client that a
// gateway on the way has forgotten it, and all connections of a pool may be in that state after a quiet night. So
// the next copy, of any call, goes by a new lane, on a connection that is dialed for it.
//
//	current --a copy is unanswered, and nothing else was answered since it was sent--> suspect
//	suspect --answered--> current
//	suspect --another command--> replaced by a new lane of our own, which is current
//	replaced --answered, while the new one is still opening--> current again: it was only slow
//	a new lane that cannot be opened --> the lane of the application's pools is current again
//
// Invariants:
//   - A lane is not closed because it is slow. Commands on a lane that was replaced are still answered; it is
//     closed when none of them can be any more (Executor.longest).
//   - A new lane has the time of two copies to answer something before it is replaced in turn. So an outage opens a
//     few connections, however many calls fail, and is noticed to be over soon.
type lane struct {
	rdb  *redis.Client
	pipe *pipeline // nil: each command has a connection of rdb's pool to itself

	own    bool // rdb is ours, and so is its connection
	opened clock.Instant

	answers atomic.Uint64 // that have come
	took    atomic.Int64  // how long the last one took
	suspect atomic.Bool
	stuck   atomic.Int64 // commands of the pipeline that were given up, and have not ended
}

// openLane returns the lane of rdb's pools.
func (x *Executor) openLane(rdb *redis.Client, own bool) *lane {
	l := &lane{rdb: rdb, own: own, opened: x.Now()}
	if !x.Unpipelined {
		l.pipe = openPipeline(rdb)
	}
	return l
}

// close ends a lane. It blocks until what is under way on a lane of our own has ended. On the application's
// it does not wait for a connection that is stuck: the application may close its client meanwhile, and of two
// goroutines that close a pipeline of go-redis' the second waits for a sync.Once, which stops the clock of a synctest bubble.
func (l *lane) close() {
	switch {
	case l.own:
		_ = l.rdb.Close()
	case l.pipe == nil:
	case l.stuck.Load() == 0:
		l.pipe.close()
	default:
		go func() {
			for l.stuck.Load() > 0 {
				time.Sleep(stuckPause)
			}
			l.pipe.close()
		}()
	}
}

// stuckPause is the pause between two looks at whether a lane is stuck.
const stuckPause = 50 * time.Millisecond

// pace returns how long a copy on l is waited for, if patience is the usual time: longer if the last answer was slow.
func (l *lane) pace(patience time.Duration) time.Duration {
	return max(patience, 2*time.Duration(l.took.Load()))
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
	if current := g.lane.Load(); current != l && current.answers.Load() == 0 {
		g.exec.switchTo(g, current, l)
	}
}

// switchTo makes `to` the current lane of g in the place of from, if that is still current.
func (x *Executor) switchTo(g *engine, from, to *lane) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if g.lane.Load() == from && (to == g.shared || g.lanes[to]) {
		g.lane.Store(to)
		x.retire(g, from)
	}
}

// laneOf returns the lane for the next command of g.
func (x *Executor) laneOf(g *engine) *lane {
	l := g.lane.Load()
	if !l.suspect.Load() {
		return l
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.Now()
	switch l = g.lane.Load(); {
	case x.engines[g.node] != g, !l.suspect.Load():
		return l
	case l.own && now.Since(l.opened) < 2*x.Patience:
		return l // it may be opening still
	}
	conns := 1
	if x.Unpipelined {
		conns = g.node.Options().PoolSize
	}
	fresh := x.openLane(redis.NewClient(ownOptions(g.node.Options(), conns, x.readTimeout(g.node))), true)
	g.lanes[fresh] = true
	g.lane.Store(fresh)
	x.retire(g, l)
	return fresh
}

// retire has a lane that is not current any more closed when nothing can be answered on it. mu is held.
func (x *Executor) retire(g *engine, l *lane) {
	if !l.own {
		return
	}
	time.AfterFunc(x.longest(), func() {
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
	if l.own && l.answers.Load() == 0 {
		x.switchTo(g, l, g.shared)
		g.shared.suspect.Store(false)
	}
}
