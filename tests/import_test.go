package tests

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program that imports the library may end after milliseconds, and be one of many that start together. So the library
// works when it is first used. To assemble all scripts, for example, takes 1 MB and 3 ms.
func TestImport_CostsNextToNothing(t *testing.T) {
	t.Parallel()
	const enough = 32 << 10
	program := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	program.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	trace, err := program.CombinedOutput()
	require.NoError(t, err, "%s", trace)

	line := regexp.MustCompile(`(?m)^init (github\.com/relock-go/relock\S*) .* (\d+) bytes, \d+ allocs$`)
	packages, total := 0, 0
	for _, m := range line.FindAllStringSubmatch(string(trace), -1) {
		bytes, err := strconv.Atoi(m[2])
		require.NoError(t, err)
		t.Logf("%s: %d bytes", m[1], bytes)
		if !strings.Contains(m[1], "test") { // fixtures
			packages++
			total += bytes
		}
	}
	require.Greater(t, packages, 2, "the trace has the packages of the library: %s", trace)
	require.Less(t, total, enough, "bytes allocated before main")
}
