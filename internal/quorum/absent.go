package quorum

import (
	"context"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// learnAbsence takes note of how the command that was to create t's name on n has ended. The name
// does not stand there, and never will, if that was surely not executed: no other command creates
// a name. So there is nothing to be undone on n, now or later. That is learned when the command is
// settled, which may be after the hold has begun: what asks has to be behind it in the line of the
// name.
func learnAbsence(t *keys.Set, n *node, out redisexec.Outcome) {
	if out.Err != nil && !out.Ambiguous {
		t.Absent.Add(n.at)
	}
}

// The commands that create names, and what they find out about where those are absent.

// Acquire is a vote on who gets the keys.
func (q *Quorum) Acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	t = t.Lacking(keys.NewNodes(len(q.nodes)))
	g, out := q.elect(ctx, e, t, field, s)
	g.Absent = t.Absent
	return g, out
}

// Handoff passes the keys on if a majority does.
func (q *Quorum) Handoff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, s *protocol.Terms) (protocol.Grant, redisexec.Outcome) {
	heir := t.Lacking(keys.NewNodes(len(q.nodes)))
	g, out := q.bequeath(ctx, e, t, heir, from, to, s)
	g.Absent = heir.Absent
	return g, out
}
