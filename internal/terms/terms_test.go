package terms

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

func TestALeaseIsFollowedIfItIsLongEnoughAndNotTooLong(t *testing.T) {
	d := Default()
	for left, follows := range map[time.Duration]bool{
		d.TTL: true, d.TTL / 2: true, d.EntryLease() / 3: true, d.EntryLease()/3 - time.Millisecond: false, d.TTL + time.Millisecond: false, 0: false,
	} {
		require.Equal(t, follows, d.Follow(left), left)
	}
	for _, change := range []func(*Terms){
		func(t *Terms) { t.Fencing = true },
		func(t *Terms) { t.Replicas = redisexec.Replicas{N: 1, Timeout: time.Second} },
		func(t *Terms) { t.Renewed = false },
	} {
		other := Default()
		change(&other)
		require.False(t, other.Follow(d.TTL/2))
	}
}

func TestWhatDependsOnTheTTLFollowsIt(t *testing.T) {
	for ttl, unlock := range map[time.Duration]time.Duration{time.Minute: 5 * time.Second, 3 * time.Second: 3 * time.Second} {
		terms := Default()
		terms.TTL = ttl
		terms.Resolve()
		require.NoError(t, terms.Err)
		require.Equal(t, ttl/3, terms.RenewInterval)
		require.Equal(t, unlock, terms.UnlockTimeout)
	}
}

// The limits themselves are good; beyond each the error names the option.
func TestTermsMustSuitTheTTL(t *testing.T) {
	for option, set := range map[string]func(terms *Terms, over time.Duration){
		"WithRenewInterval": func(terms *Terms, over time.Duration) { terms.RenewInterval = terms.TTL*2/3 + over },
		"WithUnlockTimeout": func(terms *Terms, over time.Duration) { terms.UnlockTimeout = terms.TTL + over },
		"WithMaxHold":       func(terms *Terms, over time.Duration) { terms.MaxHold = terms.TTL - over },
		"WithReplicas":      func(terms *Terms, over time.Duration) { terms.Replicas.Timeout = terms.TTL/6 + over },
	} {
		good, bad := Default(), Default()
		set(&good, 0)
		good.Resolve()
		require.NoError(t, good.Err, option)
		set(&bad, 1)
		bad.Resolve()
		require.ErrorIs(t, bad.Err, lockerr.ErrInvalidOption)
		require.ErrorContains(t, bad.Err, option+"(")
	}
	unrenewed := Default()
	unrenewed.Renewed, unrenewed.RenewInterval = false, unrenewed.TTL
	unrenewed.Resolve()
	require.NoError(t, unrenewed.Err, "what is not renewed may have the interval of its client")
}

func TestOneListMustNotContradictItself(t *testing.T) {
	for text, set := range map[string]func(terms *Terms){
		"WithRenewInterval": func(terms *Terms) { terms.Given.Fixed, terms.Given.Interval = true, true },
		"WithMaxHold":       func(terms *Terms) { terms.Given.MaxHold, terms.Renewed = true, false },
	} {
		terms := Default()
		set(&terms)
		terms.EndList()
		require.ErrorContains(t, terms.Err, text)
		require.Zero(t, terms.Given, "the next list begins anew")
		first := terms.Err
		terms.Reject("another")
		require.Equal(t, first, terms.Err, "the first one is told")
	}
}
