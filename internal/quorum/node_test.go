package quorum

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestQuorumNode_CommandsOfOneNameKeepTheirOrder(t *testing.T) {
	t.Parallel()
	n := &node{last: make(map[string]chan struct{})}
	begun := func(turn *turn) bool {
		for _, before := range turn.before {
			select {
			case <-before:
			default:
				return false
			}
		}
		return true
	}
	first, other := n.enqueue([]string{"a"}), n.enqueue([]string{"b"})
	both, last := n.enqueue([]string{"a", "b"}), n.enqueue([]string{"b"})
	require.True(t, begun(first))
	require.True(t, begun(other))
	require.False(t, begun(both))

	passed := make(chan string, 2)
	go func() {
		last.await()
		passed <- "last"
		last.pass()
	}()
	go func() {
		both.await()
		passed <- "both"
		both.pass()
	}()
	first.pass()
	require.False(t, begun(both), "it has another name, too")
	require.Empty(t, passed)
	other.pass()
	require.Equal(t, "both", redistest.Receive(t, passed))
	require.Equal(t, "last", redistest.Receive(t, passed))
	redistest.Eventually(t, "nothing is kept", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.last) == 0
	})
}
