package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/relock-go/relock/cmd/relock/internal/child"
	"github.com/relock-go/relock/cmd/relock/internal/doctor"
	"github.com/relock-go/relock/cmd/relock/internal/target"
)

const doctorText = `Check whether this Redis is good for locks: whether it can be reached, its version and role, whether it evicts keys, what
a crash or a failover forgets, how long scripts and messages take, whether owners are in a deadlock, and whether this
user has the permissions for each kind of lock. For this, relock acquires and releases a lock of each kind, under a new
name that begins with --name. It sends no command that managed services refuse.

With --user it checks the permissions of that ACL user, and changes nothing. This needs Redis 7, and a connection that may
run ACL DRYRUN.

Exit codes: 0 fine, 1 warnings, 2 broken; 64 for wrong usage.`

func (a *app) doctorCommand() *cobra.Command {
	e := &doctor.Exam{}
	cmd := &cobra.Command{
		Use: "doctor", Short: "Find out whether a Redis is good for locks", Long: doctorText,
		Example: "  relock doctor\n  relock doctor --name orders:doctor     # for a user who may use orders:* only\n  relock doctor --user app",
		Args:    exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.look(func(t *target.Target) error {
				e.Target, e.Timeout = t, a.timeout
				findings, err := examine(cmd.Context(), e)
				if err != nil {
					return err
				}
				return a.showFindings(findings)
			})
		},
	}
	cmd.Flags().StringVar(&e.Name, "name", "relock_doctor", "the beginning of the names of the locks that it takes")
	cmd.Flags().StringVar(&e.User, "user", "", "ask what this `USER` may do")
	a.lookFlags(cmd, "the findings")
	return cmd
}

// examine returns the findings of e. If a signal ends the examination, it returns the exit code of the signal as an error, and no
// findings, because those of an ended context are not about Redis.
func examine(ctx context.Context, e *doctor.Exam) ([]doctor.Finding, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	done := make(chan []doctor.Finding, 1)
	go func() { done <- e.Run(ctx) }()
	select {
	case findings := <-done:
		return findings, nil
	case sig := <-signals:
		signal.Stop(signals) // a second one ends us at once
		cancel()
		<-done // the locks that it has acquired are released
		return nil, &exit{code: child.CodeOf(sig)}
	}
}

func (a *app) showFindings(findings []doctor.Finding) error {
	styles := map[doctor.Status]style{doctor.Fine: normal, doctor.Warning: yellow, doctor.Broken: red}
	rows := &table{}
	rows.add(bold, "STATUS", "NODE", "CHECK", "FINDING")
	several := false
	for _, f := range findings {
		several = several || f.Node != "" && f.Node != findings[0].Node
	}
	for _, f := range findings {
		node := ""
		if several {
			node = f.Node
		}
		rows.add(styles[f.Status], string(f.Status), node, f.Check, clean(f.Text))
		if f.Advice != "" {
			rows.add(styles[f.Status], "", "", "", "-> "+clean(f.Advice))
		}
	}
	if a.json {
		if err := a.printJSON(findings); err != nil {
			return err
		}
	} else {
		a.draw(rows)
	}
	switch doctor.Worst(findings) {
	case doctor.Broken:
		return &exit{code: codeBroken}
	case doctor.Warning:
		return &exit{code: codeFailed}
	}
	return nil
}
