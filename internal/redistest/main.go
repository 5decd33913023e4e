package redistest

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// Main is the TestMain of a package that uses this one: it runs the tests, stops the
// shared server, fails the run if a goroutine is left over, and exits. It silences
// go-redis, which reports every connection that a test breaks on purpose.
func Main(m *testing.M) {
	redis.SetLogger(silent{})
	code := m.Run()
	shared.stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "redistest: goroutines left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
