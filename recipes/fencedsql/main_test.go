//go:build unix

package main

import (
	"bytes"
	"database/sql"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/pagetest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestFencedSQL_PrintsWhatThePageShowsAndLeavesOnlyTheCounter(t *testing.T) {
	b := redistest.Mini(t)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, b.Addr, startPostgres(t)))
	command := `go run -C recipes ./fencedsql -postgres "$POSTGRES"`
	require.Equal(t, pagetest.Output(t, "../../examples/README.md", command), out.String())
	require.Equal(t, []string{"redisson_lock_token:{example-doc:7}"}, b.Miniredis.Keys())
}

// startPostgres starts a Postgres on a socket, for the length of the test, and returns its URL. Without one the test is
// skipped, or fails if RELOCK_REQUIRE_POSTGRES=1.
func startPostgres(t *testing.T) (url string) {
	t.Helper()
	initdb, server := program("initdb"), program("postgres")
	if initdb == "" || server == "" {
		if os.Getenv("RELOCK_REQUIRE_POSTGRES") == "1" {
			t.Fatal("RELOCK_REQUIRE_POSTGRES=1 but no Postgres")
		}
		t.Skip("no Postgres: on Debian it is in the package postgresql")
	}
	dir, err := os.MkdirTemp("", "relock-postgres-") // not in t.TempDir, which other users cannot enter
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	var as *syscall.SysProcAttr
	if os.Getuid() == 0 { // which Postgres refuses to run as
		other, err := user.Lookup("nobody")
		require.NoError(t, err)
		uid, err := strconv.Atoi(other.Uid)
		require.NoError(t, err)
		gid, err := strconv.Atoi(other.Gid)
		require.NoError(t, err)
		require.NoError(t, os.Chown(dir, uid, gid))
		as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	data := filepath.Join(dir, "data")
	create := exec.Command(initdb, "-D", data, "-U", "postgres", "-A", "trust", "--no-sync")
	create.Dir, create.SysProcAttr = dir, as
	output, err := create.CombinedOutput()
	require.NoError(t, err, string(output))

	postgres := exec.Command(server, "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off")
	var log bytes.Buffer
	postgres.Dir, postgres.SysProcAttr, postgres.Stderr = dir, as, &log
	require.NoError(t, postgres.Start())
	t.Cleanup(func() {
		_ = postgres.Process.Signal(os.Interrupt) // the fast way to stop
		if err := postgres.Wait(); err != nil || t.Failed() {
			t.Log(err, log.String())
		}
	})
	url = "postgres:///postgres?user=postgres&host=" + dir
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer db.Close()
	redistest.Eventually(t, "Postgres answers", func() bool { return db.PingContext(t.Context()) == nil })
	return url
}

// program is the path of a program of Postgres. Debian has them outside of the PATH.
func program(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	versions, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(versions) == 0 {
		return ""
	}
	return versions[len(versions)-1]
}
