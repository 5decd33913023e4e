// Package doctor finds out what of a Redis is wrong for locks, as the user that it is given sees it.
//
//   - doctor.go has the findings, and the order of the examination.
//   - deadlocks.go looks for owners that wait for each other.
//   - info.go looks at what INFO says; wire.go at scripts and messages; kinds.go takes a lock of each kind;
//     acl.go asks what another user may do.
package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/cmd/relock/internal/hint"
	"github.com/relock-go/relock/cmd/relock/internal/target"
)

// Status is how grave a finding is.
type Status string

// The statuses, from the least to the most grave.
const (
	Fine    Status = "ok"
	Warning Status = "warning"
	Broken  Status = "broken"
)

// Finding is what one check has found.
type Finding struct {
	Status Status `json:"status"`
	Node   string `json:"node"`
	Check  string `json:"check"`
	Text   string `json:"finding"`
	Advice string `json:"advice,omitempty"`
}

// Exam is one examination.
type Exam struct {
	Target *target.Target
	Name   string // of the locks that are tried: something is put behind it
	User   string // of the ACL, whose permissions are asked for; "": the one that is connected

	Timeout time.Duration // for each answer

	findings []Finding
	node     string
}

// Run examines the target, and returns what was found.
func (e *Exam) Run(ctx context.Context) []Finding {
	e.Name += ":" + uuid.NewString()
	nodes := make([]Exam, len(e.Target.Nodes)) // each notes what it finds by itself: silent ones are waited for together
	answers := make([]bool, len(nodes))
	var all sync.WaitGroup
	for i, n := range e.Target.Nodes {
		nodes[i] = *e
		all.Go(func() { answers[i] = nodes[i].examine(ctx, n) })
	}
	all.Wait()
	answering := 0
	for i, found := range nodes {
		e.findings = append(e.findings, found.findings...)
		if answers[i] {
			answering++
		}
	}
	if answering >= e.Target.Majority() && e.User == "" {
		e.kinds(ctx)
		e.deadlocks(ctx)
	}
	if e.Target.Quorum() {
		e.votes(answering)
	}
	return e.findings
}

// Worst is the gravest status of findings.
func Worst(findings []Finding) Status {
	worst := Fine
	for _, f := range findings {
		if f.Status == Broken || f.Status == Warning && worst == Fine {
			worst = f.Status
		}
	}
	return worst
}

// remedy is what can be done about err: permission, if that is what is missing.
func remedy(err error, permission string) string {
	if hint.Forbidden(err) {
		return permission
	}
	return hint.For(err)
}

func (e *Exam) note(s Status, check, advice, text string, args ...any) {
	e.findings = append(e.findings, Finding{s, e.node, check, fmt.Sprintf(text, args...), advice})
}

// examine looks at one node, and reports whether it answers.
func (e *Exam) examine(ctx context.Context, n *target.Node) bool {
	e.node = n.Name
	answers := false
	err := n.EachMaster(ctx, func(ctx context.Context, rdb *redis.Client) error {
		if n.Kind == target.Cluster {
			e.node = rdb.Options().Addr
		}
		began := time.Now()
		if err := rdb.Ping(ctx).Err(); err != nil {
			return err
		}
		answers = true
		e.note(Fine, "reach", "", "answers within %v", round(time.Since(began)))
		e.info(ctx, n, rdb)
		return nil
	})
	if err != nil {
		e.note(Broken, "reach", hint.For(err), "%v", err)
		return false
	}
	e.node = n.Name
	if !answers {
		e.note(Broken, "reach", "", "no master is known")
		return false
	}
	if e.User != "" {
		e.permissions(ctx, n)
		return true
	}
	e.script(ctx, n)
	e.messages(ctx, n)
	return true
}

// votes says whether there are enough nodes.
func (e *Exam) votes(answering int) {
	nodes, majority := len(e.Target.Nodes), e.Target.Majority()
	switch {
	case answering < majority:
		e.note(Broken, "quorum", "", "%d of %d nodes answer, %d required", answering, nodes, majority)
	case answering < nodes:
		e.note(Warning, "quorum", "", "%d of %d nodes answer, which is enough", answering, nodes)
	case nodes%2 == 0:
		e.note(Warning, "quorum", "use 3 or 5 nodes", "%d nodes tolerate %d failures, no more than %d nodes do", nodes, nodes-majority, nodes-1)
	default:
		e.note(Fine, "quorum", "", "all %d nodes answer", nodes)
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
