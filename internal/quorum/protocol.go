package quorum

import (
	"context"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
)

// What the four results of a ballot mean for a call:
//
//	carried       most nodes answered yes. It is done, whatever the others answer later.
//	rejected      a majority can no longer answer yes, and the answers contain the reason: another owner has
//	              the lock, or this one has lost it. That is an answer, not a failure.
//	inconclusive  a majority can no longer answer yes, because too many nodes failed: an error that contains the
//	              error of each node.
//	undecided     ctx ended, or the patience of a renewal, before the missing votes arrived: an error.
//
// What each command does with a silent node, if the others are a majority, but their votes do not
// decide:
//
//	Acquire       waits as long as that node usually takes, or less. Then it releases what it got, and its
//	              caller undoes the name on all nodes.
//	Reenter       waits until the copies for that node are used up, or ctx ends.
//	Renew         waits for the patience of one copy. Nothing is proven then.
//	Release       waits for half of the remaining time (LossWindow). Then silence counts as yes.
//	Keep, Handoff wait as long. Then silence does not count as yes. After a hand-over neither owner has the lock.
//	Force, State  wait a moment (grace). If State has not found the holder then, it waits as long as Release.
//
// If most nodes are silent, each call waits until its copies are used up, or ctx ends, and fails.
//
// Invariant: a node that may still have a name which has ended here gets an undo. Its queue sends the undo until it
// is answered. The undo comes from mend if the result is known, and from the caller if it is not.
//
// What can come late: a copy that a node executes after the call has returned. Its outcome was ambiguous, so
// the caller has retired the name: the copy does not affect a later hold.

// All questions but one are sent with the client's background as their context, not with the caller's ctx.
// So a command to a node survives the end of ctx: the node answers, the outcome there is known, and
// the next command of the name may be sent. The exception is Renew, because the next renewal supersedes it.

// grace returns how long to wait for the missing votes when the result is known and there is no hurry. A node
// that is not much slower than the others votes in that time, so that its outcome is known.
func (q *Quorum) grace(sent clock.Instant) time.Duration {
	return min(time.Millisecond+2*q.env.Now().Since(sent), q.env.Patience)
}

// LossWindow is how long to wait for the rest of the votes when most nodes do not have the lock any more, but
// some of them did not have it before. The votes that are still out decide whether it was lost. A node
// that does not answer leaves that open, and must not keep an Unlock for long. A caller that asks for the state
// waits as long. It is half of the time that there is: the other half is for what follows.
func LossWindow(ctx context.Context, e redisexec.CallOptions) time.Duration {
	left := e.Patience
	if end, ends := ctx.Deadline(); ends {
		left = min(left, time.Until(end))
	}
	return left / 2
}

func saysYes(v vote[bool]) bool { return v.answer }

// Reenter counts when a majority has it. A node that has lost the lock does not get it again by that. After a
// failure some nodes may have the new counts: the next command of the hold sets them right.
func (q *Quorum) Reenter(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *protocol.Terms, mint bool, counts []int) (protocol.Grant, redisexec.Outcome) {
	q.leases(s.TTL)
	b := put(ctx, q, q.nodes, t, e, question[protocol.Grant]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Grant, redisexec.Outcome) {
			return n.plain.Reenter(q.env.Background, e, t, field, s, mint, counts)
		},
		yes: getsIt, repeated: s.Renewed, // a fixed longer lease is requested only once
	})
	defer b.close()
	if b.count(ctx) == carried {
		return q.fence(ctx, e, b, t, field, s, mint)
	}
	return protocol.Grant{}, b.outcome(ctx)
}

// Renew proves a lease when a majority has lengthened it. Nothing else proves one. The lock is lost when so
// many nodes do not have it that no majority can be had.
//
// It waits no longer than for one copy on one node, whatever else is under way on the nodes. Without that bound
// a renewal would wait behind the commands that a silent node is still owed, and the lease would end meanwhile.
// A renewal that fails changes nothing: the hold lasts until its deadline, and the watchdog tries again.
func (q *Quorum) Renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	q.leases(lease)
	e.Attempts, e.Unanswered = 1, nil
	b := put(ctx, q, q.nodes, t, e, question[bool]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (bool, redisexec.Outcome) {
			return n.plain.Renew(ctx, e, t, field, lease)
		},
		yes: saysYes, repeated: true,
	})
	defer b.close()
	patience := e.Patience + 2*e.Glance() // a silent node reports the reason a moment later
	soon, cancel := context.WithTimeoutCause(ctx, patience, lockerr.NoAnswerWithin(patience))
	defer cancel()
	result := b.count(soon)
	return result == carried, b.outcome(soon)
}

// Release is sent to every node, and repeated in the background on nodes that fail. It is done when most nodes
// no longer have the lock for this owner. It waits no longer than LossWindow for nodes that do not
// answer, even if the hold depended on them.
func (q *Quorum) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (protocol.Released, redisexec.Outcome) {
	b := put(ctx, q, q.nodes, t, e, question[protocol.Released]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Released, redisexec.Outcome) {
			return n.plain.Release(q.env.Background, e, t, field, counts)
		},
		yes: func(v vote[protocol.Released]) bool {
			return v.answer.Ours || v.out.Ambiguous && slices.Contains(counts, 0) // an earlier copy may have done it
		},
		lenient: true,
		// The next command sets a count right. But no later command gives a key back.
		repeated: !slices.Contains(counts, 0),
		mend: func(n *node) {
			// Keys that keep a level are not undone: the hold goes on. Nor is what the node never had.
			if freed := t.Without(counts); freed != nil && !t.Absent.Contains(n.at) {
				n.undos.Add(undo.Name{Keys: freed, Field: field, Until: q.until()})
			}
		},
	})
	defer b.close()
	result := b.countSoon(ctx, func() time.Duration { return LossWindow(ctx, e) })
	out := b.outcome(ctx)
	// Processes subscribe on all nodes, so the node with the highest count has most of them.
	answer := protocol.Released{Heard: -1}
	for _, v := range b.votes {
		if v.answered() {
			answer.Heard = max(answer.Heard, v.answer.Heard)
		}
	}
	switch result {
	case carried:
		others := b.number(func(v vote[protocol.Released]) bool { return v.answered() && !v.answer.Ours })
		// It was lost only if so many nodes did not have it that the rest is no majority.
		answer.Ours = others <= len(q.nodes)-q.majority()
		out.Ambiguous = b.doubtful() > 0
	case rejected:
		out.Ambiguous = false // it was lost before, not by a copy of this
	}
	return answer, out
}

// Keep counts when most nodes have the placeholder: fewer would not exclude other owners. It is repeated in the
// background on nodes that fail. Unlike Release it is not lenient: a silent node may not have the placeholder, and
// then too few nodes do.
func (q *Quorum) Keep(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, until clock.Instant, rest time.Duration) (protocol.Released, redisexec.Outcome) {
	var b *ballot[protocol.Released] // mend reads its result
	b = put(ctx, q, q.nodes, t, e, question[protocol.Released]{
		names: []string{field, keys.Kept(field, until)},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Released, redisexec.Outcome) {
			return n.plain.Keep(q.env.Background, e, t, field, until, rest)
		},
		yes: func(v vote[protocol.Released]) bool { return v.answer.Ours },
		mend: func(n *node) {
			u := undo.Name{Keys: t, Field: field, Until: q.until()}
			if b.final == carried { // otherwise the lock had been lost
				u.KeepUntil = until
			}
			if !t.Absent.Contains(n.at) {
				n.undos.Add(u)
			}
		},
	})
	defer b.close()
	result := b.countSoon(ctx, func() time.Duration { return LossWindow(ctx, e) })
	out := b.outcome(ctx)
	switch result {
	case carried:
		out.Ambiguous = b.doubtful() > 0
	case rejected:
		out.Ambiguous = false // it was lost before, not by a copy of this
	}
	return protocol.Released{Ours: result == carried, Heard: -1}, out
}

// bequeath is a hand-over from the hold that ends (its name is from, its keys are t) to a waiter (to, and
// heir). It counts when a majority has done it. A node that does not have the lock by the name from does
// nothing.
//
// If it does not count, some nodes may have passed the lock on, and others not. Unless all have refused,
// neither name may be used after that. What is not undone here is ambiguous, or unconfirmed: then the caller
// undoes it.
func (q *Quorum) bequeath(ctx context.Context, e redisexec.CallOptions, t, heir *keys.Set, from, to string, s *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	q.leases(s.TTL)
	b := put(ctx, q, q.nodes, t, e, question[protocol.Grant]{
		names: []string{from, to},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Grant, redisexec.Outcome) {
			g, out := n.plain.Handoff(q.env.Background, e, t, from, to, s)
			if learnAbsence(heir, n, out); t.Absent.Contains(n.at) {
				heir.Absent.Add(n.at) // from was never on this node: it had nothing to pass on
			}
			return g, out
		},
		yes: getsIt,
		mend: func(n *node) {
			if !t.Absent.Contains(n.at) {
				n.undos.Add(undo.Name{Keys: t, Field: from, Until: q.until()})
			}
		},
	})
	defer b.close()
	result := b.countSoon(ctx, func() time.Duration { return LossWindow(ctx, e) })
	if result == inconclusive && b.quorate() {
		// Whether from had a majority depends on nodes that do not answer. Neither name is to stay on the
		// others. The caller takes it for a grant that is not confirmed: it has let go, and the waiter tries
		// by itself.
		q.undo(t, from)
		return protocol.Grant{Held: true}, redisexec.Outcome{Sent: b.sent, Ambiguous: true, Unconfirmed: b.failure(lockerr.ErrNoAnswer)}
	}
	switch result {
	case carried:
		g, out := q.fence(ctx, e, b, t, to, s, s.Fencing)
		out.Ambiguous = out.Err != nil || b.doubtful() > 0
		out.Unobserved = out.Err == nil && b.doubtful() < q.majority()
		return g, out
	case rejected:
		// from had lost the lock. Some nodes may have passed it on all the same, or may yet: that is undone.
		// Without the retirement the waiter would ask by the same name, and the undo would hit its hold.
		q.env.Retire(to)
		q.undo(heir, to)
		return protocol.Grant{}, redisexec.Outcome{Sent: b.sent}
	}
	out := b.outcome(ctx)
	// If all nodes have refused, for want of a permission perhaps, nothing is in doubt: the lock can be
	// released instead. So it waits for all of them.
	b.linger(ctx, q.env.Patience, b.complete)
	out.Ambiguous = b.outcome(ctx).Ambiguous || b.number(b.inFavour) > 0
	return protocol.Grant{}, out
}

// undo has the keys of t released for field in the background, on every node. The hold of field has ended, and
// its identity is retired before its owner can lock again: so the undo meets no later hold.
func (q *Quorum) undo(t *keys.Set, field string) {
	undo.Add(undo.Name{Keys: t, Field: field, Until: q.until()}, q.undos...)
}

// Force ends the hold that a majority reported, on so many nodes that it no longer has a majority.
// So most nodes have to answer. It needs no turn: it is about another owner's name, and deletes a key only if
// its fields are still those given. It is not repeated on a node that missed it: there the lease ends the hold.
func (q *Quorum) Force(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int, fields []string) (bool, redisexec.Outcome) {
	b := put(ctx, q, q.nodes, t, e, question[bool]{
		ask: func(n *node, e redisexec.CallOptions) (bool, redisexec.Outcome) {
			return n.plain.Force(q.env.Background, e, t, i, fields)
		},
		yes: func(vote[bool]) bool { return true },
	})
	defer b.close()
	b.count(ctx)
	b.linger(ctx, q.grace(b.sent), b.complete)
	out := b.outcome(ctx)
	// For the caller ambiguous means here: an earlier copy may have done it. Silent nodes do not matter for
	// that.
	out.Ambiguous = b.number(func(v vote[bool]) bool { return v.answered() && v.out.Ambiguous }) > 0
	return b.number(func(v vote[bool]) bool { return v.answered() && v.answer }) > 0, out
}
