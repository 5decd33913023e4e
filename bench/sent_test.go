package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestSent_CommandsAreCountedWhereverTheyAreCut(t *testing.T) {
	stream := "*1\r\n$4\r\nPING\r\n" +
		"*2\r\n$4\r\nECHO\r\n$14\r\n*1\r\n$4\r\nPING\r\n\r\n" + // an argument that looks like a command
		"*3\r\n$3\r\nSET\r\n$12\r\n*$\r\n*1\r\n$4\r\n\r\n$0\r\n\r\n" +
		"*1\r\n$4\r\nPING\r\n"
	for cut := range len(stream) {
		var r requests
		require.Equal(t, int64(4), r.count([]byte(stream[:cut]))+r.count([]byte(stream[cut:])), "at %d", cut)
	}
	var r requests
	n := int64(0)
	for _, b := range []byte(strings.Repeat(stream, 3)) {
		n += r.count([]byte{b})
	}
	require.Equal(t, int64(12), n)
}

func TestSent_CommandsOfEveryContenderAreCounted(t *testing.T) {
	var s setup
	var relays []*redistest.Relay
	for range votingServers {
		relay := redistest.NewRelay(t, redistest.NewServer(t).Addr)
		relays, s.Addrs = append(relays, relay), append(s.Addrs, relay.Addr)
	}
	s.Addr = s.Addrs[0]
	before := sent.Load()
	written := func() int { return int(sent.Load() - before) }
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
		t.Cleanup(func() { _ = client.close() })
		sides[i] = client.mutex(name)
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
