package quorum

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// question is what is put to the nodes of a quorum.
type question[T any] struct {
	names []string // that the locks are held by, or are to be
	ask   func(n *node, e redisexec.CallOptions) (T, redisexec.Outcome)
	yes   func(vote[T]) bool // whether an answer is in favour
	no    error              // what one means that is not; nil: lockerr.ErrNotOnRedis

	// attended says that the result is no if most have answered, though too few with a yes.
	// Otherwise it is no only if enough have said no to rule a majority out.
	attended bool

	// lenient says that the result is yes if most have answered and the others, of which no
	// answer is to be had, might have said it.
	lenient bool

	// repeated says that what comes later under the same names says it again: a node that is silent,
	// and so has come to it too late, is not asked any more. It would else be owed every renewal
	// and re-entry, one after the other.
	repeated bool

	// mend deals with a node that has failed to do what the quorum did, when that is known.
	mend func(n *node)
}

// ballot is one question that was put to nodes of a quorum at once. It is over when enough
// of them have answered to know the result: the others are not waited for, however long
// they take.
type ballot[T any] struct {
	question[T]
	majority int
	report   func(Failure) error
	nodes    []*node
	votes    []vote[T]     // by node
	sent     clock.Instant // when the question was put: before any node got it
	closed   bool          // who has not voted does not take part any more
	unsent   error         // why the question was put to no node

	box    chan indexed[T]
	enough chan struct{} // closed when the result is known
	final  result
}

// vote is the answer of one node.
type vote[T any] struct {
	cast   bool // it has come
	answer T
	out    redisexec.Outcome
}

type indexed[T any] struct {
	i int
	vote[T]
}

// result is the outcome of a ballot.
type result int

const (
	undecided    result = iota
	carried             // most nodes said yes
	rejected            // no majority can be had: that is what they answered
	inconclusive        // no majority can be had: too few have answered
)

// put puts a question to nodes of q. A ctx that has ended asks no node; one that ends later
// does not take the question back.
func put[T any](ctx context.Context, q *Quorum, nodes []*node, e redisexec.CallOptions, question question[T]) *ballot[T] {
	b := &ballot[T]{
		question: question,
		majority: q.majority(),
		report:   q.env.Failure,
		nodes:    nodes,
		votes:    make([]vote[T], len(nodes)),
		sent:     q.env.Now().After(-expiryPrecision),
		box:      make(chan indexed[T], len(nodes)),
		enough:   make(chan struct{}),
	}
	if ctx.Err() != nil {
		b.unsent = lockerr.Ended(ctx)
		return b
	}
	e.Enough = b.enough
	for i, n := range nodes {
		turn := n.enqueue(b.names)
		q.env.Go(func() {
			turn.await()
			began := q.env.Now()
			var answer T
			out := redisexec.Outcome{Err: lockerr.ErrNoAnswer}
			silent := began.Since(b.sent) >= cmp.Or(e.Patience, q.env.Patience)/2
			if !b.repeated || !silent || !e.Needless() {
				answer, out = b.ask(n, e)
			}
			if out.Err == nil {
				n.took.Store(int64(q.env.Now().Since(began)))
			}
			turn.pass()
			b.box <- indexed[T]{i, vote[T]{cast: true, answer: answer, out: out}}
			if out.Err != nil && b.mend != nil {
				<-b.enough
				if b.final == carried || b.final == rejected {
					b.mend(n)
				}
			}
		})
	}
	return b
}

// close says that the result is known: no further copy of the question need be sent.
func (b *ballot[T]) close() {
	b.final = b.result()
	close(b.enough)
}

// count waits for the result, or for ctx.
func (b *ballot[T]) count(ctx context.Context) result {
	b.await(ctx, b.decided)
	return b.result()
}

// countSoon is count for a question that need not be decided: when most nodes have answered
// without doing so, the others are waited for only for as long as rest says then.
func (b *ballot[T]) countSoon(ctx context.Context, rest func() time.Duration) result {
	b.await(ctx, func() bool { return b.decided() || b.quorate() })
	if !b.decided() && b.quorate() {
		b.linger(ctx, rest(), b.decided)
		b.closed = ctx.Err() == nil
	}
	return b.result()
}

// usual returns how long to wait for the nodes that have not voted: as long as they usually
// take, and for most. One that does not answer any more would keep those waiting who have split
// the votes.
func (b *ballot[T]) usual(now clock.Clock, most time.Duration) time.Duration {
	usual := now().Since(b.sent)
	for i, v := range b.votes {
		if !v.cast {
			usual = max(usual, time.Duration(b.nodes[i].took.Load()))
		}
	}
	return min(time.Millisecond+2*usual, most)
}

// quorate reports whether most nodes have answered.
func (b *ballot[T]) quorate() bool { return b.number(vote[T].answered) >= b.majority }

func (b *ballot[T]) decided() bool  { return b.result() != undecided }
func (b *ballot[T]) complete() bool { return b.open() == 0 }

// await takes votes until that is enough, or ctx ends.
func (b *ballot[T]) await(ctx context.Context, enough func() bool) {
	for !enough() && b.next(ctx) {
	}
}

// linger is await for d at most.
func (b *ballot[T]) linger(ctx context.Context, d time.Duration, enough func() bool) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	b.await(ctx, enough)
}

// next waits for one vote more. false: ctx has ended before.
func (b *ballot[T]) next(ctx context.Context) bool {
	if b.unsent != nil {
		return false
	}
	select {
	case v := <-b.box:
		b.votes[v.i] = v.vote
		return true
	case <-ctx.Done():
		return false
	}
}

// number returns how many votes which agrees to.
func (b *ballot[T]) number(which func(vote[T]) bool) int {
	n := 0
	for _, v := range b.votes {
		if which(v) {
			n++
		}
	}
	return n
}

func (v vote[T]) answered() bool { return v.cast && v.out.Err == nil }

// clean reports whether the node has answered every copy of the question.
func (v vote[T]) clean() bool { return v.answered() && !v.out.Ambiguous }

// doubtful returns the number of nodes that have not answered every copy of the question.
func (b *ballot[T]) doubtful() int { return len(b.votes) - b.number(vote[T].clean) }

func (b *ballot[T]) inFavour(v vote[T]) bool { return v.answered() && b.yes(v) }

// open returns the number of votes that are still out.
func (b *ballot[T]) open() int {
	return b.number(func(v vote[T]) bool { return !v.cast })
}

func (b *ballot[T]) result() result {
	majority, open := b.majority, b.open()
	if b.closed {
		open = 0
	}
	yes, answered := b.number(b.inFavour), b.number(vote[T].answered)
	against, limit := answered-yes, len(b.votes)-majority+1
	if b.attended {
		against, limit = answered, majority
	}
	switch {
	case yes >= majority:
		return carried
	case yes+open >= majority:
		return undecided
	case against >= limit:
		return rejected
	case against+open >= limit:
		return undecided
	case b.lenient && answered >= majority:
		return carried
	default:
		return inconclusive
	}
}

// outcome is what the ballot means for the call. It is in doubt if a node is that has, or
// might have, executed a copy of the question which it has not answered.
func (b *ballot[T]) outcome(ctx context.Context) redisexec.Outcome {
	if b.unsent != nil {
		return redisexec.Outcome{Err: b.unsent}
	}
	out := redisexec.Outcome{Sent: b.sent}
	permanent := 0
	for _, v := range b.votes {
		out.Ambiguous = out.Ambiguous || !v.cast || v.out.Ambiguous
		if v.out.Permanent {
			permanent++
		}
	}
	switch b.result() {
	case undecided:
		out.Err = fmt.Errorf("%w; %w", lockerr.Ended(ctx), b.failure(lockerr.ErrNoAnswer))
	case inconclusive:
		out.Err, out.Permanent = b.failure(nil), permanent > len(b.votes)-b.majority
	}
	return out
}

// failure tells what every node said that is not in favour, and of those that are still out,
// if anything is to be said of them.
func (b *ballot[T]) failure(open error) error {
	f := Failure{Nodes: len(b.votes), Needed: b.majority, Agreed: b.number(b.inFavour)}
	for i, v := range b.votes {
		why := v.out.Err
		switch {
		case b.inFavour(v):
			continue
		case !v.cast:
			if why = open; why != nil {
				why = b.nodes[i].plain.Exec.Explain(why)
			}
		case why == nil:
			why = cmp.Or(b.no, lockerr.ErrNotOnRedis)
		}
		if why != nil {
			f.Said = append(f.Said, Said{b.nodes[i].name, why})
		}
	}
	return b.report(f)
}

// Failure says that too few nodes could do what was asked.
type Failure struct {
	Nodes  int // of the quorum
	Needed int // of them, to agree
	Agreed int
	Said   []Said // by those that did not
}

// Said is what one node said.
type Said struct {
	Node string
	Err  error
}

// expiryPrecision is how much earlier than asked a key may expire, by the clock of its node:
// Redis counts in whole milliseconds.
const expiryPrecision = 2 * time.Millisecond
