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
				messages := redistest.MessagesDuring(b.t, b.rdb, []string{grants}, func() { token = asks(b) })
				require.Equal(b.t, [][]string{{fmt.Sprintf("1 %d", token)}}, messages)
				require.Equal(b.t, textOf(day, text(token)), b.look(b.on.Counters[0]))
			})
		})
	}
}

// A poll that is under way when a release grants the lock finds that. It returns the token of the message, which the
// waiter may have got first, if it is certain that it was minted since a reply said that the waiter waits. Otherwise
// a failover may have brought back an earlier hold by the same name: that one's token is not returned again.
func TestLine_APollRepeatsTheTokenOfAGrant(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		fencing(b.terms)
		counter := b.on.Counters[0]
		poll := func(last int64) EntryStatus {
			all, _, out := b.lined.Poll(b.t.Context(), once, b.on, []Waiter{{Field: me, Terms: b.terms, Last: last}})
			mustDo(b.t, out)
			return all[0]
		}
		b.paint(b.on.Keys[0], hashOf(short, them, "1"))
		b.paint(counter, textOf(short, "41"))
		g, out := b.lined.Enqueue(b.t.Context(), once, b.on, me, b.terms, 1)
		mustDo(b.t, out)
		require.True(b.t, g.Waits)
		require.EqualValues(b.t, 41, g.Token)
		behind, out := b.lined.Enqueue(b.t.Context(), once, b.on, you, b.terms, 2) // in the shorter way of the script
		mustDo(b.t, out)
		require.EqualValues(b.t, 41, behind.Token)
		b.paint(counter, textOf(short, "42"))
		require.Equal(b.t, EntryStatus{State: EntryWaiting, Token: 42}, poll(41))

		require.True(b.t, b.release(them).Granted)
		granted := b.look(counter).Text
		require.NotEqual(b.t, "42", granted)
		for _, last := range []int64{41, 42} {
			s := poll(last)
			require.Equal(b.t, EntryGranted, s.State)
			require.Equal(b.t, granted, text(s.Token))
			require.Equal(b.t, granted, b.look(counter).Text)
		}

		latest := poll(0) // it has received none
		require.Greater(b.t, text(latest.Token), granted)
		require.Greater(b.t, poll(latest.Token).Token, latest.Token, "no other was minted since")
		b.paint(counter, absent)
		require.Greater(b.t, poll(1).Token, latest.Token, "the counter was lost")
	})
}
