package interop

import (
	"flag"
	"os"
	"sync"
	"testing"
	"time"

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
	redistest.Main(m, func() {
		for _, stop := range stops {
			stop()
		}
	})
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
