package protocol

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// A script that finds the lock free, as an unlock of Java leaves it, grants it to the first in line and sends a
// message of that. If it was sent by the one that is served, its reply has the same token as the message.
func TestLine_AGrantHasOneToken(t *testing.T) {
	for name, asks := range map[string]func(b *linedBench) int64{
		"by a poll": func(b *linedBench) int64 {
			all, _, out := b.lined.Poll(b.t.Context(), once, b.on, []Waiter{{Field: me, Terms: b.terms}})
			mustDo(b.t, out)
			require.Equal(b.t, EntryGranted, all[0].State)
			return all[0].Token
		},
		"by a copy of the request for its place": func(b *linedBench) int64 {
			g, out := b.lined.Enqueue(b.t.Context(), once, b.on, me, b.terms, b.tickets)
			mustDo(b.t, out)
			require.True(b.t, g.Held)
			return g.Token
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachLinedBench(t, func(b *linedBench) {
				fencing(b.terms)
				b.paint(b.on.Keys[0], hashOf(short, them, "1"))
				b.enqueue(me)
				b.paint(b.on.Keys[0], absent)
				var token int64
				grants := keys.GrantsPrefix(b.on.Keys[0]) + "p"
				heard := redistest.Heard(b.t, b.rdb, []string{grants}, func() { token = asks(b) })
				require.Equal(b.t, [][]string{{fmt.Sprintf("1 %d", token)}}, heard)
				require.Equal(b.t, textOf(day, text(token)), b.look(b.on.Counters[0]))
			})
		})
	}
}
