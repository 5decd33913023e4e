package redisexec

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/lockerr"
)

// CallOptions bounds one call.
type CallOptions struct {
	Attempts    int           // copies that are sent; 0: until the context ends
	Patience    time.Duration // for the first of them; 0: the executor's
	MaxPatience time.Duration // for each of them, if more; 0: a quarter of the executor's lease
	Replicas    Replicas      // that have to confirm the writes of the script

	// Unanswered, if it is not nil, is called for each copy that was not answered in time, or was refused temporarily,
	// when another copy will be sent. It runs on the goroutine of the call, and delays it.
	Unanswered func(err error)

	// RequiredKeys is how many of the keys, from the first on, the script needs; 0: all of them. Redis refuses a command
	// if only some of its keys are on the node while a slot moves, or if the user may not use one of them. Then the call
	// continues without the keys that it does not need.
	RequiredKeys int

	// Enough, if it is not nil, is closed when the answer is no longer needed: the call still
	// waits for it, but sends no further copy.
	Enough <-chan struct{}

	// Renews: the command is for a hold that exists. If replicas have to confirm it, it does not wait behind scripts that may yet
	// acquire a lock.
	Renews bool
	// Bundled: the command is a renewal that may be sent together with others.
	Bundled bool
	// Undoes: the name that is released may have more than the lock. Then the call waits for the end of a move of the
	// slot: a key that RequiredKeys leaves out would keep what the name has there.
	Undoes bool
}

// Needless reports whether the answer is not needed any more.
func (e CallOptions) Needless() bool { return goroutine.Closed(e.Enough) }

// growing returns the patience with the nth copy of a call: twice the patience with the previous copy. It is bounded so that all
// copies fit into the lease, and another copy fits into the rest of ctx.
func (e CallOptions) growing(ctx context.Context, n int) time.Duration {
	// mutant: patience-fixed/1
	return e.atMost(ctx, min(e.Patience<<min(n-1, 10), max(e.Patience, e.MaxPatience)))
}

// atMost returns d, bounded by half of the rest of ctx, unless that is less than MinCopyPatience.
func (e CallOptions) atMost(ctx context.Context, d time.Duration) time.Duration {
	if end, ends := ctx.Deadline(); ends {
		d = min(d, max(MinCopyPatience, time.Until(end)/2))
	}
	return min(d, max(mostPatience, e.Patience))
}

// Outcome is the outcome of a call.
type Outcome struct {
	Err error // nil: answered

	// Sent is the time before the answered copy was sent: the command was executed then or later.
	Sent clock.Instant

	// Unconfirmed: the script was answered, but too few replicas have confirmed its writes.
	Unconfirmed error

	// Ambiguous: a copy of the command was not answered, or failed half-way. It may have been
	// executed, or may still be executed, however late. If Err is nil, this is about an earlier copy.
	Ambiguous bool

	// Permanent: another try cannot help.
	Permanent bool

	// Refused: the script ran and changed nothing; Err is its answer.
	Refused bool

	// Unobserved: the call is ambiguous, but no waiter can have observed its possible effect. Only a quorum
	// sets it: fewer nodes than a majority may have executed it, or may still execute it.
	Unobserved bool

	// LeaseLeft is the rest of the lease of a read hold on Redis before it was set or extended, if
	// it was less than this hold had set; 0: not reported. The protocol sets it, from the reply.
	LeaseLeft time.Duration
}

// Late reports whether a copy of the command may still be executed, with an effect that others observe.
func (o Outcome) Late() bool { return o.Ambiguous && !o.Unobserved }

// call is a command that go-redis sends once.
type call struct {
	redis.Cmd
	room  [10]any // for the words of most
	asked atomic.Bool

	// These are a pipeline's.
	done    chan struct{} // closed at the end, after which err is set; nil: its caller reads the answer
	err     error
	limiter redis.Limiter // that gets the result of its batch; nil: none, or another command has it
}

// Args returns the words, and records that it was called: otherwise go-redis has not written the command.
func (c *call) Args() []any {
	if !c.asked.Load() {
		c.asked.Store(true)
	}
	return c.Cmd.Args()
}

// NoRetry switches go-redis' resending off.
func (*call) NoRetry() bool { return true } // mutant: go-redis-resends

// Abandoned returns the outcome of a call that ctx ended: the error matches the context's, and
// contains the last error of Redis.
func (o Outcome) Abandoned(ctx context.Context) Outcome {
	if o.Err == nil || errors.Is(o.Err, lockerr.ErrNoAnswer) {
		o.Err = lockerr.Ended(ctx)
	} else {
		o.Err = fmt.Errorf("%w; last attempt: %w", lockerr.Ended(ctx), lockerr.Fault(o.Err))
	}
	return o
}

// newCall returns the command that runs s, which it contains in full or by its digest.
func newCall(ctx context.Context, s *Script, full bool, keys, args []any) *call {
	c := new(call)
	words := append(c.room[:0], "evalsha", s.Digest(), len(keys))
	if full {
		words[0], words[1] = "eval", s.Source()
	}
	words = append(words, keys...)
	c.Cmd = *redis.NewCmd(ctx, append(words, args...)...)
	c.SetFirstKeyPos(3)
	return c
}

// keysOf returns the keys of a command.
func keysOf(cmd *call) []any {
	args := cmd.Cmd.Args()
	return args[3 : 3+args[2].(int)]
}

// newCopy returns a new command with the words of one that go-redis has used.
func newCopy(ctx context.Context, cmd *call) *call {
	again := &call{Cmd: *redis.NewCmd(ctx, cmd.Cmd.Args()...)}
	again.SetFirstKeyPos(3)
	return again
}
