package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// copied returns a copy of what a run writes, below another root.
func copied(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "docs", "pictures"), 0o755))
	page, err := os.ReadFile(filepath.Join(root, "docs", "benchmark.md"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docs", "benchmark.md"), page, 0o644))
	return dir
}

func TestPublish_PageHasEachBlock(t *testing.T) {
	dir := copied(t)
	require.NoError(t, filled(2).publish(dir))
	page, err := os.ReadFile(filepath.Join(dir, "docs", "benchmark.md"))
	require.NoError(t, err)
	for _, b := range blocks {
		require.Contains(t, string(page), "<!-- begin: "+b.name+" -->\n"+b.text(filled(2))+"<!-- end: "+b.name+" -->\n")
	}
	require.FileExists(t, filepath.Join(dir, "docs", "pictures", "benchmark.svg"))
}

func TestPublish_PageIsDrawnFromTheResults(t *testing.T) {
	kept, err := loadResults(filepath.Join(root, resultsFile))
	require.NoError(t, err)
	dir := copied(t)
	require.NoError(t, kept.publish(dir))
	for _, file := range []string{"docs/benchmark.md", "docs/pictures/benchmark.svg"} {
		want, err1 := os.ReadFile(filepath.Join(dir, file))
		got, err2 := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, errors.Join(err1, err2))
		require.Equal(t, string(want), string(got), "%s was changed by hand: go run -C bench/open . -from results.json -publish ../..", file)
	}
}
