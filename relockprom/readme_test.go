package relockprom_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/pagetest"
)

func TestReadme_CodeCompiles(t *testing.T) {
	pagetest.RequireCode(t, "README.md", "go", "example_test.go")
}

// The table and the package doc have every metric with its labels, and none that is not there.
func TestReadme_DocumentsEveryMetric(t *testing.T) {
	c, registry := registered(t)
	e := relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired, Cause: relock.LossGone}
	c.Hooks().Acquired(e)
	c.Hooks().Renewed(e)
	c.Hooks().Lost(e)
	e.Kind, e.Weight = relock.KindSemaphore, 3
	c.Hooks().Acquired(e)
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
		for _, m := range regexp.MustCompile(row).FindAllStringSubmatch(pagetest.Read(t, file), -1) {
			found = append(found, m[1]+" "+m[2])
		}
		slices.Sort(found)
		return found
	}
	require.Len(t, there, 10)
	require.Equal(t, there, documented("README.md", "(?m)^\\| `(relock_\\w+)` \\| `?(\\w*)`? ?\\|"))
	require.Equal(t, there, documented("doc.go", `(?m)^//	(relock_\w+)\{?(\w*)\}? `))
}

func TestReadme_DocumentsEveryAlert(t *testing.T) {
	names := func(file, row string) (found []string) {
		for _, m := range regexp.MustCompile(row).FindAllStringSubmatch(pagetest.Read(t, file), -1) {
			found = append(found, m[1])
		}
		return found
	}
	there := names("alerts.yml", `(?m)^ +- alert: (\w+)$`)
	require.Len(t, there, 3)
	require.Equal(t, there, names("README.md", "(?m)^\\| `(Relock\\w+)` \\|"))
}
