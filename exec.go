package relock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
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
// go-redis' resending is off for every command; the executor resends by itself, and past a
// copy that was not answered it uses a connection outside of the engine, because one stuck
// connection stalls the engine for its read timeout.
type executor struct {
	rdb      redis.UniversalClient
	now      clock
	patience time.Duration // for one copy of a command
	limits   limits

	mu      sync.Mutex
	closed  bool
	engines map[*redis.Client]*engine

	// mapped says that a Cluster client has loaded its slot map, so that asking it for a
	// key's master does not block.
	mapped atomic.Bool

	// asides are the goroutines of commands outside of the engines.
	asides group
}

func newExecutor(rdb redis.UniversalClient, now clock, ttl time.Duration) *executor {
	return &executor{
		rdb:      rdb,
		now:      now,
		patience: patienceFor(ttl),
		engines:  make(map[*redis.Client]*engine),
	}
}

// effort bounds one call.
type effort struct {
	attempts int           // copies that are sent; 0: until the context ends
	patience time.Duration // with each of them; 0: the executor's
	most     time.Duration // patience with an engine that answers others meanwhile, if more
	aside    bool          // not even the first copy goes through the engine
	replicas replicas      // that are to confirm what the script wrote

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
	sent instant

	// unconfirmed says of a script that was answered that too few replicas have confirmed
	// what it wrote.
	unconfirmed error

	// doubt says that a copy of the command was not answered, or failed half-way: it may
	// have been executed, or may be yet, however late. With a nil err an earlier copy is meant.
	doubt bool

	// permanent says of an err that trying again cannot help.
	permanent bool

	// unseen says of a doubt that what it is about is too little for anybody to have waited
	// for it.
	unseen bool
}

// with completes an outcome by what the reply turned out to say.
func (o outcome) with(r *reply) outcome {
	switch {
	case o.err != nil:
	case r.bad != nil:
		o.err, o.doubt, o.permanent = r.bad, true, true
	case r.refusal != nil:
		o.err, o.permanent = r.refusal, true
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
	for attempt := 1; ; attempt++ {
		if ctx.Err() != nil {
			return &reply{}, out.abandoned(ctx)
		}
		out.sent = x.now()
		a := x.send(ctx, e, s, keys, args)
		err, v := a.err, judge(a.err)
		if v.answered {
			out.err, out.permanent, out.unconfirmed = nil, false, a.unconfirmed
			return newReply(a.value), out
		}
		out.doubt = out.doubt || !v.notExecuted
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) { // that is not Redis' word
			return &reply{}, out.abandoned(ctx)
		}
		if out.err == nil || !silent(err) { // silence explains nothing
			out.err, out.permanent = err, v.permanent
		}
		if ctx.Err() != nil {
			return &reply{}, out.abandoned(ctx)
		}
		if cluster, ok := x.rdb.(*redis.ClusterClient); ok && v.resend {
			cluster.ReloadState(ctx) // in the background: by itself it would look every 10 s
		}
		if !v.resend || attempt == e.attempts || e.needless() {
			if attempt > 1 { // somebody is to read it; a single copy is in a hurry
				out.err = x.diagnose(ctx, e, keys[0].(string), out.err)
			}
			if errors.Is(out.err, context.DeadlineExceeded) {
				out.err = &timeUpHere{out.err}
			}
			return &reply{}, out
		}
		e.aside = true
		pause(ctx, backoff(attempt))
	}
}

// abandoned is the outcome of a call that ctx ended: the reason is the context's, and
// Redis' last word stays readable.
func (o outcome) abandoned(ctx context.Context) outcome {
	if o.err == nil || errors.Is(o.err, errNoAnswer) {
		o.err = ended(ctx)
	} else {
		o.err = fmt.Errorf("%w; the last try: %w", ended(ctx), o.err)
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

// silent reports whether err says no more than that time was up: also that of getting a connection.
func silent(err error) bool {
	return errors.Is(err, errNoAnswer) || errors.Is(err, context.DeadlineExceeded)
}

// timeUpHere is an error that is not the end of the caller's context, though it may be that of one
// of ours.
type timeUpHere struct{ error }

func (t *timeUpHere) Is(target error) bool {
	return target != context.DeadlineExceeded && errors.Is(t.error, target)
}

func (t *timeUpHere) As(target any) bool { return errors.As(t.error, target) }

// diagnose adds to a silence what dialing says: that nobody listens, for instance. go-redis
// takes its time to find out, longer than a copy is waited for.
func (x *executor) diagnose(ctx context.Context, e effort, key string, err error) error {
	engine := x.engineOf(ctx, key)
	if engine == nil || !silent(err) {
		return err
	}
	dialing, cancel := context.WithTimeout(ctx, e.patience)
	defer cancel()
	waiting, cancel := context.WithTimeout(ctx, e.patience+minPatience) // a dialer names the server
	defer cancel()
	o := engine.plain.Options()
	dialed := x.outside(waiting, func() answer { // not every dialer minds its context: that for TLS does not
		conn, failure := o.Dialer(dialing, o.Network, o.Addr)
		if failure == nil {
			_ = conn.Close()
		}
		return answer{err: failure}
	})
	if dialed.err == nil || waiting.Err() != nil || errors.Is(dialed.err, redis.ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: %w", err, dialed.err)
}

// send sends one copy, by its digest and, if Redis does not know that, in full.
func (x *executor) send(ctx context.Context, e effort, s *script, keys []any, args []any) answer {
	attempt, cancel := x.limits.within(ctx, max(e.patience, e.most))
	defer cancel()
	key := keys[0].(string)
	a := x.dispatch(attempt, e, key, newCall(attempt, "evalsha", s.digest, keys, args))
	if a.err != nil && redis.HasErrorPrefix(a.err, "NOSCRIPT") {
		a = x.dispatch(attempt, e, key, newCall(attempt, "eval", s.source, keys, args))
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
}

func newCall(ctx context.Context, name string, script any, keys []any, args []any) call {
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, name, script, len(keys))
	line = append(line, keys...)
	cmd := redis.NewCmd(ctx, append(line, args...)...)
	cmd.SetFirstKeyPos(3)
	return call{cmd}
}

// dispatch sends cmd to the master of key and waits for its answer, or for ctx. After ctx
// has ended the command belongs to go-redis alone: it is not touched again.
func (x *executor) dispatch(ctx context.Context, e effort, key string, cmd call) answer {
	if e.replicas.n > 0 {
		return x.confirm(ctx, e.replicas, key, cmd)
	}
	engine := x.engineOf(ctx, key)
	var a answer
	if e.aside || engine == nil || engine.pipe.Load() == nil {
		a = x.process(ctx, engine, cmd)
	} else {
		a = engine.send(ctx, e, cmd)
	}
	switch {
	case engine == nil, a.err == nil:
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
	return x.outside(ctx, func() answer {
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
}

// outside runs f, which talks to Redis past the engines, and waits for its answer, or for ctx.
func (x *executor) outside(ctx context.Context, f func() answer) answer {
	answered := make(chan answer, 1)
	x.mu.Lock() // close waits for all that began before it
	if x.closed {
		x.mu.Unlock()
		return answer{err: redis.ErrClosed}
	}
	x.asides.Go(func() { answered <- f() })
	x.mu.Unlock()
	select {
	case a := <-answered:
		return a
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	}
}

// close ends the engines and waits for the executor's goroutines, or for ctx: behind a
// dead server they last until their time-outs. The application's client stays open.
func (x *executor) close(ctx context.Context) {
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
		x.asides.wait(ctx)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// backoff returns the pause after the nth failure in a row: 8 to 16 ms at first, doubling
// up to 256 to 512 ms.
func backoff(n int) time.Duration {
	return jitter(16 * time.Millisecond << min(n-1, 5))
}

// jitter returns a random duration between half of d and d.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
