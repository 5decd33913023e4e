package cli

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/cmd/relock/internal/child"
	"github.com/relock-go/relock/cmd/relock/internal/target"
)

const (
	defaultTTL       = 30 * time.Second
	defaultKillAfter = 10 * time.Second
)

// errBusy says that the lock is another owner's, or that no slot is free.
var errBusy = errors.New("another owner holds the lock")

// runFlags are the flags of run.
type runFlags struct {
	noWait, fair, shared, exclusive, verbose bool

	wait, ttl, minHold, maxHold, killAfter time.Duration

	slots, busyCode int
	log             string
}

// what is what CMD runs under.
func (f *runFlags) what() string {
	if f.slots > 0 {
		return "permit"
	}
	return "lock"
}

const runText = `Acquire the lock NAME, run CMD with ARGS, and release the lock.

With --slots N, at most N commands run at a time, over all machines. Each has a permit of the semaphore NAME in place of
the lock. What this text says of the lock is true of the permit.

CMD runs without a shell, in a process group of its own, and on this terminal if there is one. Its environment has
RELOCK_NAME and RELOCK_TOKEN. The token is a number that is higher with each holder: the store that CMD writes to can
reject a lower number than it has seen. (With --shared and --slots there is no token.) If CMD contains a relock run that
would wait for the same lock, that relock run exits with 64 at once.

Signals to relock go to the process group of CMD, except SIGTSTP (Ctrl-Z): it suspends neither relock nor CMD, because
others would wait for a suspended command. After SIGTERM, SIGINT, SIGHUP or SIGQUIT relock holds the lock until all
processes of CMD have ended, but not for longer than --kill-after after the first of them, also if the signal came to CMD
alone and has ended its first process. If CMD runs in the background and reads from the terminal, it is stopped until it
is brought to the foreground; relock continues to hold the lock. If a signal such as SIGINT or SIGTERM arrives while
relock waits, the wait ends, and CMD never starts.

Otherwise relock holds the lock until CMD ends. Processes that CMD leaves in the background run without the lock. relock
renews the lock. If renewal fails, the process group of CMD gets SIGTERM, --kill-after before the lease ends, and SIGKILL
when that time is over. So no other owner gets the lock while CMD runs. (If relock has waited for the lock, the lease is
5s until the first renewal, 0.3s later. If no renewal succeeds, CMD gets SIGTERM after half of the 5s.) If the lock was
deleted or forced open, CMD gets SIGTERM as soon as relock notices this, and SIGKILL after --kill-after.

If relock itself is killed (SIGKILL), Linux also kills CMD, but not processes that CMD has started. The lock is free
after --ttl.

Exit codes:

` + codesText

const runExample = `  relock run -n backup -- pg_dump -f /backup/db.sql db         # skip it if another owner has the lock: exit code 75
  relock run -n --min-hold 50s tick -- ./tick.sh               # once a minute, though ten machines' clocks differ
  relock run -w 10m --fair deploy -- ./deploy.sh               # first come, first served; 75 after ten minutes
  relock run --max-hold 1h nightly -- make report              # SIGTERM after an hour
  relock run --shared data -- ./read.sh                        # many of these at once,
  relock run --exclusive data -- ./rewrite.sh                  # or one of these
  relock run --slots 20 llm -- ./summarize.sh                  # at most 20 of these at a time
  relock run migrate -- sh -c 'migrate --fence=$RELOCK_TOKEN'  # a shell, if you want one`

func (a *app) runCommand() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use: "run [flags] NAME -- CMD [ARGS...]", Short: "Run a command under a lock",
		Long: runText, Example: runExample,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash < 0:
				return usage("put -- between the name and the command, as in: relock run NAME -- CMD")
			case dash != 1:
				return usage("one name goes before --, not %d", dash)
			case len(args) < 2:
				return usage("the command after -- is missing")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			return a.with(0, func(t *target.Target) error {
				return newRunner(a, f, t, args[0], args[1:]).run()
			})
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.noWait, "no-wait", "n", false, "do not wait: exit with 75 if another owner holds the lock, or no slot is free")
	flags.DurationVarP(&f.wait, "wait", "w", 0, "wait for at most this long, such as 90s or 10m, then exit with 75 (default: no limit)")
	flags.IntVarP(&f.busyCode, "busy-code", "E", codeBusy, "exit with `CODE` instead of 75")
	flags.BoolVar(&f.fair, "fair", false, "first come, first served, over all processes that use --fair")
	flags.BoolVar(&f.shared, "shared", false, "share the lock with other --shared commands; --exclusive commands wait")
	flags.BoolVar(&f.exclusive, "exclusive", false, "exclude --shared and other --exclusive commands; locks without these two flags need another name")
	flags.IntVar(&f.slots, "slots", 0, "run at most `N` commands of this name at a time, first come, first served; locks need another name. N is not stored: if it differs between commands, each keeps to its own")
	flags.DurationVar(&f.ttl, "ttl", defaultTTL, "the lease: how long the lock remains if relock is killed")
	flags.DurationVar(&f.minHold, "min-hold", 0, "keep the lock unavailable for at least this long, even if the command ends earlier: for jobs that several machines start at about the same time. With --slots N at most N commands start in this time")
	flags.DurationVar(&f.maxHold, "max-hold", 0, "end the command after this time (default: no limit)")
	flags.DurationVar(&f.killAfter, "kill-after", 0, "the time from SIGTERM to SIGKILL, if the lock was lost or --max-hold is over, and the time for the rest of CMD after a signal; at most half of --ttl (default 10s, or a third of --ttl if that is less)")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "report on standard error what happens to the lock")
	flags.StringVar(&f.log, "log", "text", "the format of messages on standard error: text or json")
	return cmd
}

// check says which flag is wrong.
func (f *runFlags) check(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("kill-after") {
		f.killAfter = min(defaultKillAfter, f.ttl/3)
	}
	switch {
	case f.noWait && cmd.Flags().Changed("wait"):
		return usage("--no-wait and --wait contradict each other")
	case f.fair && f.shared || f.fair && f.exclusive || f.shared && f.exclusive:
		return usage("--fair, --shared and --exclusive contradict each other")
	case cmd.Flags().Changed("slots") && f.slots < 1:
		return usage("--slots %d: must be at least 1", f.slots)
	case f.slots > 0 && (f.shared || f.exclusive):
		return usage("--slots contradicts --shared and --exclusive: it is for a semaphore, and they are for a read-write lock")
	case f.slots > 0 && f.fair:
		return usage("--slots contradicts --fair: with --slots it is always first come, first served")
	case f.ttl <= 0:
		return usage("--ttl %v: must be positive", f.ttl)
	case f.wait < 0:
		return usage("--wait %v is negative", f.wait)
	case f.maxHold < 0 || f.maxHold == 0 && cmd.Flags().Changed("max-hold"):
		return usage("--max-hold %v: must be positive", f.maxHold)
	case f.minHold < 0 || f.minHold == 0 && cmd.Flags().Changed("min-hold"):
		return usage("--min-hold %v: must be positive", f.minHold)
	case f.killAfter < 0:
		return usage("--kill-after %v is negative", f.killAfter)
	case f.killAfter > f.ttl/2:
		return usage("--kill-after %v is more than half of --ttl %v: there would be no time to renew the lock again", f.killAfter, f.ttl)
	case f.busyCode < 0 || f.busyCode > 255:
		return usage("--busy-code %d: must be from 0 to 255", f.busyCode)
	case f.log != "text" && f.log != "json":
		return usage("--log %q: must be text or json", f.log)
	}
	f.noWait = f.noWait || cmd.Flags().Changed("wait") && f.wait == 0
	if err := child.Supported(); err != nil {
		return &exit{codeUsage, err}
	}
	return nil
}

// options are those of the client of the library.
func (f *runFlags) options(hooks relock.Hooks) []relock.ClientOption {
	opts := []relock.ClientOption{relock.WithTTL(f.ttl), relock.WithHooks(hooks), relock.WithClientInfo()}
	if f.wait > 0 {
		opts = append(opts, relock.WithWaitTimeout(f.wait))
	}
	if f.minHold > 0 {
		opts = append(opts, relock.WithMinHold(f.minHold))
	}
	return opts
}

// owner is what this process is called on Redis, behind the id of its client.
func owner() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return strings.ReplaceAll(host, ":", "-") + "/" + strconv.Itoa(os.Getpid())
}
