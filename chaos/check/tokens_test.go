package check

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/history"
)

func TestTokens_TheCounterHasThatOfTheHolder(t *testing.T) {
	for name, c := range map[string]struct {
		counter  int64
		sentOnce bool
		paused   bool
		broken   []string
	}{
		"the same":                             {counter: 7, sentOnce: true},
		"another":                              {counter: 8, sentOnce: true, broken: []string{"I2"}},
		"another, where copies were sent":      {counter: 8},
		"another, of a process that stood":     {counter: 8, sentOnce: true, paused: true},
		"none, as of a lock without a counter": {sentOnce: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{}
			a := s.by(1, "a").locks(0, 10, 7)
			if c.paused {
				s.add(11, history.Event{Kind: history.Paused, Process: 1})
				s.add(19, history.Event{Kind: history.Resumed, Process: 1})
			}
			a.record(20, history.Event{Kind: history.Counted, Depth: 1, Count: 1, Token: c.counter})
			a.unlocks(30, 31, ok)
			rules := strict
			rules.SentOnce = c.sentOnce
			var broken []string
			for _, v := range Run(s.events, rules).Violations {
				broken = append(broken, v.Invariant)
			}
			require.Equal(t, c.broken, broken)
		})
	}
}
