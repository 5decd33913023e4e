package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relock-go/relock/cmd/relock/internal/look"
	"github.com/relock-go/relock/cmd/relock/internal/target"
)

const stateText = `Show the state of the lock or semaphore NAME on Redis: who holds it, for how much longer, who waits and in which
order, and the last fencing token. The owner of a permit is its ID, for relock force --permit. It changes nothing.

Exit codes: 0 if it is held or a permit is in use, 1 if it is free; 64 if the key is not a lock; 69 and 77 as with
relock run.`

func (a *app) stateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "state NAME", Short: "Show who has a lock, and who waits for it", Long: stateText,
		Example: "  relock state deploy", Args: exactly(1, "one name"), ValidArgsFunction: a.namesLike,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.look(func(t *target.Target) error {
				l, err := a.lookAt(cmd, t, args[0])
				if err != nil && !partly(err) {
					return err
				}
				if a.json {
					err = errors.Join(a.printJSON(l), err)
				} else {
					a.describe(t, l, partly(err))
				}
				if err == nil && !l.Held {
					err = &exit{code: codeFailed}
				}
				return err
			})
		},
	}
	a.lookFlags(cmd, "it")
	return cmd
}

// lookAt returns what is known of name, which has to be a lock.
func (a *app) lookAt(cmd *cobra.Command, t *target.Target, name string) (*look.Lock, error) {
	l, err := look.One(cmd.Context(), t, name)
	if err == nil && l.Foreign {
		return nil, errForeign(l)
	}
	if err != nil {
		err = fmt.Errorf("look at %q: %w", name, err)
	}
	return l, err
}

// errForeign says what is there in place of a lock.
func errForeign(l *look.Lock) error {
	what := map[string]string{"string": "a string", "list": "a list", "set": "a set", "zset": "a sorted set", "stream": "a stream",
		"hash": "a hash of another program"}[l.Type]
	return usage("%q is not a lock: it is %s", l.Name, cmp.Or(what, "a key of another program"))
}

// describe prints l for eyes. unsure: too few nodes of a quorum have answered.
func (a *app) describe(t *target.Target, l *look.Lock, unsure bool) {
	facts := &table{}
	facts.add(bold, "name", clean(l.Name))
	switch {
	case unsure:
		facts.add(red, "state", "unknown")
	case l.Held && l.Kind == look.Semaphore:
		facts.add(green, "state", strconv.Itoa(l.InUse)+" in use (semaphore)")
	case l.Held:
		facts.add(green, "state", "held ("+string(l.Kind)+")")
	case len(l.Holders) > 0:
		facts.add(red, "state", "held by none: no owner has it on "+strconv.Itoa(t.Majority())+" nodes")
	default:
		facts.add(normal, "state", "free")
	}
	facts.add(normal, "token", tokenText(l.Token))
	facts.add(normal, "waiters", strconv.Itoa(l.Live())+" in line"+listening(l))
	for _, text := range l.Disagree {
		facts.add(yellow, "note", clean(text))
	}
	a.draw(facts)
	if len(l.Holders) > 0 {
		fmt.Fprintln(a.out)
		if t.Quorum() {
			a.draw(nodesTable(t, []*look.Lock{l}, true))
		} else {
			a.draw(holdersTable(l))
		}
	}
	if len(l.Waiters) > 0 {
		fmt.Fprintln(a.out)
		a.draw(waitersTable(l))
	}
}

func listening(l *look.Lock) string {
	switch {
	case l.Listeners < 0:
		return ""
	case l.Listeners == 1:
		return ", 1 connection listens"
	default:
		return ", " + strconv.Itoa(l.Listeners) + " connections listen"
	}
}

func holdersTable(l *look.Lock) *table {
	t := &table{}
	t.add(bold, "OWNER", "SIDE", "COUNT", "WEIGHT", "TTL", "WHERE", "SINCE")
	for _, h := range l.Holders {
		since := ""
		if h.Client != nil {
			since = clean(h.Client.Since)
		}
		t.add(normal, clean(h.Owner), strings.TrimSpace(h.Side+keptText(h)), strconv.Itoa(h.Count), weightText(h), short(h.TTL()), where(h.Client), since)
	}
	return t
}

func waitersTable(l *look.Lock) *table {
	t := &table{}
	t.add(bold, "PLACE", "WAITER", "QUEUE", "STATE", "WHERE")
	for i, w := range l.Waiters {
		s := normal
		if w.State != look.Waits {
			s = dim
		}
		t.add(s, strconv.Itoa(i+1), clean(w.Owner), string(w.Queue), strings.ToLower(string(w.State)), where(w.Client))
	}
	return t
}
