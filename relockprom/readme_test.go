package relockprom_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
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
	compiled := flat(readFile(t, "example_test.go"))
	snippets := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(readFile(t, "README.md"), -1)
	require.NotEmpty(t, snippets)
	for _, snippet := range snippets {
		require.Contains(t, compiled, flat(snippet[1]))
	}
}

// The table and the package doc have every metric with its labels, and none that is not there.
func TestEveryMetricIsDocumented(t *testing.T) {
	c, registry := registered(t)
	e := relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired, Cause: relock.LossGone}
	c.Hooks().Acquired(e)
	c.Hooks().Renewed(e)
	c.Hooks().Lost(e)
	families, err := registry.Gather()
	require.NoError(t, err)
	var there []string
	for _, family := range families {
		label := ""
		for _, pair := range family.Metric[0].Label {
			if name := pair.GetName(); name != "kind" && name != "side" {
				label = name
			}
		}
		there = append(there, family.GetName()+" "+label)
	}
	documented := func(file, row string) (found []string) {
		for _, m := range regexp.MustCompile(row).FindAllStringSubmatch(readFile(t, file), -1) {
			found = append(found, m[1]+" "+m[2])
		}
		slices.Sort(found)
		return found
	}
	require.Len(t, there, 9)
	require.Equal(t, there, documented("README.md", "(?m)^\\| `(relock_\\w+)` \\| `?(\\w*)`? ?\\|"))
	require.Equal(t, there, documented("doc.go", `(?m)^//	(relock_\w+)\{?(\w*)\}? `))
}

func TestEveryAlertIsDocumented(t *testing.T) {
	names := func(file, row string) (found []string) {
		for _, m := range regexp.MustCompile(row).FindAllStringSubmatch(readFile(t, file), -1) {
			found = append(found, m[1])
		}
		return found
	}
	there := names("alerts.yml", `(?m)^ +- alert: (\w+)$`)
	require.Len(t, there, 3)
	require.Equal(t, there, names("README.md", "(?m)^\\| `(Relock\\w+)` \\|"))
}
