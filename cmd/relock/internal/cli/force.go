package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/cmd/relock/internal/look"
	"github.com/relock-go/relock/cmd/relock/internal/target"
)

const forceText = `Take the lock NAME away from its holder, and wake the waiters. Use it if you know that the holder is gone or stuck. If the
holder still works, it notices at its next renewal, within a third of its TTL. Until then it continues, while the next
holder may begin. If the holder is a relock run, it then ends its command.

Of a semaphore, take the permit with the ID of --permit away: relock state NAME lists the IDs.

Exit codes: 0 if it was taken away, 1 if it was free, or no such permit is in use; 64, 69 and 77 as with relock run.`

// forced is what --json prints.
type forced struct {
	Name    string        `json:"name"`
	Forced  bool          `json:"forced"`
	Holders []look.Holder `json:"holders"`
}

func (a *app) forceCommand() *cobra.Command {
	permit := ""
	cmd := &cobra.Command{
		Use: "force NAME", Short: "Take a lock away from its holder, or a permit", Long: forceText,
		Example: "  relock force deploy\n  relock force llm --permit 8743c9c0-0795-4907-87fd-6c719a6b4586:17:1", Args: exactly(1, "one name"), ValidArgsFunction: a.namesLike,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.look(func(t *target.Target) error { return a.force(cmd, t, args[0], permit) })
		},
	}
	cmd.Flags().StringVar(&permit, "permit", "", "the `ID` of a permit of a semaphore, as relock state NAME shows it")
	a.lookFlags(cmd, "what was taken away")
	return cmd
}

func (a *app) force(cmd *cobra.Command, t *target.Target, name, permit string) error {
	before, err := a.lookAt(cmd, t, name)
	if err != nil && !partly(err) {
		return err
	}
	switch {
	case permit == "" && before.Kind == look.Semaphore:
		return usage("%q is a semaphore: choose a permit by --permit ID; relock state %[1]s lists the IDs", name)
	case permit != "" && before.Kind != look.Semaphore && len(before.Holders) > 0:
		return usage("%q is not a semaphore, and has no permits", name)
	case permit != "":
		before.Holders = slices.DeleteFunc(before.Holders, func(h look.Holder) bool { return h.Owner != permit })
	}
	locks, err := t.Locks()
	if err != nil {
		return err
	}
	defer locks.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
	defer cancel()
	done, err := forceKind(ctx, locks, before, permit)
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(forced{name, done, before.Holders})
	} else if done {
		for _, h := range before.Holders {
			fmt.Fprintf(a.out, "%s: released, was held by %s\n", clean(name), who(h.Owner, h.Client))
		}
	} else if permit != "" {
		fmt.Fprintf(a.out, "%s: no such permit is in use: relock state %[1]s lists the IDs\n", clean(name))
	} else {
		fmt.Fprintf(a.out, "%s: not held\n", clean(name))
	}
	if err == nil && !done {
		err = &exit{code: codeFailed}
	}
	return err
}

// forceKind forces the lock open as the kind that it is, or the permit of a semaphore.
func forceKind(ctx context.Context, locks *relock.Client, l *look.Lock, permit string) (bool, error) {
	switch {
	case permit != "":
		return locks.Semaphore(l.Name, 1).ForceRelease(ctx, permit) // any limit will do: only a request has one
	case l.Kind == look.ReadWrite:
		return locks.RWMutex(l.Name).ForceUnlock(ctx)
	}
	return locks.Mutex(l.Name).ForceUnlock(ctx)
}
