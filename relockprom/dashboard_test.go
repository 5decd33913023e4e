package relockprom_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/pagetest"
)

// queries are the queries of dashboard.json, with values for Grafana's variables.
func queries(t *testing.T) (list []string) {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(pagetest.Read(t, "dashboard.json")), &dashboard))
	ids := make(map[int]bool)
	for _, panel := range dashboard.Panels {
		require.False(t, ids[panel.ID], "two panels have the id %d", panel.ID)
		ids[panel.ID] = true
		require.NotEmpty(t, panel.Targets, panel.Title)
		for _, target := range panel.Targets {
			list = append(list, strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$job", ".*").Replace(target.Expr))
		}
	}
	require.NotEmpty(t, list)
	return list
}

func TestDashboard_QueriesAreValid(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for i, query := range queries(t) {
		require.NotContains(t, query, "$")
		fmt.Fprintf(&rules, "  - record: q%d\n    expr: %q\n", i, query)
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	require.NoError(t, os.WriteFile(file, []byte(rules.String()), 0o600))
	promtool(t, "check", "rules", file)
}

// The dashboard shows each metric, and uses only metrics, labels and results that there are.
func TestDashboard_ShowsEachMetricAndNoOther(t *testing.T) {
	c, registry := registered(t)
	hooks := c.Hooks()
	for _, cause := range []relock.LossCause{relock.LossExpired, relock.LossGone, relock.LossForced} {
		hooks.Lost(relock.Event{Kind: relock.KindMutex, Cause: cause})
	}
	hooks.Acquired(relock.Event{Kind: relock.KindMutex, Outcome: relock.OutcomeAcquired})
	hooks.Renewed(relock.Event{Kind: relock.KindMutex})
	hooks.Acquired(relock.Event{Kind: relock.KindSemaphore, Weight: 1, Outcome: relock.OutcomeAcquired})
	families, err := registry.Gather()
	require.NoError(t, err)
	labels := make(map[string]map[string][]string) // of each metric, with their values
	for _, family := range families {
		of := map[string][]string{"job": nil, "le": nil}
		for _, metric := range family.Metric {
			for _, pair := range metric.Label {
				of[pair.GetName()] = append(of[pair.GetName()], pair.GetValue())
			}
		}
		labels[family.GetName()] = of
	}
	shown := make(map[string]bool)
	selector := regexp.MustCompile(`(relock_\w+?)(?:_bucket|_sum|_count)?\{([^}]*)\}`)
	for _, query := range queries(t) {
		var names []string
		for _, m := range selector.FindAllStringSubmatch(query, -1) {
			require.Contains(t, labels, m[1], query)
			shown[m[1]], names = true, append(names, m[1])
			for _, matcher := range regexp.MustCompile(`(\w+)(?:=~|!=|=)"([^"]*)"`).FindAllStringSubmatch(m[2], -1) {
				require.Contains(t, labels[m[1]], matcher[1], query)
				if matcher[1] != "job" {
					require.Contains(t, labels[m[1]][matcher[1]], matcher[2], query)
				}
			}
		}
		require.Len(t, names, strings.Count(query, "relock_"), "each selector has the job: %s", query)
		for _, by := range regexp.MustCompile(`by \((\w+)\)`).FindAllStringSubmatch(query, -1) {
			for _, name := range names {
				require.Contains(t, labels[name], by[1], query)
			}
		}
	}
	for name := range labels {
		require.True(t, shown[name], "no panel shows %s", name)
	}
}
