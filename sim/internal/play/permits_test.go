package play

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPermits_ServerThatForgetsThemIsFound(t *testing.T) {
	p := first(func(p Plan) bool {
		return p.Theme == "network" && p.Servers == 1 && p.Long > 0.1 && !p.Busy && p.Think < 7*time.Second
	})
	p.Faults = nil
	res := playOf(t, p)
	require.False(t, res.Failed(), "%s", res.Story())
	require.Greater(t, res.Permits, 20)
	for i := range 20 {
		p.Faults = append(p.Faults, Fault{Number: i + 1, What: lie, At: time.Duration(i+1) * 2900 * time.Millisecond, Name: semaphoreName, Process: 1})
	}
	res = playOf(t, p)
	require.Contains(t, res.Broken(), "permits")
	require.Contains(t, res.Story(), "the key permits is deleted")
}
