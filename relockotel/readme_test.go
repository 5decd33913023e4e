package relockotel_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/relock-go/relock/internal/pagetest"
	"github.com/relock-go/relock/relockotel"
)

func TestReadme_CodeIsTheExampleThatRuns(t *testing.T) {
	pagetest.RequireCode(t, "README.md", "go", "example_test.go")
}

// instrument says of what sort a metric is.
func instrument(t *testing.T, m metricdata.Metrics) string {
	t.Helper()
	switch data := m.Data.(type) {
	case metricdata.Histogram[float64]:
		return "histogram"
	case metricdata.Sum[int64]:
		if data.IsMonotonic {
			return "counter"
		}
		return "up-down counter"
	default:
		t.Fatalf("%s is a %T", m.Name, data)
		return ""
	}
}

func TestReadme_TablesMatchTheReports(t *testing.T) {
	readme, doc := pagetest.Read(t, "README.md"), pagetest.Read(t, "doc.go")
	var metrics map[string]metricdata.Metrics
	keys := make(map[string]bool) // of attributes
	synctest.Test(t, func(t *testing.T) {
		o := observe(t, relockotel.WithNameClass(func(string) string { return "orders" }))
		useAll(t, o)
		metrics = o.metrics(t)
		for key := range attributesOf(o.onlyEnded(t, "relock.lock")) {
			keys[key] = true
		}
	})
	require.Len(t, regexp.MustCompile("(?m)^\\| `relock\\.[a-z.]+` \\| (histogram|counter|up-down counter) ").FindAllString(readme, -1), len(metrics))
	for name, m := range metrics {
		var more []string // attributes that not every metric has
		for _, p := range pointsOf(t, m) {
			for _, a := range p.attrs.ToSlice() {
				keys[string(a.Key)] = true
				if key := fmt.Sprintf("`%s`", a.Key); (a.Key == "relock.outcome" || a.Key == "relock.loss.cause") && !slices.Contains(more, key) {
					more = append(more, key)
				}
			}
		}
		require.Contains(t, readme, fmt.Sprintf("\n| `%s` | %s | `%s` | %s |", name, instrument(t, m), m.Unit, strings.Join(more, ", ")))
		require.Contains(t, doc, "\n//\t"+name+" ", "the package doc names each metric")
	}
	for key := range keys {
		require.Regexp(t, "(?m)^\\| `"+key+"` \\|", readme)
	}
}

func TestMetrics_DurationBucketsAreSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t)
		useAll(t, o)
		for name, longest := range map[string]float64{"relock.wait.duration": 300, "relock.hold.duration": 3600, "relock.renew.duration": 10} {
			data, ok := o.metrics(t)[name].Data.(metricdata.Histogram[float64])
			require.True(t, ok, name)
			for _, p := range data.DataPoints {
				require.Equal(t, 0.001, p.Bounds[0], name)
				require.Equal(t, longest, p.Bounds[len(p.Bounds)-1], name)
				require.True(t, slices.IsSorted(p.Bounds), name)
			}
		}
	})
}
