//go:build unix

package main_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun_LockThatIsHeldAroundItIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	_, elsewhere := server(t)
	inner := func(args ...string) []string { return append([]string{program, "run"}, args...) }
	for name, c := range map[string]struct {
		outer, inner []string
		code         int
	}{
		"itself":               {[]string{"a"}, inner("a", "--", "true"), 64},
		"itself, for a while":  {[]string{"a"}, inner("-w", "10m", "a", "--", "true"), 64},
		"in line":              {[]string{"a"}, inner("--fair", "a", "--", "true"), 64},
		"two around":           {[]string{"a"}, inner("b", "--", program, "run", "a", "--", "true"), 64},
		"a reader's":           {[]string{"--shared", "a"}, inner("--exclusive", "a", "--", "true"), 64},
		"a writer's":           {[]string{"--exclusive", "a"}, inner("--shared", "a", "--", "true"), 64},
		"without waiting":      {[]string{"a"}, inner("-n", "a", "--", "true"), 75},
		"readers share":        {[]string{"--shared", "a"}, inner("--shared", "a", "--", "true"), 0},
		"its only slot":        {[]string{"--slots", "1", "a"}, inner("--slots", "1", "a", "--", "true"), 64},
		"more than the slots":  {[]string{"--slots", "2", "a"}, inner("--slots", "2", "a", "--", program, "run", "--slots", "2", "a", "--", "true"), 64},
		"fewer than the slots": {[]string{"--slots", "3", "a"}, inner("--slots", "3", "a", "--", program, "run", "--slots", "3", "a", "--", "true"), 0},
		"another":              {[]string{"a"}, inner("b", "--", "true"), 0},
		"the name elsewhere":   {[]string{"a"}, inner("--redis", elsewhere, "a", "--", "true"), 0},
		"elsewhere and itself": {[]string{"a"}, inner("--redis", elsewhere, "a", "--", program, "run", "a", "--", "true"), 64},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := run(t, url, append(append(append([]string{"run"}, c.outer...), "--"), c.inner...)...)
			require.Equal(t, c.code, code, stderr)
			if code == 64 {
				require.Contains(t, stderr, "it would wait for itself forever")
			}
		})
	}
}

// Of two slots one is held around it, and one by another: that one ends.
func TestRun_SlotOfOthersIsWaitedFor(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	start(t, url, "run", "--slots", "2", "a", "--", "sh", "-c", readyAndWait).awaitOut(t, "ready")
	code, _, stderr := run(t, url, "run", "--slots", "2", "a", "--", program, "run", "--slots", "2", "-w", "300ms", "a", "--", "true")
	require.Equal(t, 75, code, stderr)
}
