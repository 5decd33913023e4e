package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/pagetest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestExample_PrintsWhatThePageShowsAndLeavesNoKey(t *testing.T) {
	b := redistest.Mini(t)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, b.Addr, ""))
	require.Equal(t, pagetest.Output(t, "../../examples/README.md", "go run -C relockprom ./example"), out.String())
	require.Empty(t, b.Miniredis.Keys())
}

func TestExample_ServesMetricsUntilItIsInterrupted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	ctx, interrupt := context.WithCancel(t.Context())
	b, ended := redistest.Mini(t), make(chan error, 1)
	go func() { ended <- run(ctx, io.Discard, b.Addr, addr) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	redistest.Eventually(t, "it serves the counters", func() bool {
		response, err := client.Get("http://" + addr + "/metrics")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return err == nil && bytes.Contains(body, []byte(`relock_losses_total{cause="forced",kind="mutex",side=""}`))
	})
	interrupt()
	require.NoError(t, redistest.Receive(t, ended))
}
