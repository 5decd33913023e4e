package relock

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUndo_WhatIsSettledIsNotWaitedFor(t *testing.T) {
	h := new(hold)
	require.Nil(t, h.nextUndo())
	first, second := make(chan struct{}), make(chan struct{})
	h.addUndo(first)
	h.addUndo(second)
	require.EqualValues(t, first, h.nextUndo())
	close(first)
	require.EqualValues(t, second, h.nextUndo())
	h.forgetUndos()
	require.Nil(t, h.nextUndo())
}
