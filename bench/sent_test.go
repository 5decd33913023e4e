package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/bench/contend"
	"github.com/relock-go/relock/internal/redistest"
)

func TestContender_CommandsOfEachAreCounted(t *testing.T) {
	var s setup
	var relays []*redistest.Relay
	for range votingServers {
		relay := redistest.NewRelay(t, redistest.NewServer(t).Addr)
		relays, s.Addrs = append(relays, relay), append(s.Addrs, relay.Addr)
	}
	s.Addr = s.Addrs[0]
	before := contend.Sent.Load()
	written := func() int { return int(contend.Sent.Load() - before) }
	seen := func() (n int) {
		for _, r := range relays {
			n += len(r.Log())
		}
		return n
	}
	for _, c := range contenders {
		handOver(t, c, s, redistest.Key(t))
		require.Eventually(t, func() bool { return written() == seen() }, 10*time.Second, time.Millisecond, c.name)
	}
	require.Greater(t, written(), 2*2*len(contenders), "two locks and their unlocks of each")
}

// handOver has one client of c wait without success for what another one holds, and get it after
// that. Both stay open: what they do afterwards counts, too.
func handOver(t *testing.T, c contender, s setup, name string) {
	var sides [2]mutex
	for i := range sides {
		client, err := c.open(s)
		require.NoError(t, err, c.name)
		t.Cleanup(func() { _ = client.Close() })
		sides[i] = client.Mutex(name)
	}
	holder, waiter := sides[0], sides[1]
	require.NoError(t, holder.Lock(t.Context()), c.name)
	busy, stop := context.WithTimeout(t.Context(), checkBusy)
	defer stop()
	require.Error(t, waiter.Lock(busy), c.name)
	require.NoError(t, holder.Unlock(), c.name)
	require.NoError(t, waiter.Lock(t.Context()), c.name)
	require.NoError(t, waiter.Unlock(), c.name)
}
