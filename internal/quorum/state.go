package quorum

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// State is the state by majority. If the answers do not agree, and the other nodes can decide whether there is a holder,
// it waits for them, for LossWindow at most. After that it returns the holder that may have a majority together with the
// nodes that do not answer, because to report the lock as free would be worse.
func (q *Quorum) State(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int) (protocol.KeyState, redisexec.Outcome) {
	b := put(ctx, q, q.nodes, t, e, question[protocol.KeyState]{
		ask: func(n *node, e redisexec.CallOptions) (protocol.KeyState, redisexec.Outcome) {
			return n.plain.State(q.env.Ctx, e, t, i)
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

// agreedState returns the state that most votes agree on. It is certain if the nodes that have not answered cannot change
// the holder or its hold count.
func agreedState(votes []vote[protocol.KeyState], majority int) (state protocol.KeyState, certain bool) {
	free := protocol.KeyState{TTL: -2 * time.Millisecond}
	silent := 0
	by := make(map[string][]protocol.KeyState) // the states with the same holder
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
	var most []protocol.KeyState // the largest group
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
	// It holds the lock while a majority has its field: until the majority-th longest of its leases ends.
	slices.SortFunc(most, func(a, b protocol.KeyState) int { return cmp.Compare(endless(b.TTL), endless(a.TTL)) })
	state = most[min(majority, len(most))-1]
	state.Token = free.Token
	var agreed int
	state.Counts, agreed = agreedCounts(state.Counts, most)
	return state, agreed >= majority || silent == 0 && len(most) >= majority
}

// agreedCounts returns the hold counts that most states have, and the number of these states. In a tie, the counts these
// win. A single node may be wrong: a slow node has the counts of a moment ago, even if its lease is the longest.
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

// endless returns a PTTL for comparison: a negative one, of a key without expiry, is the longest.
func endless(ttl time.Duration) time.Duration {
	if ttl < 0 {
		return math.MaxInt64
	}
	return ttl
}
