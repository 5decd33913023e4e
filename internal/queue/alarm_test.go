package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/queue"
)

func TestAlarm_HasRoomForOneRing(t *testing.T) {
	t.Parallel()
	for _, listens := range []bool{false, true} {
		var alarm queue.Alarm
		if listens {
			require.Empty(t, alarm.C())
		}
		alarm.Ring()
		alarm.Ring()
		require.Len(t, alarm.C(), 1)
		<-alarm.C()
		require.Empty(t, alarm.C(), "it was received")
		alarm.Ring()
		require.Len(t, alarm.C(), 1)
	}
}
