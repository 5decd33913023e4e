package undo

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatIsSettledIsNotWaitedFor(t *testing.T) {
	var w Waits
	require.Nil(t, w.Next())
	first, second := make(chan struct{}), make(chan struct{})
	w.Add(first)
	w.Add(second)
	require.EqualValues(t, first, w.Next())
	close(first)
	require.EqualValues(t, second, w.Next())
	w.Forget()
	require.Nil(t, w.Next())
}
