package redistest

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRelay_FaultsApplyToOpeningConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	r := NewRelay(t, l.Addr().String())
	opened, welcome := r.opens(r.listener)
	require.True(t, welcome)
	pipe := func() duplex {
		c, err := dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}

	r.BlackHoleCurrent()
	c := r.register(pipe(), pipe(), opened)
	require.True(t, c.swallowCommands.Load() && c.swallowReplies.Load())
	r.forget(c)

	r.Cut()
	require.Nil(t, r.register(pipe(), pipe(), opened))

	refusing := r.listener
	require.NoError(t, r.Refuse(true))
	_, welcome = r.opens(refusing)
	require.False(t, welcome)
}
