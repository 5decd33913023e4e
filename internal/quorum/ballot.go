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
//	put     gives the question a turn on each node, in the order of the calls, and starts a goroutine for
//	        each. That one waits for its turn, asks, and puts one vote into the box. A node that fails
//	        votes, too: with an error.
//	count   takes votes out of the box until the result is known, or ctx has ended. countSoon gives up
//	        earlier: some time after most nodes have answered.
//	close   fixes the result. From then on no node is sent a further copy, and nodes that failed are mended.
//
// The function that puts a question closes the ballot, in every case: goroutines with a mend wait for that.
//
// The votes belong to the goroutine that counts. The other goroutines see only the box, and the result after
// it was fixed. So a ballot needs no mutex.
//
// What can come late: a vote. It stays in the box, which has room for all, and nothing reads it. What the node
// executed is not lost with it: the outcome was ambiguous, or the node is mended.

// question is what is put to the nodes of a quorum.
type question[T any] struct {
	names []string // of the locks, now or afterwards; none for a question outside the order of names
	// ask sends the question to one node, in the goroutine of that node. It ends when the node has answered, or when
	// no copy was answered: see CallOptions.
	ask func(n *node, e redisexec.CallOptions) (T, redisexec.Outcome)
	yes func(vote[T]) bool // whether an answer is in favour
	no  error              // what an answer means that is not in favour; nil: lockerr.ErrNotOnRedis

	// attended makes the result a no if most nodes have answered, though too few with a yes. It is for an
	// owner that wants the lock: it tries again, and a node that fails is no reason for an error.
	// Without it the result is a no only if so many nodes have answered no that a majority is impossible: a hold is not
	// lost because a node fails.
	attended bool

	// lenient makes the result a yes if most nodes have answered, and the failed ones could make
	// it a yes. It is for a release: a hold is not lost because nodes are silent now.
	lenient bool

	// repeated marks a command that the next one under the same names supersedes. So a node that was not asked in
	// time is not asked any more when the result is known. Otherwise a silent node, once it is back, would
	// get each renewal and re-entry that it missed, one after the other.
	repeated bool

	// mend deals with a node that failed to do what the quorum did. It is called in the goroutine of that
	// node, after its vote and after close, and only if the result is carried or rejected. With another
	// result the call fails, and its caller undoes the name on all nodes.
	mend func(n *node)
}

// ballot is one question that is put to nodes of a quorum at once. It ends when enough nodes
// have answered to know the result. It does not wait for the others, however long they take.
type ballot[T any] struct {
	question[T]
	majority int // of the quorum, also if only some of its nodes are asked
	report   func(Failure) error
	nodes    []*node
	votes    []vote[T]     // by node; only next writes them
	sent     clock.Instant // when the question was put, before any node got it: a lease counts from then
	closed   bool          // nodes that have not voted do not take part any more; countSoon sets it
	unsent   error         // why the question was put to no node

	box    chan indexed[T] // has room for the vote of each node: no goroutine waits to put its vote in
	enough chan struct{}   // closed when the result is known, or not waited for any more
	final  result          // written once, before enough is closed; read by mend after that
}

// vote is the answer of one node.
type vote[T any] struct {
	cast   bool // it has come, be it an error
	answer T    // if the node has answered; else zero
	out    redisexec.Outcome
}

type indexed[T any] struct {
	i int
	vote[T]
}

// result is the outcome of a ballot. It only ever moves away from undecided, and no vote that comes later
// changes it then, except that of a node that was counted out (closed).
type result int

const (
	undecided    result = iota
	carried             // most nodes said yes
	rejected            // no majority can be had: that is what the nodes answered
	inconclusive        // no majority can be had: too few have answered
)

// put puts a question about the locks of t to nodes of q. It does not block. If ctx has ended, it asks no node. If ctx
// ends later, that does not take the question back: a node that was asked may do it all the same.
//
// A vote counts only after its node has reported which server it is (meet): a server has one vote.
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
	e.Enough = b.enough // in place of the caller's: a Close does not cut the copies of a question short
	for i, n := range nodes {
		turn := n.enqueue(b.names) // not in the goroutine, which may run after a later call
		q.env.Go(func() {
			turn.await()
			began := q.env.Now()
			var answer T
			// This is the vote of a node that is not asked: it has failed, and the outcome there is known.
			out := redisexec.Outcome{Err: lockerr.ErrNoAnswer}
			silent := began.Since(b.sent) >= cmp.Or(e.Patience, q.env.Patience)/2
			if !b.repeated || !silent || !e.Needless() {
				answer, out = b.ask(n, e)
			}
			if out.Err == nil {
				n.took.Store(int64(q.env.Now().Since(began)))
			}
			// First the turn: the next command of the name does not wait for a mend.
			turn.pass()
			if out.Err == nil {
				if err := q.meet(n, t.Keys[0]); err != nil {
					// It has executed the command, and so is to be undone if that matters.
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

// close fixes the result as it is now, and stops further copies of the question. It does
// not stop a copy in flight. It is called exactly once.
func (b *ballot[T]) close() {
	b.final = b.result()
	close(b.enough)
}

// count waits for the result, or for ctx: then the ballot stays undecided. It waits for a silent node only if
// the others do not decide without that one, and until the copies for it are used up.
func (b *ballot[T]) count(ctx context.Context) result {
	b.await(ctx, b.decided)
	return b.result()
}

// countSoon is count for a question that need not be decided. When most nodes have answered without a
// result, it waits for the others only for as long as rest returns then. After that the result is decided
// without them.
func (b *ballot[T]) countSoon(ctx context.Context, rest func() time.Duration) result {
	b.await(ctx, func() bool { return b.decided() || b.quorate() })
	if !b.decided() && b.quorate() {
		b.linger(ctx, rest(), b.decided)
		b.closed = ctx.Err() == nil // if ctx has ended, it stays undecided, and the error contains the reason
	}
	return b.result()
}

// usual returns how long to wait for the nodes that have not voted: as long as their answers usually take,
// and for most at most. A node that has just stopped answering costs no more than that: without it, owners that
// split the votes would all keep their nodes for the whole patience.
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

// linger is await for d at most.
func (b *ballot[T]) linger(ctx context.Context, d time.Duration, enough func() bool) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	b.await(ctx, enough)
}

// next waits for one vote more. false: ctx has ended before, or none will come.
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

// number returns for how many votes which is true.
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

// clean reports whether the node has answered every copy of the question: then none is executed later.
func (v vote[T]) clean() bool { return v.answered() && !v.out.Ambiguous }

// doubtful returns the number of nodes that have not answered every copy of the question.
func (b *ballot[T]) doubtful() int { return len(b.votes) - b.number(vote[T].clean) }

func (b *ballot[T]) inFavour(v vote[T]) bool { return v.answered() && b.yes(v) }

// open returns the number of votes that are still out.
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
	case against+open >= limit: // it fails, but the votes that are out decide how: by a no, or by silence
		return undecided
	case b.lenient && answered >= majority:
		return carried
	default:
		return inconclusive
	}
}

// outcome is the outcome of the call. It is ambiguous if it is ambiguous on one node, which may have executed, or
// may still execute, a copy of the question without an answer. A node whose vote is missing is such a node.
// The error of an undecided ballot is the error of ctx.
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
	case inconclusive: // for good, if the nodes that have not failed for good are no majority
		out.Err, out.Permanent = b.failure(nil), permanent > len(b.votes)-b.majority
	}
	return out
}

// failure returns the error with the answer of each node that is not in favour. open is the error of nodes that
// have not voted; nil: they are left out.
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

// Failure reports that too few nodes could do what was asked.
type Failure struct {
	Nodes  int // of the quorum
	Needed int // of them, to agree
	Agreed int
	Said   []Said // the errors of the others
}

// Said is the error of one node.
type Said struct {
	Node string
	Err  error
}

// expiryPrecision is how much earlier than asked a key may expire, by the clock of its node: Redis counts in
// whole milliseconds. So a lease counts from that much before the question was put.
const expiryPrecision = 2 * time.Millisecond
