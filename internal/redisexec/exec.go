package redisexec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/lockerr"
)

// A call sends copies of one command, one after the other:
//
//	begins --a copy is sent--> waits --answered-------------------------------> done
//	   ^                         |  \--an error that no other copy can help---> failed
//	   |                         |   \--the last copy, or no one needs another-> failed
//	   +--a pause-- no answer in time, or refused for now
//	any --ctx ends--> given up, at once
//
// The goroutine of the caller moves it, and no other. A copy has a life of its own: once go-redis has it, no one
// can take it back.
//
// Invariants:
//   - A copy is executed once at most, because go-redis does not resend. But that may be at any time: after the
//     call has ended, and after commands that were sent later.
//   - A copy is sent only when the one before was refused, or waited for in vain.
//   - Ambiguous is never taken back: the answer to one copy says nothing of those before.
//   - Sent is from before the copy was sent that was answered. So a lease that counts from it ends too early
//     rather than too late.
//   - A copy that was given up is not touched again: go-redis may still read its words.
//
// What can come late: the execution of a copy that was given up. Its answer is thrown away by go-redis.

// PatienceFor is how long one copy of a command is waited for: about a second, or less if
// several copies are to fit into a shorter lease, but never less than a slow link needs.
func PatienceFor(ttl time.Duration) time.Duration {
	return min(time.Second, max(MinCopyPatience, ttl/4))
}

// MinPatience is the least time a command is waited for, however close the end of a lease is.
const MinPatience = 10 * time.Millisecond

// MinCopyPatience is what a slow link needs.
const MinCopyPatience = 50 * time.Millisecond

// Executor runs scripts on one Redis deployment, and knows of each call whether every
// copy of it was answered: all that is safe under lost replies rests on that.
//
// Commands go through go-redis' auto-pipelining, on engines of our own: full duplex, one
// for each master, with a read timeout that suits locks; one that comes alone goes past it.
// go-redis' resending is off for every command; the executor resends by itself, by two routes in
// turns: through the pipeline, where one stuck connection stalls all for its read timeout, or on a
// connection of the pool, where there may be none to be had. Unpipelined, the first is a connection
// of the other pool of the application's client, which go-redis keeps for pipelines.
type Executor struct {
	// Now is the clock that it times its copies by.
	Now clock.Clock
	// Patience is how long one copy of a command is waited for.
	Patience time.Duration
	// Unpipelined has each command go by itself, on a connection of the application's pool. It is
	// set before the first.
	Unpipelined bool

	rdb    redis.UniversalClient
	limits Limits

	// anywhere is what is known of the server of commands that have no engine.
	anywhere *server

	mu      sync.Mutex
	closed  bool
	engines map[*redis.Client]*engine

	// mapped says that a Cluster client has loaded its slot map, so that asking it for a
	// key's master does not block.
	mapped atomic.Bool

	// life is the context of what no caller waits for. It ends with Close.
	life context.Context
	end  context.CancelFunc

	// asides are the goroutines of commands outside of the engines, and late those of their
	// commands that no caller waits for any more; insides are callers that send their own.
	asides, insides group.Group
	late            late
}

// New returns an executor of scripts for leases of ttl on what rdb leads to. It has to be
// closed.
func New(rdb redis.UniversalClient, now clock.Clock, ttl time.Duration) *Executor {
	x := &Executor{
		rdb:      rdb,
		Now:      now,
		Patience: PatienceFor(ttl),
		anywhere: serverOf(rdb),
		engines:  make(map[*redis.Client]*engine),
	}
	x.life, x.end = context.WithCancel(context.Background())
	return x
}

// Run executes a script until it is answered, cannot be, e is spent or ctx ends. It
// returns as soon as ctx ends; a copy that is on its way then will still be executed. A
// ctx that has ended before sends nothing.
func (x *Executor) Run(ctx context.Context, e CallOptions, s *Script, keys []any, args ...any) (any, Outcome) {
	if e.Patience == 0 {
		e.Patience = x.Patience
	}
	var out Outcome
	var began clock.Instant
	at := x.anywhere
	// A call of one copy is in a hurry. It has no second copy by which to find out what keeps the first one silent.
	if e.Attempts == 1 {
		defer x.lookSoon(ctx, e, keys[0].(string)).Stop()
	}
	for attempt := 1; ; attempt++ {
		if ctx.Err() != nil {
			return nil, x.givenUp(ctx, out, at, began)
		}
		if out.Sent = x.Now(); attempt == 1 {
			began = out.Sent
		}
		a := x.send(ctx, e, s, keys, args, out.Sent)
		// Refused before its first write, for keys that are not required. This is no further attempt: the answer to
		// what is sent now counts from the same time, which is too early rather than too late.
		if e.RequiredKeys > 0 && e.RequiredKeys < len(keys) && lacksKeys(a.err, e.Undoes) {
			keys = keys[:e.RequiredKeys]
			a = x.send(ctx, e, s, keys, args, out.Sent)
		}
		at = a.server
		err, v := a.err, s.judge(a.err)
		// mutant: deadline-from-reply
		if v.answered {
			at.answered()
			out.Err, out.Permanent, out.Unconfirmed = nil, false, lockerr.Fault(a.unconfirmed)
			return a.value, out
		}
		out.Ambiguous = out.Ambiguous || !v.notExecuted
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) { // that is not Redis' word
			return nil, x.givenUp(ctx, out, at, began)
		}
		// Not simply the last error: a silence that follows a refused connection says less than that.
		if out.Err == nil || telling(err) >= telling(out.Err) {
			out.Err, out.Permanent = err, v.permanent
		}
		at.learn(err, x.Now())
		// It has ended since: what Redis said is told together with that.
		if ctx.Err() != nil {
			return nil, x.givenUp(ctx, out, at, began)
		}
		if cluster, ok := x.rdb.(*redis.ClusterClient); ok && v.resend {
			cluster.ReloadState(ctx) // in the background: by itself it would look every 10 s
		}
		if !v.resend || attempt == e.Attempts || e.Needless() {
			out.Err = lockerr.Fault(x.explain(ctx, e, at, attempt, out.Err))
			return nil, out
		}
		e.Avoid = AvoidAfter(attempt)
		clock.Pause(ctx, clock.Backoff(attempt))
	}
}

// errNotSent says that a copy has not got as far as the master of its key.
var errNotSent = errors.New("not sent: no master is known, or no connection is free")

// errUnsettled says that no node of a Cluster took a copy. That is so for a moment at the end of a slot's move.
var errUnsettled = errors.New("the nodes of the Cluster do not agree which of them serves the slot")

// errOneNode says that a client of one server was made for a node of a Cluster, which serves only some of the slots.
var errOneNode = errors.New("this server is a node of a Cluster: use a *redis.ClusterClient")

// silent reports whether err says no more than that time was up: also that of getting a connection.
func silent(err error) bool {
	return errors.Is(err, lockerr.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded)
}

// send sends one copy, by its digest and, if Redis does not know that, in full.
func (x *Executor) send(ctx context.Context, e CallOptions, s *Script, keys, args []any, sent clock.Instant) answer {
	attempt, cancel := x.limits.within(ctx, max(e.Patience, e.MaxPatience))
	defer cancel()
	a := x.dispatch(attempt, e, keys, newCall(attempt, "evalsha", s.Digest, keys, args))
	if unknownScript(a.err) { // that is rare: only then args are to outlive the call
		a = x.sendUnknown(attempt, a.server, e, s, keys, slices.Clone(args), sent)
	}
	// The time of this copy was over, in whatever words go-redis says so. An error of a copy that was surely not
	// executed says more than that, and stays.
	if a.err != nil && attempt.Err() != nil && ctx.Err() == nil && !judge(a.err).notExecuted {
		a.err = lockerr.NoAnswerWithin(max(e.Patience, e.MaxPatience))
	}
	if isRedirect(a.err) {
		switch x.rdb.(type) {
		case *redis.ClusterClient:
			a.err = fmt.Errorf("%w: %w", errUnsettled, a.err)
		case *redis.Client:
			a.err = fmt.Errorf("%w: %w", errOneNode, a.err)
		}
	}
	return a
}

// answer is what became of one copy of a command.
type answer struct {
	value       any
	unconfirmed error // see Outcome
	err         error

	server *server // that the command was sent to, or was to be
}

// dispatch sends cmd to the master of its keys and waits for its answer, or for ctx. After ctx
// has ended the command belongs to go-redis alone: it is not touched again.
func (x *Executor) dispatch(ctx context.Context, e CallOptions, keys []any, cmd *call) (a answer) {
	defer guard.Recover(&a.err)
	a.server = x.anywhere
	key := keys[0].(string)
	// A script and its WAIT need a connection to themselves.
	if e.Replicas.N > 0 {
		return x.confirm(ctx, e.Replicas, key, cmd)
	}
	engine := x.engineOf(ctx, key)
	// The application's client finds the way, as it always does.
	if engine == nil {
		return x.process(ctx, nil, e, cmd)
	}
	a.server = engine.server // also of a panic
	if e.Avoid == piped || engine.demoted.Load() {
		a = x.process(ctx, engine, e, cmd)
	} else {
		a = engine.send(ctx, e, cmd)
	}
	switch {
	case a.err == nil:
	case isRedirect(a.err):
		// An engine is bound to one node; the Cluster client follows.
		return x.process(ctx, nil, e, newCopy(ctx, cmd))
	// The next copy goes by another connection.
	case redis.IsReadOnlyError(a.err):
		x.demote(engine)
	case errors.Is(a.err, redis.ErrClosed):
		// The node has left the Cluster, or the client has been closed: the latter shows.
		x.drop(engine)
		return x.process(ctx, nil, e, newCopy(ctx, cmd))
	}
	return a
}

// process runs cmd outside of the pipeline, on a connection of its own: that of g's node, or
// wherever the application's client routes it. A first copy does not overtake commands that were
// given up; those after it are for when something is stuck.
func (x *Executor) process(ctx context.Context, g *engine, e CallOptions, cmd *call) answer {
	at := x.anywhere
	if g != nil {
		at = g.server
	}
	c := newUnderWay(keysOf(cmd))
	if e.Avoid == anyRoute && !x.late.await(ctx, c.keys) {
		return answer{err: errNotSent, server: at}
	}
	a := x.outside(ctx, func() answer {
		// Also after a panic: others wait for it.
		defer x.late.end(c)
		err := x.processBy(ctx, g, e, cmd)
		// A Cluster client has loaded its map for that.
		if err == nil {
			x.mapped.Store(true)
		}
		return answerTo(cmd, err)
	}, func() { x.late.giveUp(c) })
	a.server = at
	return a
}

// processBy sends cmd the way that g and e say.
func (x *Executor) processBy(ctx context.Context, g *engine, e CallOptions, cmd *call) error {
	switch {
	case g == nil:
		return x.rdb.Process(ctx, cmd)
	case g.demoted.Load():
		return x.processDemoted(ctx, g, cmd)
	case e.Avoid == pooled:
		return g.processApart(ctx, cmd)
	default:
		return g.plain.Process(ctx, cmd)
	}
}

// Go runs f in a goroutine that Close waits for.
func (x *Executor) Go(f func()) { x.asides.Go(f) }

// OneNode reports whether all keys are on one Redis server.
func (x *Executor) OneNode() bool {
	_, one := x.rdb.(*redis.Client)
	return one
}

// Close ends the engines and waits for the executor's goroutines, or for ctx: behind a
// dead server they last until their time-outs. The application's client stays open. Calls that come
// later fail, with redis.ErrClosed, and send nothing.
func (x *Executor) Close(ctx context.Context) {
	x.end()
	x.mu.Lock()
	x.closed = true
	engines := x.engines
	x.engines = make(map[*redis.Client]*engine)
	// From here on no engine is made, and no goroutine begins: engineAt and aside look at closed under mu.
	x.mu.Unlock()

	done := make(chan struct{})
	go func() {
		defer close(done)
		var all sync.WaitGroup
		for _, e := range engines {
			all.Go(e.close)
		}
		all.Wait()
		x.asides.Wait(ctx)
		x.insides.Wait(ctx)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
