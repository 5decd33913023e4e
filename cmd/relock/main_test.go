//go:build unix

package main_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/redistest"
)

// program is the binary that the tests drive, with the race detector if they have it.
var (
	program   string
	raceFlags []string
	long      = flag.Bool("long", os.Getenv("RELOCK_LONG") != "", "the campaign in full: 1 000 runs")
)

// atOnce is how many tests run at once, unless -parallel says it: most of their time they wait.
const atOnce = 8

func TestMain(m *testing.M) {
	if run := os.Getenv(watchVar); run != "" {
		watch(run)
		return
	}
	if built := os.Getenv(hangVar); built != "" {
		os.Exit(hang(built))
	}
	_ = flag.Set("test.parallel", strconv.Itoa(atOnce))
	flag.Parse()
	redis.SetLogger(silent{})
	// Under nohup, programs that these tests start would ignore a hangup, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "relock-cmd-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "relock")
	build := exec.Command("go", append(append([]string{"build"}, raceFlags...), "-o", program, ".")...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	unwatch, err := startWatcher()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer unwatch()
	code := m.Run()
	if err := redistest.FindLeaks(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines left after the tests:", err)
		code = 1
	}
	return code
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
