package resource

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/redistest"
)

// What Start has returned.
var (
	servers []*Server
	without error
)

func TestMain(m *testing.M) {
	if redistest.Available() {
		var err error
		if servers, without, err = Start(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent(), goleak.Cleanup(func(status int) {
		for _, s := range servers {
			s.Close()
		}
		os.Exit(status)
	}))
}

// each runs the test with every resource that can be had here.
func each(t *testing.T, test func(t *testing.T, r Resource)) {
	switch {
	case len(servers) == 0:
		redistest.RequireServer(t)
	case without != nil:
		t.Logf("not tested: %v", without)
	}
	for _, s := range servers {
		t.Run(s.Name, func(t *testing.T) {
			r, err := Open(t.Context(), s.URL)
			require.NoError(t, err)
			defer func() { require.NoError(t, r.Close()) }()
			test(t, r)
		})
	}
}

func TestResource_RefusesALowerTokenButNotTheSame(t *testing.T) {
	each(t, func(t *testing.T, r Resource) {
		const high = int64(1)<<53 - 1
		for _, step := range []struct {
			lock     string
			token    int64
			accepted bool
		}{
			{"x", 5, true},
			{"x", 5, true},
			{"x", 4, false},
			{"y", 1, true}, // each lock has tokens of its own
			{"x", 10, true},
			{"x", 9, false}, // as numbers, not as text
			{"x", high, true},
			{"x", high - 1, false},
		} {
			accepted, err := r.Write(t.Context(), step.lock, step.token, "v")
			require.NoError(t, err)
			require.Equal(t, step.accepted, accepted, "%+v", step)
		}
	})
}

func TestResource_HighestTokenOfConcurrentWritesStays(t *testing.T) {
	each(t, func(t *testing.T, r Resource) {
		const writers = 16
		var all sync.WaitGroup
		for token := range int64(writers) {
			all.Go(func() {
				_, err := r.Write(t.Context(), "at once", token+1, "v")
				assert.NoError(t, err)
			})
		}
		all.Wait()
		accepted, err := r.Write(t.Context(), "at once", writers-1, "v")
		require.NoError(t, err)
		require.False(t, accepted)
	})
}

func TestResource_UnsentWriteFails(t *testing.T) {
	each(t, func(t *testing.T, r Resource) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		accepted, err := r.Write(ctx, "l", 1, "v")
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, accepted)
	})
}

func TestResource_UnknownOneIsRefused(t *testing.T) {
	_, err := Open(t.Context(), "http://localhost")
	require.ErrorContains(t, err, `"http://localhost"`)
}
