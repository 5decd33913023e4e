package relockgocron_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// flat returns code with each line trimmed, so that a snippet can be found wherever it is indented.
func flat(code string) string {
	lines := strings.Split(strings.TrimSpace(code), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}

func TestTheCodeInTheReadmeCompiles(t *testing.T) {
	compiled := flat(readFile(t, "example/main.go")) + "\n" + flat(readFile(t, "example_test.go"))
	snippets := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(readFile(t, "README.md"), -1)
	require.Len(t, snippets, 2)
	for _, snippet := range snippets {
		require.True(t, strings.Contains(compiled, flat(snippet[1])), "no file has this code of the README:\n%s", snippet[1])
	}
}
