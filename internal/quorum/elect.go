package quorum

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// errTaken is the error of a node that refuses a lock.
var errTaken = errors.New("held by another owner")

// elect is a vote on the owner of the keys. Without a majority it releases at once what it got, and publishes no message:
// there was no hold, so no waiter waits for its end. If a release fails, some nodes may still have the name. Then the
// outcome is ambiguous, and the caller undoes it.
func (q *Quorum) elect(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	q.leases(s.TTL)
	b := put(ctx, q, q.nodes, t, e, question[protocol.Grant]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Grant, redisexec.Outcome) {
			g, out := n.plain.Acquire(q.env.Ctx, e, t, field, s)
			recordAbsence(t, n, out)
			return g, out
		},
		yes: getsIt, no: errTaken, attended: true,
	})
	defer b.close()
	result := b.countSoon(ctx, func() time.Duration { return q.rest(b) })
	if result == carried && q.suspects() {
		b.linger(ctx, q.grace(b.sent), b.complete)
	}
	if err := q.twins(); err != nil && result != undecided {
		return protocol.Grant{}, redisexec.Outcome{Err: err, Permanent: true, Ambiguous: true, Sent: b.sent}
	}
	switch result {
	case carried:
		g, out := q.fence(ctx, e, b, t, field, s, s.Fencing)
		// Without its token the lock is useless, but most nodes have the name, which has to be undone.
		out.Ambiguous = out.Ambiguous || out.Err != nil
		out.Unobserved = out.Err == nil && b.doubtful() < q.majority()
		return g, out
	case undecided: // ctx has ended: the outcome on some nodes is unknown
		return protocol.Grant{}, b.outcome(ctx)
	}
	if !b.closed {
		// A node that votes during this time can be released like the others, and its outcome is known.
		b.linger(ctx, q.grace(b.sent), b.complete)
	}
	// mutant: quorum-undo-dropped
	clean := q.takeBack(ctx, b, e, t, field)
	out := b.outcome(ctx)
	out.Ambiguous = out.Ambiguous || !clean
	// These nodes may have, or have had, the name. If they are no majority, a waiter that they refused did not record this
	// owner as the holder: its vote was split, and it waits for no message.
	out.Unobserved = b.number(func(v vote[protocol.Grant]) bool { return !v.cast || v.out.Ambiguous || b.inFavour(v) }) < q.majority()
	if out.Err != nil {
		return protocol.Grant{}, out
	}
	return q.refusal(b), out
}

func getsIt(v vote[protocol.Grant]) bool { return v.answer.Held }

// rest returns how long to wait for the other nodes when most have answered and no owner has won: as long as their
// answers usually take. That may be long if a few nodes are slow. Meanwhile several owners compete for the fast nodes, and
// each keeps the nodes that it got while it waits. So half of the tries, at random, give up sooner, and another owner can
// win.
func (q *Quorum) rest(b *ballot[protocol.Grant]) time.Duration {
	if clock.N[int64](2) == 0 {
		return q.grace(b.sent)
	}
	return b.usual(q.env.Now, q.env.Patience)
}

// takeBack releases the nodes that have granted, and reports whether each has answered every copy. It waits for one copy
// of the release, which follows the other commands of the name, or for the end of ctx. If it returns false, the caller
// undoes the name. A release in flight is still executed.
func (q *Quorum) takeBack(ctx context.Context, b *ballot[protocol.Grant], e redisexec.CallOptions, t *keys.Set, field string) bool {
	var nodes []*node
	for i, v := range b.votes {
		if b.inFavour(v) {
			nodes = append(nodes, b.nodes[i])
		}
	}
	e.Attempts = 1
	back := put(q.env.Ctx, q, nodes, t, e, question[bool]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (bool, redisexec.Outcome) {
			return n.plain.ReleaseQuietly(q.env.Ctx, e, t, field)
		},
		yes: votesYes,
	})
	defer back.close()
	back.linger(ctx, 2*q.env.Patience, back.complete)
	return back.number(vote[bool].clean) == len(nodes)
}

// refusal returns the answer after a lost or split vote. It contains the owner with the most nodes, and the time until
// enough leases have ended for a majority to be free.
//
// A vote is split if no owner has a majority, or if nodes refuse different keys. Then the waiter must not rely on a
// message: if no owner got the lock, there may be none, and if the keys differ, the messages of both may have been sent
// already.
func (q *Quorum) refusal(b *ballot[protocol.Grant]) protocol.Grant {
	type hindrance struct {
		holder string
		key    int
	}
	var g protocol.Grant
	var frees []time.Duration // when each node is free
	has := make(map[hindrance]int)
	for _, v := range b.votes {
		free := time.Duration(math.MaxInt64) // never: the node failed, or the lock has no expiry
		switch {
		case b.inFavour(v):
			free = 0
		case v.answered():
			if v.answer.TTL >= 0 {
				free = v.answer.TTL
			}
			by := hindrance{v.answer.Holder, v.answer.Key}
			if has[by]++; has[by] > has[hindrance{g.Holder, g.Key}] {
				g = v.answer
			}
		}
		frees = append(frees, free)
	}
	slices.Sort(frees)
	if g.TTL = frees[q.majority()-1]; g.TTL == math.MaxInt64 {
		g.TTL = -time.Millisecond
	}
	g.Split = has[hindrance{g.Holder, g.Key}] < q.majority()
	return g
}

// fence completes a majority's agreement with the token, if one is wanted.
//
// Each node has created a token, by its own counter and clock. The token of the lock is the highest of them. It counts
// when a majority of the nodes have stored it in their counters while this owner had the lock there. An owner that gets
// the lock later gets at least one node of that majority, and that node creates a higher token then. The token of the
// later owner is at least that one.
//
// This takes one more round trip, bounded by ctx. After a failure most nodes have done what they agreed on, without the
// token. So Acquire and Handoff return an ambiguous outcome, and their caller undoes it.
func (q *Quorum) fence(ctx context.Context, e redisexec.CallOptions, b *ballot[protocol.Grant], t *keys.Set, field string, s *protocol.Terms, wished bool) (protocol.Grant, redisexec.Outcome) {
	out := b.outcome(ctx)
	g := protocol.Grant{Held: true}
	if !wished {
		return g, out
	}
	minted := make([]int64, len(q.nodes))
	for i, v := range b.votes {
		if b.inFavour(v) {
			minted[i] = v.answer.Token
			g.Token = max(g.Token, minted[i])
		}
	}
	r := put(ctx, q, q.nodes, t, e, question[bool]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (bool, redisexec.Outcome) {
			if minted[n.at] == g.Token { // its counter has it already
				return true, redisexec.Outcome{}
			}
			// mutant: quorum-token-not-raised
			return n.plain.Raise(q.env.Ctx, e, t, field, s, g.Token)
		},
		yes: votesYes,
	})
	defer r.close()
	switch r.count(ctx) {
	case carried:
		return g, out
	case rejected:
		out.Err = r.failure(errNotYet)
	default:
		raised := r.outcome(ctx)
		out.Err, out.Permanent = raised.Err, raised.Permanent
	}
	return protocol.Grant{}, out
}
