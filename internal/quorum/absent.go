package quorum

import (
	"context"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// learnAbsence takes note of how the command ended that was to create t's name on n. No other command
// creates a name. So if this one was surely not executed, the name does not stand on n, and never will:
// there is nothing to undo there, now or later.
//
// It is learned when the command is settled. That may be after the hold has begun. So whatever asks
// t.Absent about n has to be behind the command in the line of the name.
func learnAbsence(t *keys.Set, n *node, out redisexec.Outcome) {
	if out.Err != nil && !out.Ambiguous {
		t.Absent.Add(n.at)
	}
}

// The commands that create names, and what they find out about where those are absent.

// Acquire is a vote on who gets the keys. The set of absent nodes goes with the grant, because the hold
// needs it for as long as it has the name; nodes that are slow are still being added to it then.
func (q *Quorum) Acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	t = t.Lacking(keys.NewNodes(len(q.nodes)))
	g, out := q.elect(ctx, e, t, field, s)
	g.Absent = t.Absent
	return g, out
}

// Handoff passes the keys on if a majority does. The new name has a set of absent nodes of its own: a node
// that did not hear of the hand-over has the old name, and not the new one.
func (q *Quorum) Handoff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, s *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	heir := t.Lacking(keys.NewNodes(len(q.nodes)))
	g, out := q.bequeath(ctx, e, t, heir, from, to, s)
	g.Absent = heir.Absent
	return g, out
}
