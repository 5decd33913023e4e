package redistest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
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
