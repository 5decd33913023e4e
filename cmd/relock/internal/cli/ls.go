package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relock-go/relock/cmd/relock/internal/look"
	"github.com/relock-go/relock/cmd/relock/internal/target"
)

const lsText = `List the locks whose names match PATTERN and that an owner holds or waits for. In PATTERN, * matches any text, ? one
character, and [ab] one of these characters. The list contains every kind of lock, also locks of Go programs and of
Redisson, and no other keys. It uses SCAN, which does not block Redis, on all masters of a Cluster.

OWNER is the client and the owner in it: the beginning of the client's uuid (all of it with --long), then host/pid of a
relock run, or the number of a goroutine or thread. A semaphore has a row for each permit in use, with its ID and its
WEIGHT. TTL is the remaining lease; "never ends" means that another program has set the key. (min hold) means that the
holder has released the lock, and --min-hold keeps it unavailable. WAITERS are the waiters in line, and in the queue of
Redisson's fair lock. ~2 means that there is no line, but two connections are subscribed to releases.

With --waits the list has the holders that have waited for another lock for 5 s or more, in their place what they wait
for and who holds that, and then the deadlocks: holders that wait for each other. Locks whose names do not match PATTERN
are not followed. With --dot it is a graph for Graphviz. The holders are those of Go programs and of relock run; there
are none on a quorum.

On a quorum each node has a column with the TTL on that node: - means that the node does not have this owner, ? that it
does not answer. NOTE describes where the nodes disagree.`

func (a *app) lsCommand() *cobra.Command {
	long, waits, dot := false, false, false
	cmd := &cobra.Command{
		Use: "ls [PATTERN]", Short: "List the locks that are held or waited for", Long: lsText,
		Example: "  relock ls\n  relock ls 'orders:*' --json\n  relock ls --waits\n  relock ls --dot | dot -Tsvg > waits.svg",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("ls takes one pattern, not %d: put it in quotes, as '*'", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if dot && a.json {
				return usage("--dot and --json contradict each other: a graph is not JSON")
			}
			return a.look(func(t *target.Target) error {
				pattern := append(args, "*")[0]
				locks, unsure := look.All(cmd.Context(), t, pattern)
				if unsure != nil {
					unsure = fmt.Errorf("list locks like %q: %w", pattern, unsure)
					if !partly(unsure) {
						return unsure
					}
				}
				if waits || dot {
					if err := look.NoteWaits(cmd.Context(), t, locks); err != nil {
						return fmt.Errorf("read who waits for whom: %w", err)
					}
				}
				switch {
				case dot:
					a.drawGraph(locks)
					return unsure
				case waits && !a.json:
					a.showWaits(locks, long)
					return unsure
				}
				return errors.Join(a.showLocks(t, locks, long), unsure)
			})
		},
	}
	cmd.Flags().BoolVarP(&long, "long", "l", false, "show owners in full")
	cmd.Flags().BoolVar(&waits, "waits", false, "list the holders that wait for another lock, and the deadlocks")
	cmd.Flags().BoolVar(&dot, "dot", false, "print who waits for whom as a graph for Graphviz")
	a.lookFlags(cmd, "them")
	return cmd
}

// partly reports whether err comes with what a minority of a quorum says.
func partly(err error) bool {
	var few *look.Minority
	return errors.As(err, &few)
}

func (a *app) showLocks(t *target.Target, locks []*look.Lock, long bool) error {
	switch {
	case a.json:
		return a.printJSON(append([]*look.Lock{}, locks...))
	case t.Quorum():
		a.draw(nodesTable(t, locks, long))
	default:
		a.draw(locksTable(locks, long))
	}
	return nil
}

// locksTable shows the locks of one Redis: a row for each holder.
func locksTable(locks []*look.Lock, long bool) *table {
	t := &table{}
	t.add(bold, "NAME", "KIND", "OWNER", "COUNT", "WEIGHT", "TTL", "TOKEN", "WAITERS", "WHERE")
	for _, l := range locks {
		if len(l.Holders) == 0 {
			t.add(dim, clean(l.Name), string(l.Kind), "-", "", "", "", tokenText(l.Token), waitersText(l), "")
		}
		for _, h := range l.Holders {
			s := normal
			if h.TTLms < 0 {
				s = red
			}
			t.add(s, clean(l.Name), kindText(l, h), ownerText(h.Owner, long), strconv.Itoa(h.Count), weightText(h), short(h.TTL()), tokenText(l.Token), waitersText(l), where(h.Client))
		}
	}
	return t
}

// nodesTable shows the locks of a quorum: a row for each holder, with a column for each node.
func nodesTable(t *target.Target, locks []*look.Lock, long bool) *table {
	rows := &table{}
	head := []string{"NAME", "OWNER", "COUNT", "TOKEN"}
	for _, n := range t.Nodes {
		head = append(head, strings.ToUpper(n.Name))
	}
	rows.add(bold, append(head, "WHERE", "NOTE")...)
	for _, l := range locks {
		for _, h := range l.Holders {
			row := []string{clean(l.Name), ownerText(h.Owner, long), strconv.Itoa(h.Count), tokenText(l.Token)}
			for _, n := range l.Nodes {
				row = append(row, onNode(n, h))
			}
			s, note := normal, ""
			if h.On < len(l.Nodes) {
				s, note = yellow, "on "+strconv.Itoa(h.On)+" of "+strconv.Itoa(len(l.Nodes))
			}
			if h.On < t.Majority() {
				s, note = red, note+": does not hold it"
			}
			rows.add(s, append(row, where(h.Client), note)...)
		}
	}
	return rows
}

// onNode is what a node says of a holder.
func onNode(n look.Lock, h look.Holder) string {
	if n.Error != "" {
		return "?"
	}
	for _, there := range n.Holders {
		if there.Owner == h.Owner && there.Side == h.Side && there.MinHold == h.MinHold {
			return short(there.TTL())
		}
	}
	return "-"
}

func kindText(l *look.Lock, h look.Holder) string {
	if h.Side != "" {
		return string(l.Kind) + " " + h.Side + keptText(h)
	}
	return string(l.Kind) + keptText(h)
}

// keptText says that a hold has ended whose lock others cannot have yet.
func keptText(h look.Holder) string {
	if h.MinHold {
		return " (min hold)"
	}
	return ""
}

func weightText(h look.Holder) string {
	if h.Weight == 0 {
		return ""
	}
	return strconv.Itoa(h.Weight)
}

func ownerText(owner string, long bool) string {
	if long {
		return clean(owner)
	}
	return brief(owner)
}

func tokenText(token int64) string {
	if token == 0 {
		return ""
	}
	return strconv.FormatInt(token, 10)
}

func waitersText(l *look.Lock) string {
	switch live := l.Live(); {
	case live > 0:
		return strconv.Itoa(live)
	case l.Kind == look.ReadWrite && l.Listeners > 0:
		return "~" + strconv.Itoa(l.Listeners)
	default:
		return ""
	}
}

// namesLike completes a name by those of locks.
func (a *app) namesLike(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	_ = a.look(func(t *target.Target) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		locks, err := look.All(ctx, t, "*")
		for _, l := range locks {
			if strings.HasPrefix(l.Name, begun) {
				names = append(names, l.Name)
			}
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
