package relock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// dawdle is a script of no effect.
var dawdle = newScript("return 1")

// Many holds that are renewed at once by a slow machine look like this to each of them.
func TestARenewalWaitsForItsTurnInAPipelineThatIsBusy(t *testing.T) {
	t.Parallel()
	relay := redistest.NewRelay(t, redistest.NewServer(t).Addr)
	rdb, events := faultRedis(t, relay.Addr), &chronicle{}
	for _, s := range []*script{dawdle, renewScript} {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.source).Err())
	}
	c := locksOn(t, rdb, WithTTL(8*time.Second), WithHooks(events.hooks()))
	m := c.Mutex(redistest.Key(t), WithRenewInterval(500*time.Millisecond))
	requireLocked(t, m)
	relay.Delay(120*time.Millisecond, redistest.Script(dawdle.source)).Always() // and all that follow

	var busy sync.WaitGroup
	defer busy.Wait()
	for range 20 { // together longer than a command is usually waited for
		busy.Go(func() {
			e := effort{attempts: 1, patience: time.Minute}
			_, _ = c.execs[0].run(context.WithoutCancel(t.Context()), e, dawdle, []string{m.Name()})
		})
	}
	eventually(t, "a renewal", func() bool { return len(events.of("renewed")) > 0 })
	require.Greater(t, events.of("renewed")[0].Elapsed, c.execs[0].patience, "the pipeline was busy")
	require.Empty(t, events.of("renew failed"), "a second copy would have followed")
	requireUnlocked(t, m)
}
