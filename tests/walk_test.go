package tests

import (
	"context"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// TestWalk_ReportsTheFunctionsOfALock is run by `make walk`, which sees by its coverage which functions one Lock and
// one Unlock execute: RELOCK_WALK says how many of them there are. It reports how many frames of the library are on the
// stack when the command is written.
func TestWalk_ReportsTheFunctionsOfALock(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("RELOCK_WALK"))
	if err != nil {
		t.Skip("run it by make walk")
	}
	var deepest atomic.Int64
	rdb := redis.NewClient(&redis.Options{
		Addr: redistest.Mini(t).Addr, MaxRetries: -1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return framed{conn, &deepest}, err
		},
	})
	defer rdb.Close()
	m := locktest.Closed[*relock.Client](t)(relock.New(rdb)).Mutex("walk")
	frames := func(f func() error) int64 {
		deepest.Store(0)
		require.NoError(t, f())
		return deepest.Load()
	}
	lock := func() error { return m.Lock(context.Background()) }
	var locked, unlocked int64
	for range n {
		locked, unlocked = frames(lock), frames(m.Unlock)
	}
	t.Logf("frames at the write: Lock %d, Unlock %d", locked, unlocked)
}

// framed notes how many frames of the library are on the stack of a write, at most.
type framed struct {
	net.Conn
	deepest *atomic.Int64
}

func (c framed) Write(p []byte) (int, error) {
	var pcs [128]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	n := int64(0)
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if strings.HasPrefix(f.Function, "github.com/relock-go/relock") && !strings.HasPrefix(f.Function, "github.com/relock-go/relock/tests") {
			n++
		}
	}
	c.deepest.Store(max(n, c.deepest.Load()))
	return c.Conn.Write(p)
}
