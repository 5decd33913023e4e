package doctor

import (
	"context"

	"github.com/relock-go/relock/cmd/relock/internal/look"
)

// deadlocks notes the deadlocks of owners that are only reported, or that have just begun. Who may not SCAN, or has too many keys
// for the time of one answer, gets no finding.
func (e *Exam) deadlocks(ctx context.Context) {
	if e.Target.Quorum() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	locks, err := look.All(ctx, e.Target, "*")
	if err == nil {
		err = look.NoteWaits(ctx, e.Target, locks)
	}
	if err != nil {
		return
	}
	all := look.Deadlocks(locks)
	for _, text := range all {
		e.note(Warning, "deadlocks", "end one of them; then lock names in one order everywhere, or together as a MultiMutex", "%s", text)
	}
	if len(all) == 0 {
		e.note(Fine, "deadlocks", "", "none among the %d locks that are held or waited for", len(locks))
	}
}
