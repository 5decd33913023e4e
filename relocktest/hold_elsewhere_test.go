package relocktest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/relocktest"
)

func TestHoldElsewhere_ReleaseWaitsForRedisAlsoWithAsyncUnlock(t *testing.T) {
	for name, opts := range map[string][]relock.ClientOption{"plain": nil, "async": {relock.WithAsyncUnlock()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := relocktest.New(t, opts...)
				releases := []func(){relocktest.HoldElsewhere(t, c, "job"), relocktest.HoldPermitsElsewhere(t, c, "slots", 3)}
				relocktest.HoldPermitsElsewhere(t, c, "others", 3) // until the end of the test
				for _, release := range releases {
					relocktest.Outage(t, c, 10*time.Second)
					began := time.Now()
					release()
					require.GreaterOrEqual(t, time.Since(began), 10*time.Second)
				}
			})
		})
	}
}
