package relockprom_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
)

// promtool runs Prometheus' own checker. Without one the test is skipped, or fails if RELOCK_REQUIRE_PROMTOOL=1.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	switch {
	case err == nil:
	case os.Getenv("RELOCK_REQUIRE_PROMTOOL") == "1":
		t.Fatal("RELOCK_REQUIRE_PROMTOOL=1 but no promtool on PATH")
	default:
		t.Skip("no promtool on PATH: it comes with Prometheus")
	}
	output, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	require.NoError(t, err, "promtool %v:\n%s", args, output)
}

func TestAlerts_RulesAreValid(t *testing.T) { promtool(t, "check", "rules", "alerts.yml") }

func TestAlerts_FireWhenTheyShould(t *testing.T) { promtool(t, "test", "rules", "alerts_test.yml") }

// promtool does not check which series exist.
func TestAlerts_UseExistingSeries(t *testing.T) {
	c, registry := registered(t)
	e := relock.Event{Kind: relock.KindMutex}
	c.Hooks().Contended(e)
	there := gathered(t, registry)

	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	names := regexp.MustCompile(`relock_\w+`).FindAllString(string(rules), -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.NotEmpty(t, there.of(name), name)
	}
	matchers := regexp.MustCompile(`(relock_\w+)\{(\w+)(=~?|!=)"([^"]+)"\}`).FindAllStringSubmatch(string(rules), -1)
	require.NotEmpty(t, matchers)
	for _, m := range matchers {
		for _, value := range regexp.MustCompile(`\|`).Split(m[4], -1) {
			require.Contains(t, there, m[1]+`{kind="mutex",`+m[2]+`="`+value+`"}`, "%s", m[0])
		}
	}
}

// The counter has the same name there, and begins with the first loss, too.
func TestAlerts_PageOfRelockotelHasTheExpressionOfLosses(t *testing.T) {
	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	lost := regexp.MustCompile(`(?s)alert: RelockLockLost\s+expr: \|(.*?)labels:`).FindSubmatch(rules)
	require.NotNil(t, lost)
	page, err := os.ReadFile("../relockotel/README.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "`"+strings.Join(strings.Fields(string(lost[1])), " ")+"`")
}
