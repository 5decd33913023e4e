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

// errTaken is the no of a node to an owner that wants a lock.
var errTaken = errors.New("another owner has it there")

// What is sent for a ballot is sent in the client's background: a node that no call waits for
// any more answers all the same, and what it answers is what the next command goes by. But for
// renewals: the next one says the same.

// elect is a vote on who gets the keys. Without a majority what was got is given back at
// once: quietly, since no one has seen a hold that never was.
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
		out.Ambiguous = out.Ambiguous || out.Err != nil // what was got is to be undone
		out.Unobserved = out.Err == nil && b.doubtful() < q.majority()
		return g, out
	case undecided: // ctx has ended: what was got is in doubt
		return protocol.Grant{}, b.outcome(ctx)
	}
	if !b.closed {
		b.linger(ctx, q.grace(b.sent), b.complete)
	}
	clean := q.takeBack(ctx, b, e, t, field)
	out := b.outcome(ctx)
	out.Ambiguous = out.Ambiguous || !clean
	out.Unobserved = b.number(func(v vote[protocol.Grant]) bool { return !v.cast || v.out.Ambiguous || b.inFavour(v) }) < q.majority()
	if out.Err != nil {
		return protocol.Grant{}, out
	}
	return q.refusal(b), out
}

func getsIt(v vote[protocol.Grant]) bool { return v.answer.Held }
func saysYes(v vote[bool]) bool          { return v.answer }

// rest is how long the others are waited for when most nodes have answered, and no one has
// won: as long as they usually take. That may be long, and what was got is kept from all others
// meanwhile. So half of the tries, by chance, come back sooner: where few nodes are slow, others
// want the same ones that are not.
func (q *Quorum) rest(b *ballot[protocol.Grant]) time.Duration {
	if clock.N[int64](2) == 0 {
		return q.grace(b.sent)
	}
	return b.usual(q.env.Now, q.env.Patience)
}

// grace is how long the rest of the votes is waited for when a result is known that is in no
// hurry: a node that is not much slower than the others leaves nothing in doubt.
func (q *Quorum) grace(sent clock.Instant) time.Duration {
	return min(time.Millisecond+2*q.env.Now().Since(sent), q.env.Patience)
}

// LossWindow is how long the rest of the votes is waited for when most nodes do not have the
// lock any more, but some did not have it before: those that are still out decide if it was
// lost. One that does not answer at all leaves that open, and must not keep the lock for long.
// The same goes for who asks for the state.
func LossWindow(ctx context.Context, e redisexec.CallOptions) time.Duration {
	left := e.Patience
	if end, ends := ctx.Deadline(); ends {
		left = min(left, time.Until(end))
	}
	return left / 2
}

// takeBack releases the nodes that have granted, and reports whether those are clean. When
// ctx ends, it is not known.
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

// refusal is the answer of a vote that was lost or split: it names the owner with the most
// nodes, and the lock will be free when enough of the leases are over. If that is because of one key
// here and of another there, no message need tell of the end: both may be on their way already.
func (q *Quorum) refusal(b *ballot[protocol.Grant]) protocol.Grant {
	type hindrance struct {
		holder string
		key    int
	}
	var g protocol.Grant
	var frees []time.Duration // when each node is free
	has := make(map[hindrance]int)
	for _, v := range b.votes {
		free := time.Duration(math.MaxInt64)
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

// fence completes what a majority has agreed on: by the token, if one was wished.
//
// Each node has minted one, by its own counter and clock. The token is the highest of those,
// and it counts when a majority has it in the counter, put there while it had the lock for
// this owner. An owner that gets the lock later gets a node of that majority, when it has been
// free since: so its token is at least the one minted there, which is higher.
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
			if minted[n.at] == g.Token {
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

// Reenter counts when a majority has it. Those that have lost the lock get nothing new.
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

// Renew proves a lease when a majority has lengthened it, and nothing else. The lock is lost
// when so many nodes have not got it that no majority can be had. It is waited for no longer
// than one copy is on one node, whatever else is under way on those: the lease may end.
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

// Release is sent to every node, and made up for in the background on those that fail. It is
// done when most nodes do not have the lock for this owner any more: those that do not answer
// are not waited for longer than LossWindow, even if the hold was theirs too.
func (q *Quorum) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (protocol.Released, redisexec.Outcome) {
	b := put(ctx, q, q.nodes, e, question[protocol.Released]{
		names: []string{field},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Released, redisexec.Outcome) {
			return n.plain.Release(q.env.Background, e, t, field, counts)
		},
		yes: func(v vote[protocol.Released]) bool {
			return v.answer.Ours || v.out.Ambiguous && slices.Contains(counts, 0) // an earlier copy may have done it
		},
		lenient:  true,
		repeated: !slices.Contains(counts, 0),
		mend: func(n *node) {
			if freed := t.Without(counts); freed != nil && !t.Absent.Contains(n.at) {
				n.undos.Add(undo.Name{Keys: freed, Field: field, Until: q.until()})
			}
		},
	})
	defer b.close()
	result := b.countSoon(ctx, func() time.Duration { return LossWindow(ctx, e) })
	out := b.outcome(ctx)
	answer := protocol.Released{Heard: -1}
	for _, v := range b.votes {
		if v.answered() {
			answer.Heard = max(answer.Heard, v.answer.Heard)
		}
	}
	switch result {
	case carried:
		others := b.number(func(v vote[protocol.Released]) bool { return v.answered() && !v.answer.Ours })
		answer.Ours = others <= len(q.nodes)-q.majority() // so it may have been held until then
		out.Ambiguous = b.doubtful() > 0
	case rejected:
		out.Ambiguous = false // it was lost before, not by a copy of this
	}
	return answer, out
}

// Keep counts when most nodes keep the lock: too few would not keep others out. It is made up for in the
// background on those that fail.
func (q *Quorum) Keep(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, rest time.Duration) (protocol.Released, redisexec.Outcome) {
	until := q.env.Now().After(rest)
	var b *ballot[protocol.Released]
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

// bequeath is a hand-over, which counts when a majority has done it. A node that has not got the
// lock from the one does not get it for the other. t is of the one, heir of the other.
func (q *Quorum) bequeath(ctx context.Context, e redisexec.CallOptions, t, heir *keys.Set, from, to string, s *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	q.leases(s.TTL)
	b := put(ctx, q, q.nodes, e, question[protocol.Grant]{
		names: []string{from, to},
		ask: func(n *node, e redisexec.CallOptions) (protocol.Grant, redisexec.Outcome) {
			g, out := n.plain.Handoff(q.env.Background, e, t, from, to, s)
			if learnAbsence(heir, n, out); t.Absent.Contains(n.at) {
				heir.Absent.Add(n.at)
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
		// The one had it on nodes that do not answer. Neither is to have it on the others.
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
		// The one had lost it. Some nodes may have passed it on all the same, or may yet.
		q.env.Retire(to)
		q.undo(heir, to)
		return protocol.Grant{}, redisexec.Outcome{Sent: b.sent}
	}
	out := b.outcome(ctx)
	b.linger(ctx, q.env.Patience, b.complete) // if all have refused, it can be released instead
	out.Ambiguous = b.outcome(ctx).Ambiguous || b.number(b.inFavour) > 0
	return protocol.Grant{}, out
}

// undo has the keys of t released for field in the background, on every node.
func (q *Quorum) undo(t *keys.Set, field string) {
	undo.Add(undo.Name{Keys: t, Field: field, Until: q.until()}, q.undos...)
}

// Force ends the hold that a majority has said there is: on so many nodes that it has none.
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
	out.Ambiguous = b.number(func(v vote[bool]) bool { return v.answered() && v.out.Ambiguous }) > 0
	return b.number(func(v vote[bool]) bool { return v.answered() && v.answer }) > 0, out
}

// State is what most nodes say. Where they do not agree the rest is waited for for as long as
// it may decide if there is a holder: one that so many name that it may have a majority, by
// those nodes that do not answer, is named then.
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

// agreedState is the state that most votes agree on. It is certain if those that have not been
// answered cannot make it another: neither the holder, nor the number of its levels.
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
	// It holds the lock for as long as a majority has that for it.
	slices.SortFunc(most, func(a, b protocol.KeyState) int { return cmp.Compare(endless(b.TTL), endless(a.TTL)) })
	state = most[min(majority, len(most))-1]
	state.Token = free.Token
	var agreed int
	state.Counts, agreed = agreedCounts(state.Counts, most)
	return state, agreed >= majority || silent == 0 && len(most) >= majority
}

// agreedCounts are the levels that most of states name, and how many do; of equals these. A node that is slow has
// those of a moment ago, though its lease may be the longest.
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

// endless orders a PTTL by how long it lasts.
func endless(ttl time.Duration) time.Duration {
	if ttl < 0 {
		return math.MaxInt64
	}
	return ttl
}
