package redistest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// Main is the TestMain of a package that uses this one. It runs the tests, with more parallel tests at once than there are
// processors, stops the shared server and what the tests share besides, fails the run if a goroutine is left over, and exits.
// It silences go-redis, which logs every connection that a test breaks on purpose.
func Main(m *testing.M, stop ...func()) {
	redis.SetLogger(silent{})
	runMoreAtOnce()
	debug.SetGCPercent(fewerCollections)
	code := m.Run()
	shared.stop()
	for _, stop := range stop {
		stop()
	}
	if code == 0 {
		if err := FindLeaks(); err != nil {
			fmt.Fprintln(os.Stderr, "redistest: goroutines left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leakTimeout is how long a goroutine may take to end before it counts as left over.
const leakTimeout = 10 * time.Second

// FindLeaks is goleak.Find with a longer wait. On a busy machine, a goroutine that is about to end may not run within the
// half second after which goleak.Find gives up.
func FindLeaks(options ...goleak.Option) error {
	for deadline := time.Now().Add(leakTimeout); ; {
		err := goleak.Find(options...) // pauses by itself
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// atOnce is how many parallel tests run for each processor. They wait most of the time, for a server, a lease, or a lost
// answer.
const atOnce = 4

// fewerCollections is four times the usual GOGC. miniredis makes a Lua state for each script, and a third of the processor
// time of the tests went into collecting them.
const fewerCollections = 400

// runMoreAtOnce raises the number of parallel tests, unless -parallel is set.
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
