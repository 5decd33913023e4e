package quorum

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
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
//	carried       most nodes said yes. It is done, whatever the others say later.
//	rejected      a majority cannot say yes any more, and the nodes that answered tell why: another owner has
//	              the lock, or this one has lost it. That is an answer, not a failure.
//	inconclusive  a majority cannot say yes any more, because too many nodes failed: an error that has what
//	              each node said.
//	undecided     ctx ended, or the patience of a renewal, before the votes that are out have come: an error.
//
// What each command does with a node that is silent, if the others are a majority, but their votes do not
// decide:
//
//	Acquire       waits as long as that node usually takes, or less. Then it gives back what it got, and its
//	              caller undoes the name on all nodes.
//	Reenter       waits until the copies for that node are used up, or ctx ends.
//	Renew         waits for the patience with one copy. Nothing is proven then.
//	Release       waits for half of the time that there is (LossWindow). Then silence is a yes.
//	Keep, Handoff wait as long. Then silence is no yes. After a hand-over neither owner has the lock.
//	Force, State  wait a moment (grace). If State still does not know the holder, it waits as long as Release.
//
// If most nodes are silent, each call waits until its copies are used up, or ctx ends, and fails.
//
// Invariant: a node that may still have a name which has ended here gets an undo. Its queue sends that until it
// is answered. The undo comes from mend if the result is known, and from the caller if it is not.
//
// What can come late: a copy that a node executes after the call has returned. The outcome was ambiguous, so
// the caller has retired the name: the copy changes nothing of a later hold.

// errTaken is the no of a node to an owner that wants a lock.
var errTaken = errors.New("another owner has it there")

// All questions but one are sent with the client's background as their context, not with the caller's ctx.
// So the end of ctx does not take a command away from a node: the node answers, nothing is in doubt there, and
// the next command of the name may go. The one is Renew: the next renewal says the same.

// elect is a vote on who gets the keys. Without a majority it gives back at once what it got. It does so
// quietly: there never was a hold, so no waiter has seen one. When it fails, some nodes may still have the
// name. Then the outcome is ambiguous, and the caller undoes it.
func (q *Quorum) elect(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	q.leases(s.TTL)
	b := put(ctx, q, q.nodes, e, question[protocol.Grant]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Grant, redisexec.Outcome) {
			g, out := n.plain.Acquire(q.env.Background, e, t, field, s)
			learnAbsence(t, n, out)
			return g, out
		},
		yes: getsIt, no: errTaken, attended: true,
	})
	defer b.close()
	switch b.countSoon(ctx, func() time.Duration { return q.rest(b) }) {
	case carried:
		g, out := q.fence(ctx, e, b, t, field, s, s.Fencing)
		// Without its token the lock counts for nothing, but most nodes have the name: it is to be undone.
		out.Ambiguous = out.Ambiguous || out.Err != nil
		out.Unobserved = out.Err == nil && b.doubtful() < q.majority()
		return g, out
	case undecided: // ctx has ended: what was got is in doubt
		return protocol.Grant{}, b.outcome(ctx)
	}
	if !b.closed {
		// A node that votes in this time can be taken back like the others, and its name is not in doubt.
		b.linger(ctx, q.grace(b.sent), b.complete)
	}
	clean := q.takeBack(ctx, b, e, t, field)
	out := b.outcome(ctx)
	out.Ambiguous = out.Ambiguous || !clean
	// These nodes may have, or have had, the name. If they are no majority, a waiter that they refused did
	// not see this owner as the holder: its vote was split, and it waits for no message.
	out.Unobserved = b.number(func(v vote[protocol.Grant]) bool { return !v.cast || v.out.Ambiguous || b.inFavour(v) }) < q.majority()
	if out.Err != nil {
		return protocol.Grant{}, out
	}
	return q.refusal(b), out
}

func getsIt(v vote[protocol.Grant]) bool { return v.answer.Held }
func saysYes(v vote[bool]) bool          { return v.answer }

// rest is how long to wait for the other nodes when most have answered, and no owner has won: as long as
// they usually take. That may be long if few nodes are slow. Then several owners want the fast ones, and each
// keeps what it got from the others for as long as it waits. So half of the tries, by chance, give up
// sooner: one of the owners can win then.
func (q *Quorum) rest(b *ballot[protocol.Grant]) time.Duration {
	if clock.N[int64](2) == 0 {
		return q.grace(b.sent)
	}
	return b.usual(q.env.Now, q.env.Patience)
}

// grace is how long to wait for the rest of the votes when the result is known, and is in no hurry. A node
// that is not much slower than the others votes in that time, and so leaves nothing in doubt.
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

// takeBack releases the nodes that have granted, and reports whether each has answered, and has nothing left
// to execute. It waits for one copy, behind the commands of the name, or for ctx. If that was too short, it
// is false: the caller has the name undone. A release that is under way is executed all the same.
func (q *Quorum) takeBack(ctx context.Context, b *ballot[protocol.Grant], e redisexec.CallOptions, t *keys.Set, field string) bool {
	var nodes []*node
	for i, v := range b.votes {
		if b.inFavour(v) {
			nodes = append(nodes, b.nodes[i])
		}
	}
	e.Attempts = 1
	back := put(q.env.Background, q, nodes, e, question[bool]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (bool, redisexec.Outcome) {
			return n.plain.ReleaseQuietly(q.env.Background, e, t, field)
		},
		yes: saysYes,
	})
	defer back.close()
	back.linger(ctx, 2*q.env.Patience, back.complete)
	return back.number(vote[bool].clean) == len(nodes)
}

// refusal is the answer of a vote that was lost or split. It names the owner with the most nodes, and says
// when enough of the leases are over for a majority to be free.
//
// It is split if no owner has a majority, or if nodes refuse for different keys. Then the waiter must not
// rely on a message. There may be none for a lock that no owner got. And if the keys differ, the messages of
// both may be on their way already.
func (q *Quorum) refusal(b *ballot[protocol.Grant]) protocol.Grant {
	type hindrance struct {
		holder string
		key    int
	}
	var g protocol.Grant
	var frees []time.Duration // when each node is free
	has := make(map[hindrance]int)
	for _, v := range b.votes {
		free := time.Duration(math.MaxInt64) // of a node that failed, or a lock without expiry: it is not counted on
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

// fence completes what a majority has agreed on with the token, if one is wished.
//
// Each node has minted one, by its own counter and clock. The token is the highest of those. It counts when a
// majority has it in the counter, and has put it there while it had the lock for this owner. An owner that
// gets the lock later gets a node of that majority, which has been free since. Its token is at least the one
// that this node mints then, and that one is higher.
//
// It takes one more round trip, and waits for that no longer than ctx lasts. After a failure most nodes have
// done what they agreed on, without the token: Acquire and Handoff say that it is ambiguous, and so have it
// undone.
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
	r := put(ctx, q, q.nodes, e, question[bool]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (bool, redisexec.Outcome) {
			if minted[n.at] == g.Token { // its counter has it already
				return true, redisexec.Outcome{}
			}
			return n.plain.Raise(q.env.Background, e, t, field, s, g.Token)
		},
		yes: saysYes,
	})
	defer r.close()
	switch r.count(ctx) {
	case carried:
		return g, out
	case rejected:
		out.Err = r.failure(nil)
	default:
		raised := r.outcome(ctx)
		out.Err, out.Permanent = raised.Err, raised.Permanent
	}
	return protocol.Grant{}, out
}

// Reenter counts when a majority has it. A node that has lost the lock does not get it again by that. After a
// failure some nodes may have the new counts: the next command of the hold sets them right.
func (q *Quorum) Reenter(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *protocol.Terms, mint bool, counts []int) (protocol.Grant, redisexec.Outcome) {
	q.leases(s.TTL)
	b := put(ctx, q, q.nodes, e, question[protocol.Grant]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Grant, redisexec.Outcome) {
			return n.plain.Reenter(q.env.Background, e, t, field, s, mint, counts)
		},
		yes: getsIt, repeated: s.Renewed, // a longer lease that is fixed is told but once
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
	b := put(ctx, q, q.nodes, e, question[bool]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (bool, redisexec.Outcome) {
			return n.plain.Renew(ctx, e, t, field, lease)
		},
		yes: saysYes, repeated: true,
	})
	defer b.close()
	patience := max(e.Patience, e.MaxPatience) + 2*e.Glance() // a node that is silent says why in a moment more
	soon, cancel := context.WithTimeoutCause(ctx, patience, lockerr.NoAnswerWithin(patience))
	defer cancel()
	result := b.count(soon)
	return result == carried, b.outcome(soon)
}

// Release is sent to every node. Nodes that fail are told again in the background. It is done when most nodes
// do not have the lock for this owner any more. It waits no longer than LossWindow for nodes that do not
// answer, even if the hold depended on them.
func (q *Quorum) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (protocol.Released, redisexec.Outcome) {
	b := put(ctx, q, q.nodes, e, question[protocol.Released]{
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
	// The processes that listen do so on all nodes: the node that counts most knows of most of them.
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

// Keep counts when most nodes keep the lock: fewer would not keep other owners out. Nodes that fail are told
// again in the background. Unlike Release it is not lenient: a node that is silent may not keep the lock, and
// then too few nodes do.
func (q *Quorum) Keep(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, rest time.Duration) (protocol.Released, redisexec.Outcome) {
	until := q.env.Now().After(rest)
	var b *ballot[protocol.Released] // mend reads its result
	b = put(ctx, q, q.nodes, e, question[protocol.Released]{
		names: []string{from, to},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Released, redisexec.Outcome) {
			return n.plain.Keep(q.env.Background, e, t, from, to, rest)
		},
		yes: func(v vote[protocol.Released]) bool { return v.answer.Ours },
		mend: func(n *node) {
			u := undo.Name{Keys: t, Field: from, Until: q.until()}
			if b.final == carried { // else it had been lost
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
	b := put(ctx, q, q.nodes, e, question[protocol.Grant]{
		names: []string{from, to},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Grant, redisexec.Outcome) {
			g, out := n.plain.Handoff(q.env.Background, e, t, from, to, s)
			if learnAbsence(heir, n, out); t.Absent.Contains(n.at) {
				heir.Absent.Add(n.at) // the node never had from: it had nothing to pass on
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

// Force ends the hold that a majority has said there is: on so many nodes that it has no majority any more.
// So most nodes have to answer. It needs no turn: it is about another owner's name, and deletes a key only if
// the fields are still those given. A node that missed it is not told again: there the lease ends the hold.
func (q *Quorum) Force(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int, fields []string) (bool, redisexec.Outcome) {
	b := put(ctx, q, q.nodes, e, question[bool]{
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

// State is what most nodes say. If they do not agree, it waits for the other nodes as long as those may decide
// whether there is a holder, for LossWindow at most. If that is still open then, it names the holder that may
// have a majority by the nodes that do not answer: to call the lock free would be worse.
func (q *Quorum) State(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int) (protocol.KeyState, redisexec.Outcome) {
	b := put(ctx, q, q.nodes, e, question[protocol.KeyState]{
		ask: func(n *node, e redisexec.CallOptions) (protocol.KeyState, redisexec.Outcome) {
			return n.plain.State(q.env.Background, e, t, i)
		},
		yes: func(vote[protocol.KeyState]) bool { return true },
	})
	defer b.close()
	b.count(ctx)
	b.linger(ctx, q.grace(b.sent), b.complete)
	e.Patience = cmp.Or(e.Patience, q.env.Patience)
	b.linger(ctx, LossWindow(ctx, e), func() bool {
		_, certain := agreedState(b.votes, q.majority())
		return certain || b.complete()
	})
	out := b.outcome(ctx)
	if out.Err != nil {
		return protocol.KeyState{}, out
	}
	state, _ := agreedState(b.votes, q.majority())
	return state, out
}

// agreedState is the state that most votes agree on. It is certain if the nodes that have not answered cannot
// change it: neither the holder, nor the number of its levels.
func agreedState(votes []vote[protocol.KeyState], majority int) (state protocol.KeyState, certain bool) {
	free := protocol.KeyState{TTL: -2 * time.Millisecond}
	silent := 0
	by := make(map[string][]protocol.KeyState) // the states that name the same holder
	for _, v := range votes {
		if !v.answered() {
			silent++
			continue
		}
		free.Token = max(free.Token, v.answer.Token)
		if len(v.answer.Fields) > 0 {
			holder := v.answer.Fields[0]
			by[holder] = append(by[holder], v.answer)
		}
	}
	var most []protocol.KeyState // of the holder that most name
	for _, holder := range slices.Sorted(maps.Keys(by)) {
		if len(by[holder]) > len(most) {
			most = by[holder]
		}
	}
	if len(most)+silent < majority {
		return free, true
	}
	if len(most) == 0 {
		return free, false
	}
	// It holds the lock for as long as a majority has its field: until the majority-th longest of its leases
	// ends.
	slices.SortFunc(most, func(a, b protocol.KeyState) int { return cmp.Compare(endless(b.TTL), endless(a.TTL)) })
	state = most[min(majority, len(most))-1]
	state.Token = free.Token
	var agreed int
	state.Counts, agreed = agreedCounts(state.Counts, most)
	return state, agreed >= majority || silent == 0 && len(most) >= majority
}

// agreedCounts are the levels that most of states name, and how many of them do. If others are named as often,
// these count. One node alone may be wrong: a slow one has the levels of a moment ago, though its lease may be
// the longest.
func agreedCounts(these []int, states []protocol.KeyState) (counts []int, agreed int) {
	naming := func(counts []int) (n int) {
		for _, s := range states {
			if slices.Equal(s.Counts, counts) {
				n++
			}
		}
		return n
	}
	counts, agreed = these, naming(these)
	for _, s := range states {
		if n := naming(s.Counts); n > agreed {
			counts, agreed = s.Counts, n
		}
	}
	return counts, agreed
}

// endless is a PTTL by which leases can be put in order: a negative one, of a key without expiry, lasts
// longest.
func endless(ttl time.Duration) time.Duration {
	if ttl < 0 {
		return math.MaxInt64
	}
	return ttl
}
