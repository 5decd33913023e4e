package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// How a ballot goes:
//
//	put     gives the question a turn on each node, in the order of the calls, and starts a goroutine for each
//	        node. The goroutine waits for the turn, asks, and puts one vote into the box. The vote of a node that
//	        fails is an error.
//	count   takes votes from the box until the result is known, or ctx ends. countSoon gives up earlier, some
//	        time after most nodes have answered.
//	close   fixes the result. From then on no further copy is sent, and nodes that failed are mended.
//
// The function that puts a question always closes the ballot, because goroutines with a mend wait for that.
//
// The votes belong to the goroutine that counts. The other goroutines access only the box, and the result after it is
// fixed. So a ballot needs no mutex.
//
// What can come late: a vote. It stays in the box, which has room for all votes, and is never read. The effect of the
// command on that node is still covered: the outcome is ambiguous, or the node is mended.

// question is what is put to the nodes of a quorum.
type question[T any] struct {
	names []string // of the locks, now or afterwards; none for a question outside the order of names
	// ask sends the question to one node, in the goroutine of that node. It ends when the node has answered, or when
	// no copy was answered: see CallOptions.
	ask func(n *node, e redisexec.CallOptions) (T, redisexec.Outcome)
	yes func(vote[T]) bool // whether an answer is in favour
	no  error              // the meaning of an answer that is not in favour; nil: lockerr.ErrNotOnRedis

	// attended: if most nodes have answered, and too few with a yes, the result is rejected. It is for an owner that
	// wants the lock: the owner tries again, so the failure of a node need not be an error.
	// Without attended the result is rejected only if so many nodes have answered no that a majority is impossible: the
	// failure of a node does not end a hold.
	attended bool

	// lenient: if most nodes have answered, and the votes of the failed nodes could make a majority, the result is
	// carried. It is for a release: a hold is not lost because nodes are silent at its end.
	lenient bool

	// repeated marks a command that the next one under the same names supersedes. If a node's turn comes only after the
	// result is known, the command is not sent to it. Otherwise a node that was silent would later get each renewal and
	// re-entry that it missed, one after the other.
	repeated bool

	// mend repairs a node that failed to do what the quorum did. It is called in the goroutine of that node, after its
	// vote and after close, and only if the result is carried or rejected. With another result the call fails, and its
	// caller undoes the name on all nodes.
	mend func(n *node)
}

// ballot is one question that is put to nodes of a quorum at once. It ends when enough nodes have answered to determine
// the result, and does not wait for the others.
type ballot[T any] struct {
	question[T]
	majority int // of the quorum, even if only some of its nodes are asked
	report   func(Failure) error
	nodes    []*node
	votes    []vote[T]     // by node; only next writes them
	sent     clock.Instant // when the question was put, before any node got it: a lease counts from then
	closed   bool          // missing votes do not count any more; countSoon sets it
	unsent   error         // the reason why the question was put to no node

	box    chan indexed[T] // has room for the vote of each node, so no goroutine blocks
	enough chan struct{}   // closed when the result is known, or the caller has stopped waiting
	final  result          // written once, before enough is closed; read by mend after that
}

// vote is the answer of one node.
type vote[T any] struct {
	cast   bool // it has arrived; it may be an error
	answer T    // zero if the node did not answer
	out    redisexec.Outcome
}

type indexed[T any] struct {
	i int
	vote[T]
}

// result is the outcome of a ballot. It changes only once, from undecided. If it was decided by closed, a later vote
// could change it again.
type result int

const (
	undecided    result = iota
	carried             // most nodes said yes
	rejected            // no majority is possible, because of the answers
	inconclusive        // no majority is possible, because too few nodes answered
)

// put puts a question about the locks of t to nodes of q. It does not block. If ctx has ended, it asks no node. If ctx
// ends later, a node that was asked may still execute the command.
//
// A vote counts only after its node has reported which server it is (meet), because a server has one vote.
func put[T any](ctx context.Context, q *Quorum, nodes []*node, t *keys.Set, e redisexec.CallOptions, question question[T]) *ballot[T] {
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
	e.Enough = b.enough // replaces the caller's: a Close does not reduce the copies of a question
	for i, n := range nodes {
		turn := n.enqueue(b.names) // not in the goroutine, which may run after a later call
		q.env.Go(func() {
			turn.await()
			began := q.env.Now()
			var answer T
			// This is the vote of a node that is not asked: a failure with a known outcome.
			out := redisexec.Outcome{Err: lockerr.ErrNoAnswer}
			silent := began.Since(b.sent) >= cmp.Or(e.Patience, q.env.Patience)/2
			if !b.repeated || !silent || !e.Needless() {
				answer, out = b.ask(n, e)
			}
			if asked := out.Sent != (clock.Instant{}); asked && out.Err == nil {
				n.took.Store(int64(q.env.Now().Since(began)))
			}
			// Before the vote: the next command of the name does not wait for a mend.
			turn.pass()
			if out.Err == nil {
				if err := q.meet(n, t.Keys[0]); err != nil {
					// It has executed the command, so the outcome is ambiguous, and the command may have to be undone.
					answer, out = *new(T), redisexec.Outcome{Err: err, Ambiguous: true, Permanent: errors.Is(err, lockerr.ErrInvalidOption)}
				}
			}
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

// close fixes the result, and stops further copies of the question, but not a copy in flight. It is called exactly once.
func (b *ballot[T]) close() {
	b.final = b.result()
	close(b.enough)
}

// count waits for the result, or for the end of ctx, which leaves the ballot undecided. It waits for a silent node only
// if the other votes do not decide, and only until the copies for that node are used up.
func (b *ballot[T]) count(ctx context.Context) result {
	b.await(ctx, b.decided)
	return b.result()
}

// countSoon is count with a limit. When most nodes have answered without a result, it waits for the others only for the
// time that rest returns. After that the result is decided without them.
func (b *ballot[T]) countSoon(ctx context.Context, rest func() time.Duration) result {
	b.await(ctx, func() bool { return b.decided() || b.quorate() })
	if !b.decided() && b.quorate() {
		b.linger(ctx, rest(), b.decided)
		b.closed = ctx.Err() == nil // if ctx has ended, it stays undecided, and the error contains the reason
	}
	return b.result()
}

// usual returns how long to wait for the nodes that have not voted: as long as their answers usually take, and at most
// for most. This bounds the cost of a node that has just stopped answering. Otherwise owners that split the votes would
// all keep their nodes for the whole patience.
func (b *ballot[T]) usual(now clock.Clock, most time.Duration) time.Duration {
	usual := now().Since(b.sent)
	for i, v := range b.votes {
		if !v.cast {
			usual = max(usual, time.Duration(b.nodes[i].took.Load()))
		}
	}
	return min(time.Millisecond+2*usual, most)
}

// quorate reports whether most nodes have answered, yes or no. An error is no answer.
func (b *ballot[T]) quorate() bool { return b.number(vote[T].answered) >= b.majority }

func (b *ballot[T]) decided() bool  { return b.result() != undecided }
func (b *ballot[T]) complete() bool { return b.open() == 0 }

// await takes votes until enough returns true, or ctx ends.
func (b *ballot[T]) await(ctx context.Context, enough func() bool) {
	for !enough() && b.next(ctx) {
	}
}

// linger is await with a limit of d.
func (b *ballot[T]) linger(ctx context.Context, d time.Duration, enough func() bool) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	b.await(ctx, enough)
}

// next waits for one more vote. It returns false if ctx ends first, or no vote will come.
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

// number returns the number of votes for which which returns true.
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

// clean reports whether the node has answered every copy of the question, so no copy can be executed later.
func (v vote[T]) clean() bool { return v.answered() && !v.out.Ambiguous }

// doubtful returns the number of nodes that have not answered every copy of the question.
func (b *ballot[T]) doubtful() int { return len(b.votes) - b.number(vote[T].clean) }

func (b *ballot[T]) inFavour(v vote[T]) bool { return v.answered() && b.yes(v) }

// open returns the number of missing votes.
func (b *ballot[T]) open() int {
	return b.number(func(v vote[T]) bool { return !v.cast })
}

// result evaluates the votes so far. A missing vote counts for both sides: while missing votes
// could change the result, it is undecided.
func (b *ballot[T]) result() result {
	majority, open := b.majority, b.open()
	if b.closed {
		open = 0
	}
	yes, answered := b.number(b.inFavour), b.number(vote[T].answered)
	// With so many nodes against it, the others are too few for a majority.
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
	case against+open >= limit: // it fails, and the missing votes decide how: rejected, or inconclusive
		return undecided
	case b.lenient && answered >= majority:
		return carried
	default:
		return inconclusive
	}
}

// outcome is the outcome of the call. It is ambiguous if it is ambiguous on any node, or a vote is missing: that node may
// have executed, or may still execute, a copy of the question. The error of an undecided ballot is the error of ctx.
func (b *ballot[T]) outcome(ctx context.Context) redisexec.Outcome {
	if b.unsent != nil {
		return redisexec.Outcome{Err: b.unsent}
	}
	// mutant: quorum-deadline-from-last-vote
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
	case inconclusive: // permanent, if too few nodes remain that did not fail permanently
		out.Err, out.Permanent = b.failure(errNotYet), permanent > len(b.votes)-b.majority
	}
	return out
}

// errNotYet is the error of a node whose vote could not change the result, so it was not waited for.
var errNotYet = fmt.Errorf("%w yet", lockerr.ErrNoAnswer)

// failure returns the error, with the answer of each node that is not in favour. open is the error of nodes that have not
// voted.
func (b *ballot[T]) failure(open error) error {
	f := Failure{Nodes: len(b.votes), Needed: b.majority, Agreed: b.number(b.inFavour)}
	for i, v := range b.votes {
		why := v.out.Err
		switch {
		case b.inFavour(v):
			continue
		case !v.cast:
			why = b.nodes[i].plain.Exec.Explain(open)
		case why == nil:
			why = cmp.Or(b.no, lockerr.ErrNotOnRedis)
		}
		f.Errors = append(f.Errors, NodeError{b.nodes[i].name, why})
	}
	return b.report(f)
}

// Failure reports that too few nodes succeeded.
type Failure struct {
	Nodes  int // of the quorum
	Needed int // nodes that have to agree
	Agreed int
	Errors []NodeError // the errors of the others
}

// NodeError is the error of one node.
type NodeError struct {
	Node string
	Err  error
}

// expiryPrecision is how much earlier than requested a key may expire, by the clock of its node, because Redis counts in
// whole milliseconds. So a lease counts from that much before the question was put.
const expiryPrecision = 2 * time.Millisecond
