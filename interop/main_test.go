package interop

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/redistest"
)

// soakTime is how long the soak runs; `interop/run -soak 10m` runs a long one.
var soakTime = flag.Duration("soak", 3*time.Second, "duration of the soak test")

const (
	soonEnough = time.Minute           // for what must happen
	lookEvery  = 2 * time.Millisecond  // how often to look
	aWhile     = 50 * time.Millisecond // for what must not happen
)

func TestMain(m *testing.M) {
	if order := os.Getenv(holderEnv); order != "" {
		holdUntilKilled(order)
	}
	redis.SetLogger(silent{})
	code := m.Run()
	for _, stop := range stops {
		stop()
	}
	if code == 0 {
		if err := redistest.FindLeaks(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// stops end what the tests share: servers, and a Java process.
var (
	stopping sync.Mutex
	stops    []func()
)

func stopAtTheEnd(stop func()) {
	stopping.Lock()
	defer stopping.Unlock()
	stops = append(stops, stop)
}

// silent is a logger: go-redis reports every connection that a test breaks on purpose.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
