package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/check"
	"github.com/relock-go/relock/chaos/internal/scenario"
	"github.com/relock-go/relock/chaos/mutant"
	"github.com/relock-go/relock/internal/pagetest"
)

func TestPages_HaveEveryScenarioInvariantAndMutant(t *testing.T) {
	text := pagetest.Read(t, "scenarios.md")
	var listed bytes.Buffer
	list(&listed)
	for line := range strings.Lines(listed.String()) {
		if number, rest, found := strings.Cut(strings.TrimSpace(line), "  "); found {
			name, what, _ := strings.Cut(rest, " ")
			require.Contains(t, text, "| "+number+" | `"+name+"` | "+strings.TrimSpace(what)+" |")
		}
	}
	for _, name := range check.Invariants {
		require.Contains(t, pagetest.Read(t, "README.md"), "\n| "+name+" | ")
	}
	for _, m := range mutant.All {
		require.Contains(t, text, "\n| `"+m.Name+"` | "+m.Breaks+" | ")
	}
}

func TestPages_ScenariosThatCatchMutantsExist(t *testing.T) {
	for _, m := range mutant.All {
		for _, name := range m.Catch {
			_, err := scenario.Choose(name)
			require.NoError(t, err, m.Name)
		}
	}
}

func TestPages_ViolationsAreReadFromTheOutput(t *testing.T) {
	out := []byte("| 1 | x |\n\nx: 3 violations\n\nporcupine l: no order\n\nI1 l: a held it\n\nI1 l: b held it\n  I2 is not at the beginning of a line\n")
	found := make(map[string]bool)
	for _, line := range breach.FindAllSubmatch(out, -1) {
		found[string(line[1])] = true
	}
	require.Equal(t, "I1, porcupine", listed(found))
}
