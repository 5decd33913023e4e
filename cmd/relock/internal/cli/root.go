// Package cli is the command line: the verbs, their flags, texts and exit codes.
//
//   - root.go has what all verbs share; exit.go the exit codes; output.go, log.go and
//     backlog.go what is written.
//   - run.go has the flags of run, runner.go what it does, lock.go the lock it takes, progress.go what it
//     shows while it waits.
//   - ls.go, state.go, force.go, watch.go and doctor.go are a verb each; man.go makes the manual, version.go is what
//     the program was built from.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/relock-go/relock/cmd/relock/internal/child"
	"github.com/relock-go/relock/cmd/relock/internal/target"
)

// app is one run of the program.
type app struct {
	*console
	urls    []string
	tls     target.Settings // what is in it of TLS
	json    bool
	timeout time.Duration // of those who look
}

// Main runs the program and returns its exit code.
func Main(args []string) int {
	redis.SetLogger(silent{})
	a := &app{console: newConsole()}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return codeFine
	}
	var own *exit
	switch {
	case errors.Is(err, errInterrupted), errors.Is(err, errCommandInterrupted):
		child.DieInterrupted(errors.Is(err, errCommandInterrupted))
	case !errors.As(err, &own) || own.err != nil:
		a.complain(err)
	}
	return codeOf(err)
}

// complain says err, and what can be done about it.
func (a *app) complain(err error) {
	text := clean(strings.TrimPrefix(err.Error(), "relock: "))
	fmt.Fprintln(a.err, "relock: "+text)
	if hint := advice(err); hint != "" {
		fmt.Fprintln(a.err, "relock: "+hint)
	}
}

const rootText = `Run a command under a lock on Redis, and see who holds which lock.

While one process holds a lock, no other gets a lock with the same name on the same Redis, on any machine. This applies
to commands under relock run, Go programs with the library github.com/relock-go/relock, and Java programs with Redisson.
The lock is a lease. relock renews it while the command runs. If relock or its machine dies, the lock is free when the
lease (--ttl) has ended.`

const rootExample = `  # a cron line on every machine: one machine runs the job, the others skip it
  */5 * * * *  relock run -n -E 0 --min-hold 1m --redis redis://db1 report -- /usr/local/bin/report

  # a deploy script: first come, first served; wait for ten minutes at most
  relock run --fair -w 10m deploy -- ./deploy.sh production

  # who holds a lock, and who waits?
  relock ls
  relock state deploy
  relock watch deploy`

const urlsText = `relock uses the Redis of --redis, or of RELOCK_REDIS (one or more URLs, separated by spaces), or
redis://localhost:6379. A password in RELOCK_REDIS does not appear in the list of processes.

` + target.Syntax + `

With several --redis the lock is on a quorum: independent servers; a majority of them holds the lock. Give the same
servers to every process. --fair, --shared, --exclusive and --slots do not work on a quorum.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "relock", Short: "Run a command under a lock on Redis, and see who holds which lock",
		Long: rootText, Example: rootExample, Version: built().version,
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q: see relock --help", args[0])
			}
			return cmd.Help()
		},
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%w: see %s --help", err, cmd.CommandPath())
	})
	root.PersistentFlags().StringArrayVar(&a.urls, "redis", nil, "`URL` of Redis, several times for a quorum; see relock help urls (default $RELOCK_REDIS, or redis://localhost:6379)")
	root.PersistentFlags().StringVar(&a.tls.Cert, "cert", "", "`FILE` of the certificate of this client, for a server with TLS that asks for one (default $RELOCK_CERT)")
	root.PersistentFlags().StringVar(&a.tls.Key, "key", "", "`FILE` of the key of --cert (default $RELOCK_KEY)")
	root.PersistentFlags().StringVar(&a.tls.CA, "cacert", "", "`FILE` of the authorities that may have signed the certificate of a server with TLS (default $RELOCK_CACERT, or the system's)")
	root.AddCommand(a.runCommand(), a.lsCommand(), a.stateCommand(), a.watchCommand(), a.forceCommand(), a.doctorCommand(), a.manCommand(), a.versionCommand(),
		&cobra.Command{Use: "urls", Short: "Which Redis to use, and how to write its URL", Long: urlsText},
		&cobra.Command{Use: "exit-codes", Short: "What the exit codes of relock run mean", Long: "The exit codes of relock run:\n\n" + codesText})
	return root
}

// settings returns the settings of the flags, or of the environment.
func (a *app) settings(timeout time.Duration) target.Settings {
	s := a.tls
	s.Timeout = timeout
	for variable, file := range map[string]*string{"RELOCK_CERT": &s.Cert, "RELOCK_KEY": &s.Key, "RELOCK_CACERT": &s.CA} {
		if *file == "" {
			*file = os.Getenv(variable)
		}
	}
	return s
}

// open returns the Redis that the user wants.
func (a *app) open(timeout time.Duration) (*target.Target, error) {
	urls := a.urls
	if len(urls) == 0 {
		urls = strings.Fields(os.Getenv("RELOCK_REDIS"))
	}
	if len(urls) == 0 {
		urls = []string{"redis://localhost:6379"}
	}
	t, err := target.Open(urls, a.settings(timeout))
	if err != nil {
		return nil, &exit{codeUsage, err}
	}
	return t, nil
}

// with runs f with the Redis that the user wants. Each answer may take as long as timeout; 0: as locks need it. The
// connections end with this process: to close them may take long if Redis does not answer.
func (a *app) with(timeout time.Duration, f func(*target.Target) error) error {
	t, err := a.open(timeout)
	if err != nil {
		return err
	}
	return f(t)
}

// look is with for commands that only read.
func (a *app) look(f func(*target.Target) error) error {
	if a.timeout <= 0 {
		return usage("--timeout %v: must be positive", a.timeout)
	}
	return a.with(a.timeout, f)
}

// defaultTimeout is how long commands that only read wait for each answer.
const defaultTimeout = 5 * time.Second

// lookFlags gives cmd the flags of commands that only read: --json prints what.
func (a *app) lookFlags(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print "+what+" as JSON")
	cmd.Flags().DurationVar(&a.timeout, "timeout", defaultTimeout, "how long to wait for each answer of Redis")
}

// exactly wants so many arguments.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usage("%s takes %s, not %d: see %s --help", cmd.Name(), what, len(args), cmd.CommandPath())
		}
		return nil
	}
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
