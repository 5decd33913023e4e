package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/cmd/relock/internal/look"
)

func TestFollower_LeaseExpiresButAMinHoldEnds(t *testing.T) {
	for minHold, event := range map[bool]string{false: "expired", true: "ended"} {
		f := newFollower("a")
		now := time.Now()
		f.follow(now, &look.Lock{Name: "a", Holders: []look.Holder{{Owner: "uuid:1", Count: 1, TTLms: 100, MinHold: minHold}}}, nil)
		events := f.follow(now.Add(150*time.Millisecond), &look.Lock{Name: "a"}, nil)
		require.Len(t, events, 2)
		require.Equal(t, []string{event, "free"}, []string{events[0].Event, events[1].Event})
	}
}
