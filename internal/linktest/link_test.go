package linktest

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const latency = 10 * time.Millisecond

// pair returns a link and the ends of a connection on it, in a bubble, after the greetings.
func pair(t *testing.T, f func(l *Link, client, server net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		served := make(chan net.Conn, 1)
		l := NewLink("192.0.2.1:6379", func(c net.Conn) { served <- c }, func() {}, latency, 1)
		client, err := l.Dial()
		require.NoError(t, err)
		server := <-served
		_, err = client.Write([]byte("x"))
		require.NoError(t, err)
		require.Equal(t, "x", received(t, server))
		f(l, client, server)
		_ = client.Close()
		_ = server.Close()
		require.Zero(t, l.Open())
	})
}

func received(t *testing.T, c net.Conn) string {
	p := make([]byte, 100)
	n, err := c.Read(p)
	require.NoError(t, err)
	return string(p[:n])
}

func send(t *testing.T, c net.Conn, text string) {
	_, err := c.Write([]byte(text))
	require.NoError(t, err)
}

const command = "*3\r\n$7\r\nevalsha\r\n"

func TestLink_MessageTakesItsTime(t *testing.T) {
	pair(t, func(l *Link, client, server net.Conn) {
		began := time.Now()
		send(t, client, "a")
		require.Equal(t, "a", received(t, server))
		require.GreaterOrEqual(t, time.Since(began), latency)
		l.Slow(time.Second)
		began = time.Now()
		send(t, server, "b")
		require.Equal(t, "b", received(t, client))
		require.GreaterOrEqual(t, time.Since(began), time.Second+latency)
	})
}

func TestLink_PausedMessagesArriveLater(t *testing.T) {
	pair(t, func(l *Link, client, server net.Conn) {
		began := time.Now()
		send(t, client, "a")
		l.Freeze(time.Minute)
		require.Equal(t, "a", received(t, server))
		require.Equal(t, time.Minute, time.Since(began))
	})
}

func TestLink_RefusalEnds(t *testing.T) {
	pair(t, func(l *Link, _, _ net.Conn) {
		l.Refuse(time.Minute)
		_, err := l.Dial()
		require.Error(t, err)
		time.Sleep(time.Minute)
		c, err := l.Dial()
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
}

// What the server receives, and what the client does, when the connection of a command breaks.
func TestLink_TrapLosesItsReplies(t *testing.T) {
	for _, c := range []struct {
		trap Trap
		late time.Duration
		runs bool
	}{
		{Trap{Loss: Command}, 0, false},
		{Trap{Loss: Reply}, latency, true},
		{Trap{Loss: Late, Late: time.Minute}, time.Minute, true},
		{Trap{Loss: Reply, Silent: true}, latency, true},
	} {
		pair(t, func(l *Link, client, server net.Conn) {
			sprung := 0
			l.Set(func(Trap) { sprung++ }, c.trap)
			send(t, client, "PING")
			require.Equal(t, "PING", received(t, server))
			require.Zero(t, sprung, "no script")
			began := time.Now()
			send(t, client, command)
			require.Equal(t, 1, sprung)
			if c.runs {
				require.Equal(t, command, received(t, server))
				require.GreaterOrEqual(t, time.Since(began), c.late)
			}
			send(t, server, "reply")
			require.NoError(t, client.SetReadDeadline(time.Now().Add(time.Hour)))
			began = time.Now()
			_, err := client.Read(make([]byte, 10))
			if c.trap.Silent {
				require.ErrorContains(t, err, "timeout")
				require.Equal(t, time.Hour, time.Since(began))
			} else {
				require.ErrorContains(t, err, "reset")
				require.Zero(t, time.Since(began))
			}
			_, err = server.Read(make([]byte, 10))
			require.ErrorIs(t, err, io.EOF)
		})
	}
}

func TestLink_LoseMessagesLosesNothingElse(t *testing.T) {
	pair(t, func(l *Link, client, server net.Conn) {
		l.LoseMessages(time.Minute)
		send(t, server, ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n")
		send(t, server, "+OK\r\n")
		require.Equal(t, "+OK\r\n", received(t, client))
	})
}
