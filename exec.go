package relock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/lockerr"
)

// patienceFor is how long one copy of a command is waited for: about a second, or less if
// several copies are to fit into a shorter lease, but never less than a slow link needs.
func patienceFor(ttl time.Duration) time.Duration {
	return min(time.Second, max(minCopyPatience, ttl/4))
}

// minCopyPatience is what a slow link needs.
const minCopyPatience = 50 * time.Millisecond

// executor runs scripts on one Redis deployment, and knows of each call whether every
// copy of it was answered: all that is safe under lost replies rests on that.
//
// Commands go through go-redis' auto-pipelining, on engines of our own: full duplex, one
// for each master, with a read timeout that suits locks; one that comes alone goes past it.
// go-redis' resending is off for every command; the executor resends by itself, by two routes in
// turns: through the pipeline, where one stuck connection stalls all for its read timeout, or on a
// connection of the pool, where there may be none to be had.
type executor struct {
	rdb      redis.UniversalClient
	now      clock.Clock
	patience time.Duration // for one copy of a command
	limits   limits

	// anywhere is what is known of the server of commands that have no engine.
	anywhere *server

	mu      sync.Mutex
	closed  bool
	engines map[*redis.Client]*engine

	// mapped says that a Cluster client has loaded its slot map, so that asking it for a
	// key's master does not block.
	mapped atomic.Bool

	// life is the context of what no caller waits for. It ends with close.
	life context.Context
	end  context.CancelFunc

	// asides are the goroutines of commands outside of the engines.
	asides group.Group
}

func newExecutor(rdb redis.UniversalClient, now clock.Clock, ttl time.Duration) *executor {
	x := &executor{
		rdb:      rdb,
		now:      now,
		patience: patienceFor(ttl),
		anywhere: serverOf(rdb),
		engines:  make(map[*redis.Client]*engine),
	}
	x.life, x.end = context.WithCancel(context.Background())
	return x
}

// route is how a copy of a command gets to Redis.
type route int

const (
	anyRoute route = iota
	piped          // through an engine's pipeline, with others
	pooled         // on a connection of the application's pool
)

// avoidAfter returns the route that a copy is not to go after so many that were not answered. The
// second goes past the pipeline: of the connections that there are all may be stuck, and the pool
// opens another. The third does not, for the pool may not be able to.
func avoidAfter(failures int) route {
	switch {
	case failures == 0:
		return anyRoute
	case failures%2 == 1:
		return piped
	default:
		return pooled
	}
}

// effort bounds one call.
type effort struct {
	attempts int           // copies that are sent; 0: until the context ends
	patience time.Duration // with each of them; 0: the executor's
	most     time.Duration // patience with an engine that answers others meanwhile, if more
	avoid    route         // that the first copy is not to go, if there is another
	replicas replicas      // that are to confirm what the script wrote

	// batchable says of a renewal that it may be sent together with others.
	batchable bool

	// needs is how many of the keys the script cannot do without, if not all. While their slot moves
	// Redis refuses a command with keys of which only some are there: then the others are left out.
	needs int
	// undoes says that the name given up may have more than the lock.
	undoes bool

	// othersFirst has Redis send what the script publishes before its answer, if it goes
	// directly: somebody waits for that. It takes another command, of no effect.
	othersFirst bool

	// enough, if it is not nil, is closed when nobody needs the answer any more: it is still
	// waited for, but no further copy is sent.
	enough <-chan struct{}
}

// needless reports whether nobody needs the answer any more.
func (e effort) needless() bool {
	select {
	case <-e.enough:
		return true
	default:
		return false
	}
}

// outcome is how a call ended.
type outcome struct {
	err error // nil: answered

	// sent is the time before the copy was sent that was answered: what it asked for, it
	// asked for then or later.
	sent clock.Instant

	// unconfirmed says of a script that was answered that too few replicas have confirmed
	// what it wrote.
	unconfirmed error

	// doubt says that a copy of the command was not answered, or failed half-way: it may
	// have been executed, or may be yet, however late. With a nil err an earlier copy is meant.
	doubt bool

	// permanent says of an err that trying again cannot help.
	permanent bool

	// refused says of an err that the script ran, and changed nothing: it is its answer.
	refused bool

	// unseen says of a doubt that what it is about is too little for anybody to have waited
	// for it.
	unseen bool

	// found is what the lease of a read hold had left on Redis before it was set or lengthened, if
	// that is less than it was meant to be; 0: that was not told.
	found time.Duration
}

// with completes an outcome by what the reply turned out to say.
func (o outcome) with(r *reply) outcome {
	switch {
	case o.err != nil:
	case r.bad != nil:
		o.err, o.doubt, o.permanent = r.bad, true, true
	case r.refusal != nil:
		o.err, o.permanent, o.refused = r.refusal, true, true
	}
	return o
}

// call is a command that go-redis sends once.
type call struct{ *redis.Cmd }

// NoRetry switches go-redis' resending off.
func (call) NoRetry() bool { return true }

// run executes a script until it is answered, cannot be, e is spent or ctx ends. It
// returns as soon as ctx ends; a copy that is on its way then will still be executed. A
// ctx that has ended before sends nothing.
func (x *executor) run(ctx context.Context, e effort, s *script, keys []any, args ...any) (*reply, outcome) {
	if e.patience == 0 {
		e.patience = x.patience
	}
	var out outcome
	var began clock.Instant
	at := x.anywhere
	if e.attempts == 1 {
		defer x.lookSoon(ctx, e, keys[0].(string)).Stop()
	}
	for attempt := 1; ; attempt++ {
		if ctx.Err() != nil {
			return &reply{}, x.givenUp(ctx, out, at, began)
		}
		if out.sent = x.now(); attempt == 1 {
			began = out.sent
		}
		a := x.send(ctx, e, s, keys, args, out.sent)
		if e.needs > 0 && e.needs < len(keys) && isTryAgain(a.err) {
			keys = keys[:e.needs]
			a = x.send(ctx, e, s, keys, args, out.sent)
		}
		at = a.server
		err, v := a.err, s.judge(a.err)
		if v.answered {
			at.answered()
			out.err, out.permanent, out.unconfirmed = nil, false, lockerr.Fault(a.unconfirmed)
			return newReply(a.value), out
		}
		out.doubt = out.doubt || !v.notExecuted
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) { // that is not Redis' word
			return &reply{}, x.givenUp(ctx, out, at, began)
		}
		if out.err == nil || telling(err) >= telling(out.err) {
			out.err, out.permanent = err, v.permanent
		}
		at.learn(err, x.now())
		if ctx.Err() != nil {
			return &reply{}, x.givenUp(ctx, out, at, began)
		}
		if cluster, ok := x.rdb.(*redis.ClusterClient); ok && v.resend {
			cluster.ReloadState(ctx) // in the background: by itself it would look every 10 s
		}
		if !v.resend || attempt == e.attempts || e.needless() {
			out.err = lockerr.Fault(x.explain(ctx, e, at, attempt, out.err))
			return &reply{}, out
		}
		e.avoid = avoidAfter(attempt)
		clock.Pause(ctx, clock.Backoff(attempt))
	}
}

// abandoned is the outcome of a call that ctx ended: the reason is the context's, and
// Redis' last word stays readable.
func (o outcome) abandoned(ctx context.Context) outcome {
	if o.err == nil || errors.Is(o.err, errNoAnswer) {
		o.err = lockerr.Ended(ctx)
	} else {
		o.err = fmt.Errorf("%w; the last try: %w", lockerr.Ended(ctx), lockerr.Fault(o.err))
	}
	return o
}

var (
	// errNoAnswer is what one copy of a command failed with when its time was up.
	errNoAnswer = errors.New("no answer from Redis")
	// errNotSent says that a copy has not got as far as the master of its key.
	errNotSent = errors.New("not sent for want of a known master or a free connection")
)

// noAnswerWithin is errNoAnswer after so long. Its words are made when it is read: every command
// names the silence that would end it, and few meet one.
type noAnswerWithin time.Duration

func (n noAnswerWithin) Error() string {
	return fmt.Sprintf("%v within %v", errNoAnswer, time.Duration(n))
}

func (n noAnswerWithin) Unwrap() error { return errNoAnswer }

func (noAnswerWithin) OwnEnd() {}

// silent reports whether err says no more than that time was up: also that of getting a connection.
func silent(err error) bool {
	return errors.Is(err, errNoAnswer) || errors.Is(err, context.DeadlineExceeded)
}

// send sends one copy, by its digest and, if Redis does not know that, in full.
func (x *executor) send(ctx context.Context, e effort, s *script, keys, args []any, sent clock.Instant) answer {
	attempt, cancel := x.limits.within(ctx, max(e.patience, e.most))
	defer cancel()
	named := func() answer { return x.dispatch(attempt, e, keys, newCall(attempt, "evalsha", s.digest, keys, args)) }
	full := func() answer { return x.dispatch(attempt, e, keys, newCall(attempt, "eval", s.source, keys, args)) }
	a := named()
	switch {
	case !unknownScript(a.err):
	case e.replicas.n > 0: // that takes its time, and few do it at once
		a = full()
	default:
		waiting, cancel := context.WithTimeout(attempt, e.patience/loadShare)
		defer cancel()
		a = x.sendUnknown(waiting, a.server, s, sent, named, full)
	}
	if a.err != nil && attempt.Err() != nil && ctx.Err() == nil && !judge(a.err).notExecuted {
		a.err = noAnswerWithin(max(e.patience, e.most))
	}
	return a
}

// answer is what became of one copy of a command.
type answer struct {
	value       any
	unconfirmed error // see outcome
	err         error

	server *server // that the command was sent to, or was to be
}

func newCall(ctx context.Context, name string, script any, keys []any, args []any) call {
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, name, script, len(keys))
	line = append(line, keys...)
	cmd := redis.NewCmd(ctx, append(line, args...)...)
	cmd.SetFirstKeyPos(3)
	return call{cmd}
}

// dispatch sends cmd to the master of its keys and waits for its answer, or for ctx. After ctx
// has ended the command belongs to go-redis alone: it is not touched again.
func (x *executor) dispatch(ctx context.Context, e effort, keys []any, cmd call) (a answer) {
	defer guard.Recover(&a.err)
	a.server = x.anywhere
	key := keys[0].(string)
	if e.replicas.n > 0 {
		return x.confirm(ctx, e.replicas, key, cmd)
	}
	engine := x.engineOf(ctx, key)
	if engine == nil {
		return x.process(ctx, nil, cmd)
	}
	a.server = engine.server // also of a panic
	if e.avoid == piped || engine.pipe.Load() == nil {
		a = x.process(ctx, engine, cmd)
	} else {
		a = engine.send(ctx, e, cmd)
	}
	switch {
	case a.err == nil:
	case redis.HasErrorPrefix(a.err, "MOVED"), redis.HasErrorPrefix(a.err, "ASK"):
		// An engine is bound to one node; the Cluster client follows.
		return x.process(ctx, nil, newCopy(ctx, cmd))
	case redis.IsReadOnlyError(a.err):
		x.demote(engine)
	case errors.Is(a.err, redis.ErrClosed):
		// The node has left the Cluster, or the client has been closed: the latter shows.
		x.drop(engine)
		return x.process(ctx, nil, newCopy(ctx, cmd))
	}
	return a
}

// newCopy returns a fresh command with the words of one that go-redis has had.
func newCopy(ctx context.Context, cmd call) call {
	again := redis.NewCmd(ctx, cmd.Args()...)
	again.SetFirstKeyPos(3)
	return call{again}
}

// process runs cmd outside of the engine, on a connection of its own: that of e's node, or
// wherever the application's client routes it.
func (x *executor) process(ctx context.Context, e *engine, cmd call) answer {
	a := x.outside(ctx, func() answer {
		var err error
		switch {
		case e == nil:
			err = x.rdb.Process(ctx, cmd)
		case e.demoted.Load():
			err = x.processDemoted(ctx, e, cmd)
		default:
			err = e.plain.Process(ctx, cmd)
		}
		if err == nil {
			x.mapped.Store(true)
		}
		return answerTo(cmd, err)
	})
	if a.server = x.anywhere; e != nil {
		a.server = e.server
	}
	return a
}

// close ends the engines and waits for the executor's goroutines, or for ctx: behind a
// dead server they last until their time-outs. The application's client stays open.
func (x *executor) close(ctx context.Context) {
	x.end()
	x.mu.Lock()
	x.closed = true
	engines := x.engines
	x.engines = make(map[*redis.Client]*engine)
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
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
