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
//	carried       Most nodes answered yes. The call succeeds, whatever the others answer later.
//	rejected      A majority can no longer answer yes, because of the answers: another owner has the lock, or this
//	              one has lost it. That is an answer, not a failure.
//	inconclusive  A majority can no longer answer yes, because too many nodes failed. The call returns an error that
//	              contains the error of each node.
//	undecided     ctx, or the patience of a renewal, ended before the missing votes arrived. The call returns an error.
//
// If the other nodes are a majority, but their votes do not decide, a silent node has these effects:
//
//	Acquire           waits as long as that node usually takes, or less. Then it releases what it got, and its
//	                  caller undoes the name on all nodes.
//	Reenter           waits until the copies for that node are used up, or ctx ends.
//	Renew             waits for the patience of one copy. After that nothing is proven.
//	Release           waits for half of the remaining time (LossWindow). After that silence counts as yes.
//	LeavePlaceholder  waits as long as Release. After that silence does not count as yes.
//	Handoff           waits as long as Release. After that neither owner has the lock.
//	Force, State      wait a moment (grace). If State has not found the holder by then, it waits as long as Release.
//
// If most nodes are silent, each call waits until its copies are used up, or ctx ends, and fails.
//
// Invariant: a node that may still have a name which has ended here gets an undo, and its queue sends the undo until it
// is answered. If the result is known, mend adds the undo, otherwise the caller does.
//
// What can come late: a copy that a node executes after the call has returned. The outcome is ambiguous, so the caller
// retires the name, and the copy does not affect a later hold.

// The context of a question is the client's background, not the caller's ctx. So a command to a node survives the end
// of ctx: the node answers, the outcome there is known, and the next command of the name may be sent. The exception is
// Renew, because the next renewal supersedes it.

// grace returns how long to wait for the missing votes when the result is known. A node that is not much slower than the
// others votes in that time, so its outcome is known.
func (q *Quorum) grace(sent clock.Instant) time.Duration {
	return min(time.Millisecond+2*q.env.Now().Since(sent), q.env.Patience)
}

// LossWindow returns how long to wait for the missing votes when most nodes do not have the lock any more, but some of
// these nodes may not have had it before. The missing votes decide whether it was lost. A node that does not answer must
// not delay an Unlock for long. A caller that asks for the state waits as long. LossWindow is half of the remaining time:
// the other half is for the steps that follow.
func LossWindow(ctx context.Context, e redisexec.CallOptions) time.Duration {
	left := e.Patience
	if end, ends := ctx.Deadline(); ends {
		left = min(left, time.Until(end))
	}
	return left / 2
}

func votesYes(v vote[bool]) bool { return v.answer }

// Reenter succeeds if a majority sets the counts. A node that has lost the lock does not get it back. After a failure
// some nodes may have the new counts, which the next command of the hold corrects.
func (q *Quorum) Reenter(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *protocol.Terms, mint bool, counts []int) (protocol.Grant, redisexec.Outcome) {
	q.leases(s.TTL)
	b := put(ctx, q, q.nodes, t, e, question[protocol.Grant]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Grant, redisexec.Outcome) {
			return n.plain.Reenter(q.env.Ctx, e, t, field, s, mint, counts)
		},
		yes: getsIt, repeated: s.Renewed, // a fixed longer lease is requested only once
	})
	defer b.close()
	if b.count(ctx) == carried {
		return q.fence(ctx, e, b, t, field, s, mint)
	}
	return protocol.Grant{}, b.outcome(ctx)
}

// Renew proves a lease when a majority has lengthened it. The lock is lost when so many nodes do not have it that no
// majority is possible.
//
// It waits no longer than for one copy on one node, whatever else is in flight. Without this bound a renewal would wait
// behind earlier commands to a silent node, and the lease would end meanwhile. A renewal that fails changes nothing: the
// hold lasts until its deadline, and the watchdog tries again.
func (q *Quorum) Renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	q.leases(lease)
	e.Attempts, e.Unanswered = 1, nil
	b := put(ctx, q, q.nodes, t, e, question[bool]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (bool, redisexec.Outcome) {
			return n.plain.Renew(ctx, e, t, field, lease)
		},
		yes: votesYes, repeated: true,
	})
	defer b.close()
	patience := e.Patience + 2*e.Glance() // a silent node reports the reason a moment later
	soon, cancel := context.WithTimeoutCause(ctx, patience, lockerr.NoAnswerWithin(patience))
	defer cancel()
	result := b.count(soon)
	return result == carried, b.outcome(soon)
}

// Release is sent to every node, and repeated in the background on nodes that fail. It succeeds when most nodes no longer
// have the lock for this owner. It waits for LossWindow at most for nodes that do not answer, even if the hold depended
// on them.
func (q *Quorum) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (protocol.Released, redisexec.Outcome) {
	b := put(ctx, q, q.nodes, t, e, question[protocol.Released]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Released, redisexec.Outcome) {
			return n.plain.Release(q.env.Ctx, e, t, field, counts)
		},
		yes: func(v vote[protocol.Released]) bool {
			return v.answer.Ours || v.out.Ambiguous && slices.Contains(counts, 0) // an earlier copy may have done it
		},
		lenient: true,
		// The next command corrects a count. But no later command releases a key.
		repeated: !slices.Contains(counts, 0),
		mend: func(n *node) {
			// Keys whose count is not 0 are not undone, because the hold goes on. Keys that the node never had are not
			// undone, either.
			if freed := t.Without(counts); freed != nil && !t.Absent.Contains(n.at) {
				n.undos.Add(undo.Name{Keys: freed, Field: field, Until: q.until()})
			}
		},
	})
	defer b.close()
	result := b.countSoon(ctx, func() time.Duration { return LossWindow(ctx, e) })
	out := b.outcome(ctx)
	// Processes subscribe on all nodes, so the node with the highest count has most of them.
	answer := protocol.Released{Receivers: -1}
	for _, v := range b.votes {
		if v.answered() {
			answer.Receivers = max(answer.Receivers, v.answer.Receivers)
		}
	}
	switch result {
	case carried:
		others := b.number(func(v vote[protocol.Released]) bool { return v.answered() && !v.answer.Ours })
		// It was lost only if so many nodes did not have it that the others are no majority.
		answer.Ours = others <= len(q.nodes)-q.majority()
		out.Ambiguous = b.doubtful() > 0
	case rejected:
		out.Ambiguous = false // it was lost before, not by a copy of this
	}
	return answer, out
}

// LeavePlaceholder succeeds when most nodes have the placeholder, because fewer would not exclude other owners. It is
// repeated in the background on nodes that fail. Unlike Release it is not lenient, which would count silent nodes in
// favour: they may not have the placeholder.
func (q *Quorum) LeavePlaceholder(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, until clock.Instant, rest time.Duration) (protocol.Released, redisexec.Outcome) {
	var b *ballot[protocol.Released] // mend reads its result
	b = put(ctx, q, q.nodes, t, e, question[protocol.Released]{
		names: []string{field, keys.Placeholder(field, until)},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Released, redisexec.Outcome) {
			return n.plain.LeavePlaceholder(q.env.Ctx, e, t, field, until, rest)
		},
		yes: func(v vote[protocol.Released]) bool { return v.answer.Ours },
		mend: func(n *node) {
			u := undo.Name{Keys: t, Field: field, Until: q.until()}
			if b.final == carried { // otherwise the lock was lost before
				u.PlaceholderUntil = until
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
	return protocol.Released{Ours: result == carried, Receivers: -1}, out
}

// bequeath is a hand-over from the hold that ends (with the name from and the keys t) to a waiter (with the name to and
// the keys heir). It succeeds when a majority has done it. A node that does not have the lock under the name from does
// nothing.
//
// If it fails, some nodes may have passed the lock on, and others not. Then neither name may be used again, unless all
// nodes have refused. If the outcome is ambiguous or unconfirmed, the caller undoes each name that is not undone here.
func (q *Quorum) bequeath(ctx context.Context, e redisexec.CallOptions, t, heir *keys.Set, from, to string, s *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	q.leases(s.TTL)
	b := put(ctx, q, q.nodes, t, e, question[protocol.Grant]{
		names: []string{from, to},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Grant, redisexec.Outcome) {
			g, out := n.plain.Handoff(q.env.Ctx, e, t, from, to, s)
			if recordAbsence(heir, n, out); t.Absent.Contains(n.at) {
				heir.Absent.Add(n.at) // from was never on this node, so the node had nothing to pass on
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
		// Whether from had a majority depends on nodes that do not answer. Neither name may stay on the others. For the
		// caller this is an unconfirmed grant: its own hold has ended, and the waiter asks by itself.
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
		// from had lost the lock. Some nodes may have passed it on, or may do so later, which is undone. Without the
		// retirement the waiter would ask under the same name, and the undo would end its hold.
		q.env.Retire(to)
		q.undo(heir, to)
		return protocol.Grant{}, redisexec.Outcome{Sent: b.sent}
	}
	out := b.outcome(ctx)
	// If all nodes refuse, for example because a permission is missing, every outcome is known, and the lock can be
	// released instead. So it waits for all nodes.
	b.linger(ctx, q.env.Patience, b.complete)
	out.Ambiguous = b.outcome(ctx).Ambiguous || b.number(b.inFavour) > 0
	return protocol.Grant{}, out
}

// undo releases the keys of t for field in the background, on every node. The hold of field has ended, and its identity
// is retired before its owner can lock again. So the undo ends no later hold.
func (q *Quorum) undo(t *keys.Set, field string) {
	undo.Add(undo.Name{Keys: t, Field: field, Until: q.until()}, q.undos...)
}

// Force ends the hold that a majority reported, on so many nodes that it no longer has a majority. So most nodes have to
// answer. It needs no turn, because it is about the name of another owner, and deletes a key only if the fields are still
// the given ones. It is not repeated on a node that missed it: there the hold ends with its lease.
func (q *Quorum) Force(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int, fields []string) (bool, redisexec.Outcome) {
	b := put(ctx, q, q.nodes, t, e, question[bool]{
		ask: func(n *node, e redisexec.CallOptions) (bool, redisexec.Outcome) {
			return n.plain.Force(q.env.Ctx, e, t, i, fields)
		},
		yes: func(vote[bool]) bool { return true },
	})
	defer b.close()
	b.count(ctx)
	b.linger(ctx, q.grace(b.sent), b.complete)
	out := b.outcome(ctx)
	// Here ambiguous means that an earlier copy may have ended the hold. Silent nodes do not matter for that.
	out.Ambiguous = b.number(func(v vote[bool]) bool { return v.answered() && v.out.Ambiguous }) > 0
	return b.number(func(v vote[bool]) bool { return v.answered() && v.answer }) > 0, out
}
