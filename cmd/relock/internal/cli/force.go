package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/cmd/relock/internal/look"
	"github.com/relock-go/relock/cmd/relock/internal/target"
)

const forceText = `Take the lock NAME away from its holder, and wake the waiters. Use it if you know that the holder is gone or stuck. If the
holder still works, it notices at its next renewal, within a third of its TTL. Until then it continues, while the next
holder may begin. If the holder is a relock run, it then ends its command.

Exit codes: 0 if it was taken away, 1 if it was free; 64, 69 and 77 as with relock run.`

// forced is what --json prints.
type forced struct {
	Name    string        `json:"name"`
	Forced  bool          `json:"forced"`
	Holders []look.Holder `json:"holders"`
}

func (a *app) forceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "force NAME", Short: "Take a lock away from its holder", Long: forceText,
		Example: "  relock force deploy", Args: exactly(1, "one name"), ValidArgsFunction: a.namesLike,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.look(func(t *target.Target) error { return a.force(cmd, t, args[0]) })
		},
	}
	a.lookFlags(cmd, "what was taken away")
	return cmd
}

func (a *app) force(cmd *cobra.Command, t *target.Target, name string) error {
	before, err := a.lookAt(cmd, t, name)
	if err != nil && !partly(err) {
		return err
	}
	locks, err := t.Locks()
	if err != nil {
		return err
	}
	defer locks.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
	defer cancel()
	done, err := forceKind(ctx, locks, before)
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(forced{name, done, before.Holders})
	} else if done {
		for _, h := range before.Holders {
			fmt.Fprintf(a.out, "%s: released, was held by %s\n", clean(name), who(h.Owner, h.Client))
		}
	} else {
		fmt.Fprintf(a.out, "%s: not held\n", clean(name))
	}
	if err == nil && !done {
		err = &exit{code: codeFailed}
	}
	return err
}

// forceKind forces the lock open as the kind that it is.
func forceKind(ctx context.Context, locks *relock.Client, l *look.Lock) (bool, error) {
	if l.Kind == look.ReadWrite {
		return locks.RWMutex(l.Name).ForceUnlock(ctx)
	}
	return locks.Mutex(l.Name).ForceUnlock(ctx)
}
