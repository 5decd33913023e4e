package redisexec

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/lockerr"
)

// A call sends copies of one command, one after the other, and takes the first answer to any of them:
//
//	begins --a copy is sent--> waits --answered, by whichever copy-------------> done
//	   ^                         |  \--an error that no other copy can help---> failed
//	   |                         |   \--the last copy, or no one needs another-> failed
//	   +--a pause-- no answer in time, or refused for now
//	any --ctx ends--> given up, at once
//
// Only the goroutine of the caller changes the state. A copy is independent of it: when go-redis has a copy, it cannot be
// cancelled. The work of a copy, such as opening a connection, continues when the next copy is sent. So the call waits for a
// Redis that is slow or far away, and leaves a dead connection.
//
// The wait for each copy is twice as long as for the previous one, up to half of the remaining time of ctx. If a lane
// (lane.go) was slow to answer its last command, all waits are longer.
//
// Invariants:
//   - A copy is executed once at most, because go-redis does not resend. It may be executed at any time, even after the call
//     has ended, and after commands that were sent later.
//   - A copy is sent only when the previous one was refused, or not answered in time.
//   - Ambiguous stays set: the answer to one copy does not cover the others.
//   - Sent is a time before the answered copy was sent. So a lease that counts from it ends too early rather than too late.
//   - A copy that was given up is not changed, because go-redis may still read its words.
//
// What can come late: the execution of a copy of a call that has ended. Its answer is discarded.

// PatienceFor returns the wait for the first copy of a command: about a second, or less if several copies have to fit into a
// shorter lease, but never less than a slow link needs.
func PatienceFor(ttl time.Duration) time.Duration {
	return min(time.Second, max(MinCopyPatience, ttl/4))
}

// longestFor returns the longest wait for any copy, because an answer is useless when most of the lease is over.
func longestFor(ttl time.Duration) time.Duration {
	return min(mostPatience, max(MinCopyPatience, ttl/2))
}

// mostPatience bounds this wait for long leases: a copy without an answer for so long will get none. The Close of the
// application's client also waits for a connection that hangs.
const mostPatience = 12 * time.Second

// MinPatience is the least wait for a command, however soon a lease ends.
const MinPatience = 10 * time.Millisecond

// MinCopyPatience is what a slow link needs.
const MinCopyPatience = 50 * time.Millisecond

// Executor runs scripts on one Redis deployment. go-redis' resending is off for every command: the executor resends by itself, by
// the routes in the table of engine.
type Executor struct {
	// Now is the clock that it times its copies by.
	Now clock.Clock
	// Patience is the wait for the first copy of a command.
	Patience time.Duration
	// Unpipelined: each command is sent alone, on a connection of the application's pool. It is set before the first call.
	Unpipelined bool

	rdb    redis.UniversalClient
	limits Limits
	most   time.Duration // see longest

	// anywhere is the server of commands without an engine.
	anywhere *server

	mu      sync.Mutex
	closed  bool
	engines map[*redis.Client]*engine
	latest  atomic.Pointer[engine] // that was asked for, if it is in the map: most executors have one

	// mapped: a Cluster client has loaded its slot map, so a request for a key's master does not block.
	mapped atomic.Bool

	// life is the context of work for which no caller waits. It ends with Close.
	life context.Context
	end  context.CancelFunc

	// asides are the goroutines of commands outside of the engines. late has the commands that their callers have given up.
	asides goroutine.Group
	late   late
}

// New returns an executor of scripts for leases of ttl on what rdb leads to. It has to be
// closed.
func New(rdb redis.UniversalClient, now clock.Clock, ttl time.Duration) *Executor {
	x := &Executor{
		rdb:      rdb,
		Now:      now,
		Patience: PatienceFor(ttl),
		most:     longestFor(ttl),
		anywhere: serverOf(rdb),
		engines:  make(map[*redis.Client]*engine),
	}
	x.life, x.end = context.WithCancel(context.Background())
	return x
}

// longest is how long a copy may stay unanswered before its connection is given up.
func (x *Executor) longest() time.Duration { return max(x.most, x.Patience) }

// Run sends a script until it is answered, until no answer is possible, until e allows no further copy, or until ctx ends.
// It returns as soon as ctx ends; a copy that is on its way then may still be executed. If ctx has ended before, Run
// sends nothing.
func (x *Executor) Run(ctx context.Context, e CallOptions, s *Script, keys []any, args ...any) (value any, out Outcome) {
	if e.Patience == 0 {
		e.Patience = x.Patience
	}
	if e.MaxPatience == 0 {
		e.MaxPatience = x.most / 2
	}
	began := x.Now()
	if ctx.Err() != nil {
		x.givenUp(ctx, &out, x.anywhere, began)
		return nil, out
	}
	// A call of one copy is in a hurry. It has no second copy by which to find out what keeps the first one silent.
	if e.Attempts == 1 {
		defer x.lookSoon(ctx, e.Patience/2, keys[0].(string)).Stop()
	}
	c := try{ctx: ctx, n: 1, e: e, sent: began, patience: e.Patience}
	a := x.send(&c, s, keys, args)
	c.piped = a.way.piped
	var f *flights // that are under way, from the second copy on: most calls need none
	for {
		at := a.server
		err, v := a.err, s.judge(a.err)
		out.Sent = a.sent
		// mutant: deadline-from-reply
		if v.answered {
			at.answered()
			out.Err, out.Permanent, out.Unconfirmed = nil, false, lockerr.Fault(a.unconfirmed)
			f.end()
			return a.value, out
		}
		out.Ambiguous = out.Ambiguous || !v.notExecuted
		byCtx := ctx.Err() != nil && errors.Is(err, ctx.Err()) // then it is no error of Redis
		if !byCtx {
			// Not simply the last error: a silence after a refused connection is less informative.
			if out.Err == nil || informativeness(err) >= informativeness(out.Err) {
				out.Err, out.Permanent = err, v.permanent
			}
			at.record(err, x.Now())
		}
		// If ctx has ended since, the error contains both.
		over := ctx.Err() != nil || !v.resend || c.n == e.Attempts || e.Needless()
		if cluster, ok := x.rdb.(*redis.ClusterClient); ok && v.resend && ctx.Err() == nil {
			cluster.ReloadState(ctx) // in the background: by itself it would look every 10 s
		}
		if over {
			a.giveUp()
			f.end()
			if ctx.Err() != nil {
				x.givenUp(ctx, &out, at, began)
			} else {
				out.Err = lockerr.Fault(x.explain(&c, at, c.n, out.Err))
			}
			return nil, out
		}
		if f == nil {
			f = x.newFlights(&c, s, keys, args)
		}
		f.goOn(&c, a.pending)
		if e.Unanswered != nil {
			e.Unanswered(lockerr.Fault(x.explain(&c, at, 1, out.Err)))
		}
		a = f.next(&c)
	}
}

// errNotSent reports that a copy did not reach the master of its key.
var errNotSent = errors.New("not sent")

// errUnsettled reports that no node of a Cluster accepted a copy, which is so for a moment at the end of a slot's move.
var errUnsettled = errors.New("the Cluster nodes disagree about which of them serves the slot")

// errOneNode reports that a client of one server was made for a node of a Cluster, which serves only some of the slots.
var errOneNode = errors.New("this server is a node of a Cluster: use a *redis.ClusterClient")

// silent reports whether err is only a time-out, including the time-out of getting a connection.
func silent(err error) bool {
	return errors.Is(err, lockerr.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded)
}

// try is one copy of a call.
type try struct {
	ctx      context.Context // the caller's, or the context of the flights of its call
	n        int             // how many copies were sent, this one included
	e        CallOptions
	sent     clock.Instant   // from before it was sent
	patience time.Duration   // its caller's; 0: until ctx ends
	wait     context.Context // ends when the caller stops waiting for it: with ctx, or after patience
	way      way             // that it is to go; the zero way: any
	piped    bool            // the first one has gone through a pipeline
}

// answer is the result of one copy of a command.
type answer struct {
	value       any
	unconfirmed error // see Outcome
	err         error

	server *server       // that the command was sent to, or was to be
	way    way           // that it went, if that was a lane
	sent   clock.Instant // from before the copy was sent
	n      int           // of the copy

	// pending is set if the copy was given up before go-redis was done with it. It waits for the answer, or for the end of
	// ctx. After that the copy is not used any more.
	pending func(ctx context.Context) answer
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}()

// giveUp records that no caller waits for the answer any more.
func (a *answer) giveUp() {
	if a.pending != nil {
		a.pending(ended)
	}
}

// send sends one copy, by its digest, and in full if Redis does not have the script. After that c.sent is the time of the last
// sending, and c.wait has ended, if there is a patience.
func (x *Executor) send(c *try, s *Script, keys, args []any) (a answer) {
	a, sent := x.sendAlone(c, s, keys, args)
	if sent && a.err == nil {
		a.sent, a.n = c.sent, c.n
		return a
	}
	if c.wait = c.ctx; c.patience > 0 {
		var cancel context.CancelFunc
		c.wait, cancel = x.limits.within(c.ctx, c.patience)
		defer cancel()
	}
	if !sent || isRedirect(a.err) {
		a = x.dispatch(c, s, keys, args, false)
	}
	x.sendAll(c, s, keys, args, &a)
	// The time of this copy was over, in whatever words go-redis says so. An error of a copy that was surely not
	// executed says more than that, and stays.
	if a.err != nil && c.wait.Err() != nil && c.ctx.Err() == nil && !judge(a.err).notExecuted {
		a.err = lockerr.NoAnswerWithin(c.patience)
	}
	return a
}

// sendAlone sends a first copy on the goroutine of the caller, and reports whether it did: see lone.go.
func (x *Executor) sendAlone(c *try, s *Script, keys, args []any) (a answer, sent bool) {
	if c.n > 1 || c.e.Replicas.N > 0 || x.late.has(keys) {
		return a, false
	}
	if g := x.engineOf(c.ctx, keys[0].(string)); g != nil {
		return g.alone(c, s, keys, args)
	}
	return a, false
}

// sendAll sends a copy again if by its first answer a the server does not have the script, or refuses it before its first write
// because of keys that are not required. Neither counts as another attempt. a becomes the last answer.
func (x *Executor) sendAll(c *try, s *Script, keys, args []any, a *answer) {
	x.sendKnown(c, s, keys, args, a)
	if c.e.RequiredKeys > 0 && c.e.RequiredKeys < len(keys) && lacksKeys(a.err, c.e.Undoes) {
		keys = keys[:c.e.RequiredKeys]
		*a = x.dispatch(c, s, keys, args, false)
		x.sendKnown(c, s, keys, args, a)
	}
	if isRedirect(a.err) {
		switch x.rdb.(type) {
		case *redis.ClusterClient:
			a.err = fmt.Errorf("%w: %w", errUnsettled, a.err)
		case *redis.Client:
			a.err = fmt.Errorf("%w: %w", errOneNode, a.err)
		}
	}
	a.sent, a.n, c.way = c.sent, c.n, way{}
}

// sendKnown sends a copy again, in full if need be, if the server has answered a: that it has no script with the digest
// of s. So the server has executed nothing, and c.sent becomes the time of the second sending: on a slow link the lease
// needs the time. a becomes the last answer.
func (x *Executor) sendKnown(c *try, s *Script, keys, args []any, a *answer) {
	if !unknownScript(a.err) {
		return
	}
	now := x.Now()
	full := a.server.scripts.missed(s, c.sent, now)
	c.sent, c.way = now, a.way // the connection is open there, which may have taken a while
	*a = x.dispatch(c, s, keys, args, full)
	// The script that another call has sent is not there yet, or went to another server.
	if !full && unknownScript(a.err) {
		c.sent = x.Now()
		*a = x.dispatch(c, s, keys, args, true)
	}
}

// dispatch sends s to the master of the keys, in full if requested or needed, and waits for the answer, or until the caller
// stops waiting. After that only go-redis uses the command, except for the answer's pending.
func (x *Executor) dispatch(c *try, s *Script, keys, args []any, full bool) (a answer) {
	defer goroutine.Recover(&a.err)
	key := keys[0].(string)
	engine := x.engineOf(c.wait, key)
	a.server = x.anywhere // also of a panic
	if engine != nil {
		a.server = engine.server
	}
	// A first copy does not overtake commands that were given up; later copies are for when something is stuck.
	if c.n == 1 && !x.late.await(c.wait, keys) {
		a.err = errNotSent
		return a
	}
	cmd := newCall(c.ctx, s, full || a.server.scripts.lacks(s, c.sent), keys, args)
	// A script and its WAIT need a connection to themselves.
	if c.e.Replicas.N > 0 {
		return x.confirm(c, key, cmd)
	}
	// The application's client routes the command.
	if engine == nil {
		return x.process(c.ctx, c.wait, x.anywhere, x.rdb, cmd)
	}
	a = engine.send(c, cmd)
	a.server = engine.server
	if a.err != nil {
		x.reroute(c, engine, cmd, &a)
	}
	return a
}

// reroute has the application's client send a copy of cmd, if that helps after the answer a of an engine.
func (x *Executor) reroute(c *try, g *engine, cmd *call, a *answer) {
	switch {
	case isRedirect(a.err): // an engine is bound to one node; the Cluster client follows
	case errors.Is(a.err, redis.ErrClosed):
		// The node has left the Cluster, or the client has been closed: the latter shows.
		x.drop(g)
	default:
		return
	}
	*a = x.process(c.ctx, c.wait, x.anywhere, x.rdb, newCopy(c.ctx, cmd))
}

// processor is a client, or what else sends a command on a connection of its own.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// process has rdb send cmd on a connection of its own, for a caller that waits for the answer until wait ends.
func (x *Executor) process(caller, wait context.Context, at *server, rdb processor, cmd *call) answer {
	u := newUnderWay(keysOf(cmd))
	ctx, cancel := context.WithCancel(caller)
	a := x.outside(wait, func() answer {
		// Also after a panic: others wait for it.
		defer x.late.end(u)
		err := rdb.Process(ctx, cmd)
		// A Cluster client has loaded its map for that.
		if err == nil {
			x.mapped.Store(true)
		}
		return answerTo(cmd, err)
	})
	if a.pending == nil {
		cancel()
	} else {
		if x.Unpipelined || at == x.anywhere { // in a pipeline commands keep their order
			x.late.giveUp(u, x.Patience)
		}
		pending := a.pending
		a.pending = func(ctx context.Context) answer {
			defer cancel() // it does not wait for a connection of the pool any more
			a := pending(ctx)
			a.server = at
			return a
		}
	}
	a.server = at
	return a
}

// Go runs f in a goroutine that Close waits for.
func (x *Executor) Go(f func()) { x.asides.Go(f) }

// OneNode reports whether all keys are on one Redis server.
func (x *Executor) OneNode() bool {
	_, one := x.rdb.(*redis.Client)
	return one
}

// dialTime is a little longer than go-redis tries to open a connection that is refused: five dials, with pauses between
// them. Until the dials end, the pipeline is not closed, and a Close of the application's client would wait for it at a
// mutex. While a goroutine waits for a mutex, the clock of a bubble of testing/synctest stops.
const dialTime = time.Second

// Close ends the engines and waits for the executor's goroutines, or for ctx: behind a
// dead server they last until their time-outs, and Close waits for one patience, but for dialTime at least. The
// application's client stays open. Calls that come later fail, with redis.ErrClosed, and send nothing.
func (x *Executor) Close(ctx context.Context) {
	x.end()
	x.mu.Lock()
	x.closed = true
	engines := x.engines
	x.engines = make(map[*redis.Client]*engine)
	x.latest.Store(nil)
	// From here on no engine is made, and no goroutine begins: engineAt and aside look at closed under mu.
	x.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, max(x.Patience, dialTime))
	defer cancel()
	var all goroutine.Group
	for _, e := range engines {
		all.Go(e.close)
	}
	all.Wait(ctx)
	x.asides.Wait(ctx)
}
