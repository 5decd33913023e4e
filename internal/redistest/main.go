package redistest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// Main is the TestMain of a package that uses this one: it runs the tests, more of the
// parallel ones at once than there are processors, stops the shared server, fails the run
// if a goroutine is left over, and exits. It silences go-redis, which reports every
// connection that a test breaks on purpose.
func Main(m *testing.M) {
	redis.SetLogger(silent{})
	runMoreAtOnce()
	code := m.Run()
	shared.stop()
	if code == 0 {
		if err := FindLeaks(); err != nil {
			fmt.Fprintln(os.Stderr, "redistest: goroutines left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Slow leaves a test out of a run with -short, which is for the loop of edit and test: ten
// seconds for all, and what is promised on a sound Redis. What the test does on a real server is [Timed].
func Slow(tb testing.TB) {
	tb.Helper()
	InTime(tb)
	if testing.Short() {
		tb.Skip("redistest: it takes long, or is about faults: left out with -short")
	}
}

// InTime says that the test is [Timed] on a real server: it is about leases or pauses.
func InTime(tb testing.TB) { inTime.Store(tb.Name(), true) }

// inTime has the names of the tests that called InTime.
var inTime sync.Map

// isInTime reports whether the test, or one that it is a part of, called InTime.
func isInTime(tb testing.TB) bool {
	for name := tb.Name(); ; {
		if _, is := inTime.Load(name); is {
			return true
		}
		end := strings.LastIndexByte(name, '/')
		if end < 0 {
			return false
		}
		name = name[:end]
	}
}

// Timed leaves a test out unless RELOCK_REQUIRE_REDIS=1: a test in real time, which passes only on a machine that has time
// for it. The gate runs these tests with nothing beside them.
func Timed(tb testing.TB) {
	tb.Helper()
	Slow(tb)
	if os.Getenv("RELOCK_REQUIRE_REDIS") != "1" {
		tb.Skip("redistest: it needs a machine that has time for it: left out without RELOCK_REQUIRE_REDIS=1")
	}
}

// leakTimeout is how long a goroutine may take to end before it counts as left over.
const leakTimeout = 10 * time.Second

// FindLeaks is goleak.Find with patience: that gives up after half a second, in which a
// goroutine that is about to end may not get to run on a busy machine.
func FindLeaks(options ...goleak.Option) error {
	for deadline := time.Now().Add(leakTimeout); ; {
		err := goleak.Find(options...) // pauses by itself
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// runMoreAtOnce raises the number of parallel tests, unless -parallel says what it shall be.
func runMoreAtOnce() {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		_ = flag.Set("test.parallel", strconv.Itoa(atOnce*runtime.GOMAXPROCS(0)))
	}
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
