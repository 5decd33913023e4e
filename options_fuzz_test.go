package relock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// choice is one option with an argument, and what its documentation makes of that.
type choice struct {
	opt  MutexOption
	text string // as an error names it
	good bool   // by itself
	set  func(s *settings)
}

// choose returns the option that the first byte chooses, with an argument of d.
func choose(which byte, d time.Duration) choice {
	switch which % 13 {
	case 0:
		return choice{
			WithTTL(d), fmt.Sprintf("WithTTL(%v)", d), d >= 100*time.Millisecond && d <= century,
			func(s *settings) { s.TTL = (d + time.Millisecond - 1) / time.Millisecond * time.Millisecond },
		}
	case 1:
		return choice{
			WithRenewInterval(d), fmt.Sprintf("WithRenewInterval(%v)", d), d >= 10*time.Millisecond,
			func(s *settings) { s.Renewed, s.renewInterval, s.given.interval = true, d, true },
		}
	case 2:
		return choice{WithoutRenewal(), "WithoutRenewal", true, func(s *settings) { s.Renewed, s.renewInterval, s.maxHold, s.given.fixed = false, 0, 0, true }}
	case 3:
		return choice{WithMaxHold(d), fmt.Sprintf("WithMaxHold(%v)", d), d > 0, func(s *settings) { s.maxHold, s.given.maxHold = min(d, maxTTL), true }}
	case 4:
		return choice{WithWaitTimeout(d), fmt.Sprintf("WithWaitTimeout(%v)", d), d > 0, func(s *settings) { s.waitTimeout = d }}
	case 5:
		return choice{WithUnlockTimeout(d), fmt.Sprintf("WithUnlockTimeout(%v)", d), d > 0, func(s *settings) { s.unlockTimeout = d }}
	case 6:
		return choice{WithFencing(), "", true, func(s *settings) { s.Fencing, s.CounterLife = true, 24*time.Hour }}
	case 7:
		return choice{WithSharedFencing(), "", true, func(s *settings) { s.Fencing, s.CounterLife = true, 0 }}
	case 8:
		return choice{WithoutReentrancy(), "", true, func(s *settings) { s.reentrant = false }}
	case 9:
		n := int(d)
		return choice{WithLocalHandoffs(n), fmt.Sprintf("WithLocalHandoffs(%d)", n), n >= 0, func(s *settings) { s.localHandoffs = n }}
	case 10:
		n := int(which/13) - 1
		return choice{
			// An error may name the timeout as it is after rounding.
			WithReplicas(n, d), fmt.Sprintf("WithReplicas(%d, ", n), n >= 1 && d >= 10*time.Millisecond && d <= century,
			func(s *settings) {
				s.replicas = redisexec.Replicas{N: n, Timeout: (d + time.Millisecond - 1) / time.Millisecond * time.Millisecond}
			},
		}
	case 12:
		return choice{
			WithMinHold(d), fmt.Sprintf("WithMinHold(%v)", d), d > 0 && d <= century,
			func(s *settings) { s.minHold = (d + time.Millisecond - 1) / time.Millisecond * time.Millisecond },
		}
	default:
		return choice{WithSafetyPoll(d), fmt.Sprintf("WithSafetyPoll(%v)", d), d >= 10*time.Millisecond, func(s *settings) { s.SafetyPoll = d }}
	}
}

// choices reads options from bytes: one that chooses, one for the unit and one for the number.
func choices(program []byte) []choice {
	units := []time.Duration{1, time.Microsecond, time.Millisecond, 100 * time.Millisecond, time.Second, time.Minute, 24 * time.Hour, 1 << 55}
	var list []choice
	for ; len(program) >= 3; program = program[3:] {
		list = append(list, choose(program[0], units[program[1]%8]*time.Duration(int8(program[2]))))
	}
	return list
}

// FuzzOptions checks that options are refused, by an error that names one that is to blame,
// exactly if the documentation says so, and else mean what it says.
func FuzzOptions(f *testing.F) {
	for _, seed := range []string{
		"", "\x00\x04\x0a", "\x00\x03\x01", "\x00\x02\x63", "\x00\x04\xff", "\x01\x04\x14", "\x01\x04\x15",
		"\x00\x04\x01\x01\x03\x07", "\x01\x04\x09\x00\x04\x05", "\x03\x04\x1d", "\x03\x04\x1e", "\x05\x04\x1f",
		"\x05\x04\x1e", "\x00\x04\x03\x05\x04\x03", "\x02\x00\x00\x01\x02\x0a", "\x01\x05\x3c\x02\x00\x00",
		"\x02\x00\x00\x03\x05\x3c", "\x03\x05\x3c\x02\x00\x00", "\x01\x04\x05\x02\x00\x00",
		"\x06\x00\x00\x07\x00\x00", "\x07\x00\x00\x06\x00\x00", "\x08\x00\x00\x09\x00\x00\x0b\x02\x0a",
		"\x09\x00\xff", "\x0b\x02\x09", "\x0b\x02\x0a", "\x24\x02\x32", "\x24\x04\x05", "\x24\x03\x33", "\x0a\x02\x32", "\x17\x02\x32",
		"\x00\x03\x01\x24\x02\x10", "\x24\x02\x09", "\x00\x07\x7f", "\x04\x00\x01", "\x04\x00\x00",
		"\x0c\x01\x0a", "\x0c\x02\x00", "\x0c\x07\x7f",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		list := choices(program)
		want := defaultSettings().settings
		opts, names := make([]MutexOption, 0, len(list)), []string{}
		good := true
		client := defaultSettings()
		for _, c := range list {
			opts = append(opts, c.opt)
			names = append(names, c.text)
			good = good && c.good
			c.set(&want)
			c.opt.(Option).applyToClient(&client)
		}
		good = good && documented(&want)
		for _, got := range []settings{resolved(defaultSettings().settings, opts), resolved(client.settings, nil)} {
			if !good {
				require.ErrorIs(t, got.err, ErrInvalidOption, "%q", names)
				require.True(t, blames(got.err, names), "%v, of %q", got.err, names)
				continue
			}
			require.NoError(t, got.err, "%q", names)
			require.Equal(t, want, got, "%q", names)
		}
	})
}

// documented fills in the defaults that depend on other options, and reports whether the
// options suit each other.
func documented(s *settings) bool {
	given := s.given
	if s.given = (settings{}).given; given.fixed && (given.interval || given.maxHold) {
		return false
	}
	if s.Renewed && s.renewInterval > s.TTL*2/3 || s.replicas.Timeout > s.TTL/6 || s.unlockTimeout > s.TTL || s.maxHold != 0 && s.maxHold < s.TTL {
		return false
	}
	if s.renewInterval == 0 {
		s.renewInterval = s.TTL / 3
	}
	if s.unlockTimeout == 0 {
		s.unlockTimeout = min(5*time.Second, s.TTL)
	}
	return true
}

// blames reports whether the error is about one of the options.
func blames(err error, names []string) bool {
	for _, name := range names {
		if name != "" && strings.Contains(err.Error(), name) {
			return true
		}
	}
	return false
}

// FuzzOwner checks that the names under which owners hold locks cannot be taken for each
// other's, for a goroutine's, or for a write hold.
func FuzzOwner(f *testing.F) {
	for _, id := range []string{"", "7", "007", "job-17", "job-18", ":", "a:b", "7:write", "٧", " ", "-7", "+7", "7.0", "0x7", "\x00", "\xff", "{}", "mode", "write"} {
		f.Add(id, "job-17")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		first, second := resolved(defaultSettings().settings, []MutexOption{WithOwner(a)}), resolved(defaultSettings().settings, []MutexOption{WithOwner(b)})
		if first.err != nil {
			require.ErrorIs(t, first.err, ErrInvalidOption)
			require.ErrorContains(t, first.err, fmt.Sprintf("WithOwner(%q)", a))
			require.True(t, a == "" || a == "write" || strings.Contains(a, ":") || strings.Trim(a, "0123456789") == "", "%q was refused", a)
			return
		}
		one := keys.Owner{Fixed: first.owner}
		require.Equal(t, a, one.String())
		require.NotContains(t, one.String(), ":")
		require.False(t, goroutineLike(one.String()), "%q reads like a goroutine", a)
		require.Equal(t, keys.Reading, keys.SideOf("uuid:"+one.String()), "%q reads like a writer", a)
		if second.err != nil {
			require.True(t, errors.Is(second.err, ErrInvalidOption))
			return
		}
		two := keys.Owner{Fixed: second.owner}
		require.Equal(t, a == b, "uuid:"+one.String() == "uuid:"+two.String())
		require.Equal(t, a == b, one == two)
	})
}

// goroutineLike reports whether text may name a goroutine.
func goroutineLike(text string) bool {
	for _, r := range text {
		if r < '0' || r > '9' {
			return false
		}
	}
	return true
}
