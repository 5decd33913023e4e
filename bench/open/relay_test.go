package main

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRelay_AfterTheCutNothingPassesAndConnectionsStayOpen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() { // an echo
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); conn.Close() }()
		}
	}()
	r, err := startRelay(l.Addr().String())
	require.NoError(t, err)
	defer r.close()
	conn, err := net.Dial("tcp", r.addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("before"))
	require.NoError(t, err)
	got := make([]byte, 6)
	_, err = io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, "before", string(got))

	r.pull()
	_, err = conn.Write([]byte("after"))
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err = conn.Read(got)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}
