package relock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redisexec"
)

func TestSettings_LeaseIsFollowedIfNeitherTooShortNorTooLong(t *testing.T) {
	d := defaultSettings().settings
	for left, follows := range map[time.Duration]bool{
		d.TTL: true, d.TTL / 2: true, d.EntryLease() / 3: true, d.EntryLease()/3 - time.Millisecond: false, d.TTL + time.Millisecond: false, 0: false,
	} {
		require.Equal(t, follows, d.canFollow(left), left)
	}
	for _, change := range []func(*settings){
		func(s *settings) { s.Fencing = true },
		func(s *settings) { s.replicas = redisexec.Replicas{N: 1, Timeout: time.Second} },
		func(s *settings) { s.Renewed = false },
	} {
		other := defaultSettings().settings
		change(&other)
		require.False(t, other.canFollow(d.TTL/2))
	}
}

func TestSettings_DependentValuesFollowTheTTL(t *testing.T) {
	for ttl, unlock := range map[time.Duration]time.Duration{time.Minute: 5 * time.Second, 3 * time.Second: 3 * time.Second} {
		s := defaultSettings().settings
		s.TTL = ttl
		s.resolve()
		require.NoError(t, s.err)
		require.Equal(t, ttl/3, s.renewInterval)
		require.Equal(t, unlock, s.unlockTimeout)
	}
}

// The limits themselves are good; beyond each the error names the option.
func TestSettings_MustSuitTheTTL(t *testing.T) {
	for option, set := range map[string]func(s *settings, over time.Duration){
		"WithRenewInterval": func(s *settings, over time.Duration) { s.renewInterval = s.TTL*2/3 + over },
		"WithUnlockTimeout": func(s *settings, over time.Duration) { s.unlockTimeout = s.TTL + over },
		"WithMaxHold":       func(s *settings, over time.Duration) { s.maxHold = s.TTL - over },
		"WithReplicas":      func(s *settings, over time.Duration) { s.replicas.Timeout = s.TTL/6 + over },
	} {
		good, bad := defaultSettings().settings, defaultSettings().settings
		set(&good, 0)
		good.resolve()
		require.NoError(t, good.err, option)
		set(&bad, 1)
		bad.resolve()
		require.ErrorIs(t, bad.err, ErrInvalidOption)
		require.ErrorContains(t, bad.err, option+"(")
	}
	unrenewed := defaultSettings().settings
	unrenewed.Renewed, unrenewed.renewInterval = false, unrenewed.TTL
	unrenewed.resolve()
	require.NoError(t, unrenewed.err, "what is not renewed may have the interval of its client")
}

func TestSettings_ListMustNotContradictItself(t *testing.T) {
	for text, set := range map[string]func(s *settings){
		"WithRenewInterval": func(s *settings) { s.given.fixed, s.given.interval = true, true },
		"WithMaxHold":       func(s *settings) { s.given.maxHold, s.Renewed = true, false },
	} {
		s := defaultSettings().settings
		set(&s)
		s.endList()
		require.ErrorContains(t, s.err, text)
		require.Zero(t, s.given, "the next list begins again")
		first := s.err
		s.reject("another")
		require.Equal(t, first, s.err, "the first one is reported")
	}
}
