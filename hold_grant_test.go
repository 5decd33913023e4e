package relock

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUndo_WhatIsSettledIsNotWaitedFor(t *testing.T) {
	var w undoWaits
	require.Nil(t, w.next())
	first, second := make(chan struct{}), make(chan struct{})
	w.add(first)
	w.add(second)
	require.EqualValues(t, first, w.next())
	close(first)
	require.EqualValues(t, second, w.next())
	w.forget()
	require.Nil(t, w.next())
}
