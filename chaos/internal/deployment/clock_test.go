package deployment

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestClock_OfAServerIsSetWhileItRuns(t *testing.T) {
	t.Parallel()
	d, err := Start(Skewed)
	if !CanSetClocks() || !redistest.Available() {
		require.Error(t, err)
		return
	}
	require.NoError(t, err)
	defer d.Close()
	ctx := t.Context()
	require.NoError(t, d.Do(ctx, d.Servers[0], "set", "k", "v", "px", 10_000))
	off := func() time.Duration {
		answer, err := d.Ask(ctx, d.Servers[0], "time")
		require.NoError(t, err)
		s, err := time.ParseDuration(answer.([]any)[0].(string) + "s")
		require.NoError(t, err)
		return (s - time.Duration(time.Now().UnixNano())).Round(5 * time.Second)
	}
	require.Zero(t, off())
	require.NoError(t, d.SetClock(-20*time.Second))
	require.Equal(t, -20*time.Second, off())
	left, err := d.Ask(ctx, d.Servers[0], "pttl", "k")
	require.NoError(t, err)
	require.Greater(t, left, int64(20_000))
	require.NoError(t, d.SetClock(20*time.Second))
	require.Equal(t, 20*time.Second, off())
	exists, err := d.Ask(ctx, d.Servers[0], "exists", "k")
	require.NoError(t, err)
	require.Zero(t, exists)
}
