package redisexec

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/lockerr"
)

// CallOptions bounds one call.
type CallOptions struct {
	Attempts    int           // copies that are sent; 0: until the context ends
	Patience    time.Duration // with the first of them; 0: the executor's
	MaxPatience time.Duration // with each of them, if more; 0: a quarter of the executor's lease
	Replicas    Replicas      // that are to confirm what the script wrote

	// Unanswered, if it is not nil, is told of each copy that was not answered in its time, or was refused for now,
	// when another will be sent. It runs on the goroutine of the call, and delays it.
	Unanswered func(err error)

	// Batchable says of a renewal that it may be sent together with others.
	Batchable bool

	// RequiredKeys is how many of the keys, from the first on, the script cannot do without; 0: all of them. Redis
	// refuses a command while a slot moves and only some of its keys are there, and if the user may not touch
	// one of them. Then the call goes on without the others.
	RequiredKeys int
	// Undoes says that the name given up may have more than the lock. Then a slot that moves is waited for: a
	// key that was left out would keep what the name has there.
	Undoes bool

	// Enough, if it is not nil, is closed when the answer is not needed any more: it is still
	// waited for, but no further copy is sent.
	Enough <-chan struct{}
}

// Needless reports whether the answer is not needed any more.
func (e CallOptions) Needless() bool { return group.Closed(e.Enough) }

// growing returns the patience with the nth copy of a call: twice that of the previous copy. It is bounded so that all
// copies fit into the lease, and another copy fits into the rest of ctx.
func (e CallOptions) growing(ctx context.Context, n int) time.Duration {
	// mutant: patience-fixed/1
	return e.atMost(ctx, min(e.Patience<<min(n-1, 10), max(e.Patience, e.MaxPatience)))
}

// atMost returns d, but no more than half of what ctx has left, unless that is less than the usual patience.
func (e CallOptions) atMost(ctx context.Context, d time.Duration) time.Duration {
	if end, ends := ctx.Deadline(); ends {
		d = min(d, max(MinCopyPatience, time.Until(end)/2))
	}
	return min(d, max(mostPatience, e.Patience))
}

// Outcome is how a call ended.
type Outcome struct {
	Err error // nil: answered

	// Sent is the time before the copy was sent that was answered: what it asked for, it
	// asked for then or later.
	Sent clock.Instant

	// Unconfirmed says of a script that was answered that too few replicas have confirmed
	// what it wrote.
	Unconfirmed error

	// Ambiguous says that a copy of the command was not answered, or failed half-way: it may
	// have been executed, or may be yet, however late. With a nil Err an earlier copy is meant.
	Ambiguous bool

	// Permanent says of an Err that trying again cannot help.
	Permanent bool

	// Refused says of an Err that the script ran, and changed nothing: it is its answer.
	Refused bool

	// Unobserved says of an ambiguous call that no waiter can have observed its possible effect. Only a quorum can
	// tell: fewer nodes than a majority may have executed it, or may execute it yet.
	Unobserved bool

	// LeaseLeft is what the lease of a read hold had left on Redis before it was set or lengthened, if
	// that is less than it was meant to be; 0: that was not told. The protocol writes it, from the reply.
	LeaseLeft time.Duration
}

// Late reports whether a copy of the command may be executed yet, with an effect that others observe.
func (o Outcome) Late() bool { return o.Ambiguous && !o.Unobserved }

// call is a command that go-redis sends once.
type call struct {
	*redis.Cmd
	room  [10]any // for the words of most
	asked atomic.Bool

	// What it is submitted with, see crowd, and then what has come of that.
	ctx       context.Context
	submitted bool
	queued    queued
}

// Args returns the words, and records that it was asked for them: without that go-redis has not written the command.
func (c *call) Args() []any {
	if !c.asked.Load() {
		c.asked.Store(true)
	}
	return c.Cmd.Args()
}

// NoRetry switches go-redis' resending off.
func (*call) NoRetry() bool { return true } // mutant: go-redis-resends

// Abandoned is the outcome of a call that ctx ended: the reason is the context's, and
// Redis' last word stays readable.
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
	words := append(c.room[:0], "evalsha", s.Digest, len(keys))
	if full {
		words[0], words[1] = "eval", s.Source
	}
	words = append(words, keys...)
	c.Cmd = redis.NewCmd(ctx, append(words, args...)...)
	c.SetFirstKeyPos(3)
	return c
}

// keysOf returns the keys of a command.
func keysOf(cmd *call) []any {
	args := cmd.Cmd.Args()
	return args[3 : 3+args[2].(int)]
}

// newCopy returns a fresh command with the words of one that go-redis has had.
func newCopy(ctx context.Context, cmd *call) *call {
	again := &call{Cmd: redis.NewCmd(ctx, cmd.Cmd.Args()...)}
	again.SetFirstKeyPos(3)
	return again
}
