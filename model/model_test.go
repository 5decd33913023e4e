package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/pagetest"
)

// requireSpin skips unless Spin is wanted: it keeps all processors busy, next to tests that watch the clock.
func requireSpin(t *testing.T) {
	t.Helper()
	if os.Getenv("RELOCK_REQUIRE_SPIN") != "1" {
		t.Skip("checks with Spin are run alone: RELOCK_REQUIRE_SPIN=1 go test ./model")
	}
	for _, tool := range []string{"spin", "gcc"} {
		_, err := exec.LookPath(tool)
		require.NoError(t, err, "RELOCK_REQUIRE_SPIN=1")
	}
}

func checks(t *testing.T) []check {
	all, err := plan()
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

func TestModel_KeepsItsPromisesAndNeedsEachRule(t *testing.T) {
	requireSpin(t)
	for _, c := range checks(t) {
		if c.long {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			v, err := verify(t.Context(), c, usual)
			require.NoError(t, err)
			require.Equal(t, c.promise, v.broken, strings.Join(v.story, "\n"))
			if c.rule != "" {
				require.NotEmpty(t, v.story)
			} else {
				require.Positive(t, v.states)
			}
		})
	}
}

func TestModel_StoryOfADisabledRuleIsPrinted(t *testing.T) {
	requireSpin(t)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, false, "NO_RETIRE"))
	require.Contains(t, out.String(), "Redis: a late release or undo")
	require.Contains(t, out.String(), "The broken promise: exclusion.")
}

func TestModel_UnknownRuleIsNamedInTheError(t *testing.T) {
	requireSpin(t)
	var out bytes.Buffer
	require.ErrorContains(t, run(t.Context(), &out, false, "NO_SUCH"), `"NO_SUCH"`)
	require.Contains(t, out.String(), "NO_RETIRE")
}

func TestModel_RunThatTakesTooLongIsEnded(t *testing.T) {
	requireSpin(t)
	_, err := verify(t.Context(), checks(t)[0], limits{time: 1, memory: 100})
	require.ErrorContains(t, err, "not done within")
}

func TestModel_RunThatReachesItsLimitsReportsItsProgress(t *testing.T) {
	requireSpin(t)
	v, err := verify(t.Context(), check{model: "name.pml", long: true}, limits{time: time.Minute, memory: 200})
	require.NoError(t, err)
	require.True(t, v.part)
	require.Positive(t, v.states)
}

// switches are what the models can be built without.
var switches = regexp.MustCompile(`(?m)^#(?:el)?if(?:n?def| !?defined\()\s*([A-Z][A-Z_0-9]*)`)

func TestModel_EachSwitchIsInThePlan(t *testing.T) {
	files, err := filepath.Glob("*.pml")
	require.NoError(t, err)
	used := map[string]bool{"ONLY": true}
	for _, c := range checks(t) {
		used[c.rule] = true
		for _, flag := range c.flags {
			name, _, _ := strings.Cut(strings.TrimPrefix(flag, "-D"), "=")
			used[name] = true
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range switches.FindAllStringSubmatch(string(text), -1) {
			sized := regexp.MustCompile(`(?m)^#define ` + m[1] + ` \d`).Match(text)
			require.True(t, used[m[1]] || sized, "%s: %s is neither a rule nor a size in any plan", file, m[1])
		}
	}
}

// row is one of README's table: what a model does, and the code that does it.
var row = regexp.MustCompile("(?m)^\\| .* \\| (`.*`) \\|$")

// code is a script, or a function: type.name, or package.name.
var code = regexp.MustCompile("`([^`]+)`")

func TestModel_ReadmeNamesExistingCode(t *testing.T) {
	declared, n := pagetest.Declared(t, ".."), 0
	for _, m := range row.FindAllStringSubmatch(pagetest.Read(t, "README.md"), -1) {
		for _, c := range code.FindAllStringSubmatch(m[1], -1) {
			n++
			if filepath.Ext(c[1]) == ".lua" {
				require.FileExists(t, filepath.Join("../internal/protocol/lua", c[1]))
			} else {
				require.True(t, declared(c[1]), "README.md names %s", c[1])
			}
		}
	}
	require.Greater(t, n, 30)
}
