package relock

import (
	"context"

	"github.com/relock-go/relock/internal/keys"
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

func (q *quorum) acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *terms) (grant, redisexec.Outcome) {
	t = t.Lacking(keys.NewNodes(len(q.nodes)))
	g, out := q.elect(ctx, e, t, field, s)
	g.absent = t.Absent
	return g, out
}

func (q *quorum) handoff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, s *terms) (grant, redisexec.Outcome) {
	heir := t.Lacking(keys.NewNodes(len(q.nodes)))
	g, out := q.bequeath(ctx, e, t, heir, from, to, s)
	g.absent = heir.Absent
	return g, out
}
