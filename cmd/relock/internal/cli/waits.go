package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/cmd/relock/internal/look"
)

// showWaits prints the holders that have waited for long, and the deadlocks.
func (a *app) showWaits(locks []*look.Lock, long bool) {
	rows := &table{}
	rows.add(bold, "OWNER", "HOLDS", "WAITS FOR", "HELD BY", "FOR", "WHERE")
	for _, l := range locks {
		for _, h := range l.Holders {
			if h.Waits == nil {
				continue
			}
			since := time.Since(time.UnixMilli(h.Waits.Since))
			for _, key := range h.Waits.For {
				rows.add(normal, ownerText(h.Owner, long), clean(l.Name), clean(key), holdersText(locks, key, long), short(max(0, since)), clean(h.Waits.Host))
			}
		}
	}
	a.draw(rows)
	for _, text := range look.Deadlocks(locks) {
		fmt.Fprintln(a.out, a.paint(red, "deadlock: "+clean(text)))
	}
}

// holdersText names the holders of a lock.
func holdersText(locks []*look.Lock, name string, long bool) string {
	at := slices.IndexFunc(locks, func(l *look.Lock) bool { return l.Name == name })
	if at < 0 {
		return "?"
	}
	var all []string
	for _, h := range locks[at].Holders {
		all = append(all, ownerText(h.Owner, long))
	}
	return strings.Join(all, ", ")
}

// drawGraph prints a graph of owners: an arrow leads from one that waits to the one that holds what it waits for.
func (a *app) drawGraph(locks []*look.Lock) {
	fmt.Fprintln(a.out, "digraph waits {")
	for _, l := range locks {
		for _, h := range l.Holders {
			if h.Waits == nil {
				continue
			}
			for _, key := range h.Waits.For {
				for _, other := range locks {
					for _, holder := range other.Holders {
						if other.Name == key && holder.Owner != h.Owner {
							fmt.Fprintf(a.out, "  %q -> %q [label=%q];\n", brief(h.Owner), brief(holder.Owner), clean(key))
						}
					}
				}
			}
		}
	}
	for _, text := range look.Deadlocks(locks) {
		fmt.Fprintf(a.out, "  // deadlock: %s\n", clean(text))
	}
	fmt.Fprintln(a.out, "}")
}
