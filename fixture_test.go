package relock

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/locktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

// locksOn returns a client that is closed before rdb is.
func locksOn(tb testing.TB, rdb redis.UniversalClient, opts ...ClientOption) *Client {
	tb.Helper()
	return locktest.Closed[*Client](tb)(New(rdb, opts...))
}

// locksWithClock is locksOn with a clock to be set.
func locksWithClock(t *testing.T, rdb redis.UniversalClient, opts ...ClientOption) (*Client, *locktest.TwoClocks) {
	t.Helper()
	s, clocks := defaultSettings(), &locktest.TwoClocks{}
	for _, opt := range opts {
		opt.applyToClient(&s)
	}
	return locktest.Closed[*Client](t)(newClient(rdb, s, clocks.Now), nil), clocks
}

// chronicle records what hooks are told.
type chronicle = locktest.Chronicle[Event, Hooks]

// resolved is s changed by opts.
func resolved(s settings, opts []MutexOption) settings {
	s.apply(opts)
	return s
}
