package look

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Together is what the nodes of a quorum say of one name. It is held by the owner that has it on a majority.
func Together(name string, nodes []Lock, majority int) *Lock {
	l := &Lock{Name: name, Kind: Free, Nodes: nodes, Holders: []Holder{}, Waiters: []Waiter{}}
	for _, n := range nodes {
		if n.Error != "" {
			l.Disagree = append(l.Disagree, n.Node+" does not answer")
			continue
		}
		if n.Kind != Free {
			l.Kind = n.Kind
		}
		l.Foreign, l.Type = l.Foreign || n.Foreign, cmp.Or(l.Type, n.Type)
		l.Token, l.Listeners = max(l.Token, n.Token), max(l.Listeners, n.Listeners)
		for _, h := range n.Holders {
			l.count(h)
		}
	}
	for _, h := range l.Holders {
		if h.On >= majority {
			l.Held, l.TTLms = true, h.TTLms
		}
		if h.On < len(nodes) {
			l.Disagree = append(l.Disagree, fmt.Sprintf("%s has it on %d of %d nodes", h.Owner, h.On, len(nodes)))
		}
	}
	slices.SortStableFunc(l.Holders, func(a, b Holder) int {
		if a.On != b.On {
			return b.On - a.On
		}
		return strings.Compare(a.Owner, b.Owner)
	})
	return l
}

// count notes that one more node has h. It is as short as where it is shortest.
func (l *Lock) count(h Holder) {
	i := slices.IndexFunc(l.Holders, func(known Holder) bool {
		return known.Owner == h.Owner && known.Side == h.Side && known.MinHold == h.MinHold
	})
	if i < 0 {
		h.On = 1
		l.Holders = append(l.Holders, h)
		return
	}
	known := &l.Holders[i]
	known.On++
	known.Count = max(known.Count, h.Count)
	known.TTLms = min(known.TTLms, h.TTLms)
	if known.Client == nil {
		known.Client = h.Client
	}
}
