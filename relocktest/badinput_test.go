package relocktest_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/relocktest"
)

// failing is a test that is to fail.
type failing struct {
	*testing.T
	failure string
	goesOn  bool // after it
}

func (f *failing) Fatalf(format string, args ...any) {
	f.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (f *failing) Errorf(format string, args ...any) {
	f.failure, f.goesOn = fmt.Sprintf(format, args...), true
}

// failureOf returns how f fails its test, which has to end there.
func failureOf(t *testing.T, f func(tb testing.TB)) string {
	t.Helper()
	test, done := &failing{T: t}, make(chan struct{})
	go func() {
		defer close(done)
		f(test)
		test.goesOn = true
	}()
	<-done
	require.False(t, test.goesOn, "the test went on")
	return test.failure
}

func TestBadInput_MisuseFailsTheTestWithAnExplanation(t *testing.T) {
	c, closed := relocktest.New(t), relocktest.New(t)
	require.NoError(t, closed.Close())
	require.NoError(t, c.Mutex("held").Lock(t.Context()))
	large := acquired(t, c.Semaphore("awaited", 2), 1)
	waiting := begin(func() error {
		p, err := c.Semaphore("awaited", 2).AcquireN(t.Context(), 2)
		if err == nil {
			err = p.Release()
		}
		return err
	})
	redistest.Eventually(t, "one waits", func() bool {
		state, err := c.Semaphore("awaited", 2).State(t.Context())
		return err == nil && state.Waiting == 1
	})
	require.NoError(t, relocktest.Redis(t, c).Set(t.Context(), "data", "x", 0).Err())
	foreign, err := relock.New(relocktest.Redis(t, c))
	require.NoError(t, err)
	defer foreign.Close()
	var over *relock.Client
	t.Run("a test", func(t *testing.T) { over = relocktest.New(t) })

	for want, misuse := range map[string]func(tb testing.TB){
		"relocktest: new: relock: invalid option: WithTTL(1ms)":          func(tb testing.TB) { relocktest.New(tb, relock.WithTTL(time.Millisecond)) },
		"relocktest: new: relock: invalid option: a ClientOption is nil": func(tb testing.TB) { relocktest.New(tb, nil) },
		"relocktest: new: relock: not supported":                         func(tb testing.TB) { relocktest.New(tb, relock.WithShardedPubSub()) },

		`relocktest: lose "free": no one holds it`:                         func(tb testing.TB) { relocktest.Lose(tb, c, "free") },
		`relocktest: lose "a{b": relock: force unlock "a{b": invalid name`: func(tb testing.TB) { relocktest.Lose(tb, c, "a{b") },
		`relocktest: lose "": relock: force unlock "": invalid name`:       func(tb testing.TB) { relocktest.Lose(tb, c, "") },
		`relocktest: lose "data": relock: force unlock "data": invalid name`: func(tb testing.TB) {
			relocktest.Lose(tb, c, "data")
		},
		`relocktest: lose "held": relock: force unlock "held": client closed`: func(tb testing.TB) { relocktest.Lose(tb, closed, "held") },

		`relocktest: hold "held" elsewhere: it is held or waited for already`: func(tb testing.TB) { relocktest.HoldElsewhere(tb, c, "held") },
		`relocktest: hold "a{b" elsewhere: relock: try lock "a{b": invalid name`: func(tb testing.TB) {
			relocktest.HoldElsewhere(tb, c, "a{b")
		},

		`relocktest: hold permits of "awaited" elsewhere: others wait for them`: func(tb testing.TB) {
			relocktest.HoldPermitsElsewhere(tb, c, "awaited", 1)
		},
		`relocktest: hold permits of "held" elsewhere: relock: try acquire "held": invalid name`: func(tb testing.TB) {
			relocktest.HoldPermitsElsewhere(tb, c, "held", 1)
		},
		`relocktest: hold 0 permits of "free" elsewhere: it has to be at least one`: func(tb testing.TB) {
			relocktest.HoldPermitsElsewhere(tb, c, "free", 0)
		},
		`relocktest: hold "awaited" elsewhere: relock: try lock "awaited": invalid name`: func(tb testing.TB) {
			relocktest.HoldElsewhere(tb, c, "awaited")
		},

		"relocktest: an outage of 0s: it has to be positive":   func(tb testing.TB) { relocktest.Outage(tb, c, 0) },
		"relocktest: an outage of -1ns: it has to be positive": func(tb testing.TB) { relocktest.Outage(tb, c, -1) },
	} {
		require.Contains(t, failureOf(t, misuse), want)
	}
	for name, notOurs := range map[string]*relock.Client{"nil": nil, "of relock.New": foreign, "of a test that is over": over} {
		for _, misuse := range []func(tb testing.TB){
			func(tb testing.TB) { relocktest.Redis(tb, notOurs) },
			func(tb testing.TB) { relocktest.Lose(tb, notOurs, "held") },
			func(tb testing.TB) { relocktest.HoldElsewhere(tb, notOurs, "free") },
			func(tb testing.TB) { relocktest.HoldPermitsElsewhere(tb, notOurs, "free", 1) },
			func(tb testing.TB) { relocktest.Outage(tb, notOurs, time.Second) },
		} {
			require.Contains(t, failureOf(t, misuse), "not made by relocktest.New, or its test is over", name)
		}
	}
	require.NoError(t, large.Release())
	require.NoError(t, redistest.Receive(t, waiting))
}

func TestBadInput_CallsThatNeedRedisFailTheTestInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := relocktest.New(t)
		require.NoError(t, c.Mutex("held").Lock(t.Context()))
		relocktest.Outage(t, c, time.Hour)
		require.Contains(t, failureOf(t, func(tb testing.TB) { relocktest.Lose(tb, c, "held") }), `relocktest: lose "held": `)
		require.Contains(t, failureOf(t, func(tb testing.TB) { relocktest.HoldElsewhere(tb, c, "free") }), `relocktest: hold "free" elsewhere: `)
	})
}

func TestBadInput_FailedReleaseFailsTheTestWhichGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := relocktest.New(t)
		test := &failing{T: t}
		release := relocktest.HoldElsewhere(test, c, "name")
		require.NoError(t, relocktest.Redis(t, c).Close()) // a mistake, which is noticed with the next connection
		relocktest.Outage(t, c, time.Second)
		release()
		require.True(t, test.goesOn)
		require.Contains(t, test.failure, `relocktest: release "name" elsewhere: `)
	})
}
