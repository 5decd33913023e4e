//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package redisexec

import (
	"crypto/tls"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestPeek_FindsTheEndAndWhatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	for name, happens := range map[string]func(server net.Conn){
		"end":             func(server net.Conn) { _ = server.Close() },
		"part of a reply": func(server net.Conn) { _, _ = server.Write([]byte("+")) },
	} {
		for _, encrypted := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", encrypted: ", encrypted), func(t *testing.T) {
				client, err := net.Dial("tcp", listener.Addr().String())
				require.NoError(t, err)
				defer func() { _ = client.Close() }()
				server, err := listener.Accept()
				require.NoError(t, err)
				defer func() { _ = server.Close() }()
				var p peek
				if p.at(client); encrypted {
					p.at(tls.Client(client, &tls.Config{ServerName: "redis"}))
				}
				for range 3 {
					require.False(t, p.finds())
				}
				happens(server)
				redistest.Eventually(t, name, p.finds)
				require.NoError(t, client.Close())
				require.True(t, p.finds(), "it is closed here")
			})
		}
	}
}

func TestPeek_CommandThatMeetsABrokenConnectionIsSentOnANewOne(t *testing.T) {
	t.Parallel()
	for name, alone := range map[string]bool{"alone": true, "batch": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := redistest.Redis(t)
			relay, rdb := relayedTo(t, b, idle)
			x, key := executorOn(t, rdb), redistest.Key(t)
			w := loneOn(t, x, rdb)
			relay.Cut()
			redistest.Eventually(t, "it is cut", w.peek.finds)
			n := 1
			if alone {
				_, out := x.Run(t.Context(), once, counting, []any{key})
				require.NoError(t, out.Err)
				require.False(t, out.Ambiguous)
			} else {
				n = 3
				for _, cmd := range lineUp(t, w.pipe, counting, key, n) {
					require.NoError(t, cmd.answer(t.Context()).err)
				}
			}
			require.Equal(t, fmt.Sprint(n), b.Client(t).Get(t.Context(), key).Val())
			require.NotSame(t, w, w.pipe.wire)
		})
	}
}
