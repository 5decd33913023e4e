package tests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	_ "github.com/relock-go/relock/election" // what the examples use: go test has to run them again when it changes
	"github.com/relock-go/relock/internal/pagetest"
	"github.com/relock-go/relock/internal/redistest"
)

// raceFlags are those of the tests.
var raceFlags []string

// The quickstart has tests of its own.
func TestExamples_PrintWhatThePageShowsAndLeaveNoKey(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	files, err := filepath.Glob("../examples/*/*.go")
	require.NoError(t, err)
	programs := t.TempDir()
	build := exec.Command("go", append([]string{"build", "-ldflags", "-s -w", "-o", programs + string(os.PathSeparator)}, raceFlags...)...)
	var names []string
	for _, file := range files {
		dir, base := filepath.Split(file)
		name := filepath.Base(dir)
		if name == "quickstart" {
			continue
		}
		if base == "main.go" {
			names = append(names, name)
			build.Args = append(build.Args, dir)
		}
	}
	output, err := build.CombinedOutput()
	require.NoError(t, err, string(output))
	require.NotEmpty(t, names)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := pagetest.Output(t, "../examples/README.md", "go run ./examples/"+name)
			program := filepath.Join(programs, name)
			t.Run("embedded", func(t *testing.T) {
				t.Parallel()
				require.Equal(t, want, outputOf(t, program))
			})
			t.Run("redis", func(t *testing.T) {
				t.Parallel()
				b := redistest.Redis(t)
				rdb := b.Client(t)
				require.Equal(t, want, outputOf(t, program, "-redis", b.Addr))
				redistest.Eventually(t, "no key is left", func() bool { return examplesKeys(t, rdb) == 0 })
			})
		})
	}
}

// outputOf returns what a program prints until it ends. The limit is for one that hangs.
func outputOf(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, string(output))
	return string(output)
}

// examplesKeys counts the keys of the examples, whose names begin with "example-".
func examplesKeys(t *testing.T, rdb *redis.Client) int {
	t.Helper()
	keys, err := rdb.Keys(t.Context(), "*example-*").Result()
	require.NoError(t, err)
	return len(keys)
}
