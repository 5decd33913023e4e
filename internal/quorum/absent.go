package quorum

import (
	"context"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// recordAbsence records whether the command that should create t's name on n was executed. No other command
// creates a name. So if it was certainly not executed, the name is not on n, and never will be:
// there is nothing to undo there, now or later.
//
// This is recorded when the command is settled, which may be after the hold has begun. So code that reads t.Absent for n
// has to be behind the command in the queue of the name.
func recordAbsence(t *keys.Set, n *node, out redisexec.Outcome) {
	if out.Err != nil && !out.Ambiguous {
		t.Absent.Add(n.at)
	}
}

// The commands that create names, and record on which nodes these are absent.

// Acquire is a vote on the owner of the keys. The set of absent nodes is part of the grant, because the hold needs it for
// as long as it has the name. Slow nodes are added later.
func (q *Quorum) Acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	t = t.Lacking(keys.NewNodes(len(q.nodes)))
	g, out := q.elect(ctx, e, t, field, s)
	g.Absent = t.Absent
	return g, out
}

// Handoff passes the keys on if a majority does so. The new name has its own set of absent nodes: a node that the
// hand-over did not reach has only the old name.
func (q *Quorum) Handoff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, s *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	heir := t.Lacking(keys.NewNodes(len(q.nodes)))
	g, out := q.bequeath(ctx, e, t, heir, from, to, s)
	g.Absent = heir.Absent
	return g, out
}
