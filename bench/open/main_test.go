package main

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" { // started by a test
		serve(os.Stdin, os.Stdout)
		return
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // for the workers: the race detector makes exits last a second
	redistest.Main(m)
}

// newTestBench returns a bench of these contenders, or skips the test if one cannot take part here.
func newTestBench(t *testing.T, names ...string) *bench {
	t.Helper()
	if testing.Short() {
		t.Skip("it starts servers")
	}
	b := &bench{services: make(map[string]*service), warm: make(map[string][]*process), progress: testWriter{t}, results: newResults(config{})}
	for _, name := range names {
		c, err := contenderNamed(name)
		require.NoError(t, err)
		if why := c.missing(); why != "" {
			t.Skip(name + ": " + why)
		}
		b.contenders = append(b.contenders, c)
	}
	t.Cleanup(b.close)
	require.NoError(t, b.prepare(context.Background()))
	return b
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}
