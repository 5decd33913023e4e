package relock

import (
	"context"
	"sync/atomic"

	"github.com/relock-go/relock/internal/redisexec"
)

// absences are the nodes on which the name of a hold does not stand, and never will: the command
// that was to create it there was surely not executed, and no other command creates a name. So
// there is nothing to be undone, now or later. They are learned when that command is settled, which
// may be after the hold has begun: what asks has to be behind it in the line of the name.
// nil: of no node it is known.
type absences struct{ nodes []atomic.Bool }

func newAbsences(q *quorum) *absences { return &absences{make([]atomic.Bool, len(q.nodes))} }

func (a *absences) on(n *node) bool { return a != nil && a.nodes[n.at].Load() }

// learn takes note of how the command that was to create the name on n has ended.
func (a *absences) learn(n *node, out redisexec.Outcome) {
	if out.Err != nil && !out.Ambiguous {
		a.nodes[n.at].Store(true)
	}
}

// lacking returns t for commands about a name with these absences.
func (t *target) lacking(a *absences) *target {
	if a == nil {
		return t
	}
	lacking := *t
	lacking.absent = a
	return &lacking
}

// The commands that create names, and what they find out about where those are absent.

func (q *quorum) acquire(ctx context.Context, e redisexec.CallOptions, t *target, field string, s *terms) (grant, redisexec.Outcome) {
	t = t.lacking(newAbsences(q))
	g, out := q.elect(ctx, e, t, field, s)
	g.absent = t.absent
	return g, out
}

func (q *quorum) handoff(ctx context.Context, e redisexec.CallOptions, t *target, from, to string, s *terms) (grant, redisexec.Outcome) {
	heir := t.lacking(newAbsences(q))
	g, out := q.bequeath(ctx, e, t, heir, from, to, s)
	g.absent = heir.absent
	return g, out
}
