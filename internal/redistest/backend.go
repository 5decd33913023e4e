package redistest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Backend is a Redis to test against.
type Backend struct {
	Name string // "miniredis" or "redis"
	Addr string // host:port
	Real bool   // a redis-server, shared by all tests of the process: use Key for names

	// Miniredis is the server itself when it is not Real, else nil.
	Miniredis *miniredis.Miniredis

	latency time.Duration // in memory
}

// Each runs fn as the subtests "miniredis" and "redis". The first has its own server, in a bubble: see InBubble. The
// second is skipped without a real server (see Redis), or if it is Timed and those tests are left out.
func Each(t *testing.T, fn func(t *testing.T, b *Backend)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { inBubble(t, memoryLatency, fn) })
	t.Run("redis", func(t *testing.T) {
		if isInTime(t) {
			Timed(t)
		}
		fn(t, Redis(t))
	})
}

// EachInRealTime is Each with a miniredis behind a socket, for tests that a bubble does not allow.
func EachInRealTime(t *testing.T, fn func(t *testing.T, b *Backend)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { fn(t, Mini(t)) })
	t.Run("redis", func(t *testing.T) { fn(t, Redis(t)) })
}

// Mini returns a new miniredis of the test's own, whose TTLs run with the clock.
func Mini(tb testing.TB) *Backend {
	tb.Helper()
	return miniBackend(miniredis.RunT(tb))
}

func miniBackend(m *miniredis.Miniredis) *Backend {
	m.ClockTTL(true)
	return &Backend{Name: "miniredis", Addr: m.Addr(), Miniredis: m}
}

// Redis returns the real server that all tests of this process share: the one that
// RELOCK_REDIS names, else a child started on first use and stopped by Main. Without
// either the test is skipped, or fails if RELOCK_REQUIRE_REDIS=1. With -short it is skipped.
func Redis(tb testing.TB) *Backend {
	tb.Helper()
	if testing.Short() {
		tb.Skip("redistest: it needs a real Redis: left out with -short")
	}
	if os.Getenv("RELOCK_REDIS") == "" {
		RequireServer(tb)
	}
	addr, err := shared.addr()
	if err != nil {
		tb.Fatal(err)
	}
	return &Backend{Name: "redis", Addr: addr, Real: true}
}

// Nodes returns n independent servers of the kind of b. The first is b. Other miniredises belong to the test, as with
// Each. Other real servers are children that all tests of this process share: use Key for names.
func (b *Backend) Nodes(tb testing.TB, n int) []*Backend {
	tb.Helper()
	nodes := []*Backend{b}
	for i := 1; i < n; i++ {
		if isInMemory(b.Addr) {
			nodes = append(nodes, memoryBackend(tb, b.latency))
			continue
		}
		if !b.Real {
			nodes = append(nodes, Mini(tb))
			continue
		}
		RequireServer(tb)
		addr, err := shared.peer(i)
		if err != nil {
			tb.Fatal(err)
		}
		nodes = append(nodes, &Backend{Name: b.Name, Addr: addr, Real: true})
	}
	return nodes
}

// Client returns a client with go-redis' default options, closed in tb's cleanup.
func (b *Backend) Client(tb testing.TB) *redis.Client {
	tb.Helper()
	return NewClient(tb, b.Addr)
}

// NewClient returns a client of the server at addr, like Client.
func NewClient(tb testing.TB, addr string) *redis.Client {
	tb.Helper()
	rdb := redis.NewClient(Options(addr))
	tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// Key returns a name for a lock or key that no other test uses: the test's name with
// everything but letters, digits, '-' and '_' replaced, and a random suffix.
func Key(tb testing.TB) string {
	tb.Helper()
	safe := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '-', r == '_':
			return r
		}
		return '_'
	}, tb.Name())
	return fmt.Sprintf("%s-%08x", safe, rand.Uint32())
}

// RequireServer skips the test if redis-server is not installed, or fails it with RELOCK_REQUIRE_REDIS=1.
func RequireServer(tb testing.TB) {
	tb.Helper()
	switch {
	case Available():
	case os.Getenv("RELOCK_REQUIRE_REDIS") == "1":
		tb.Fatal("redistest: RELOCK_REQUIRE_REDIS=1 but no redis-server on PATH")
	default:
		tb.Skip("redistest: no redis-server on PATH")
	}
}

// shared is the real server of this process.
var shared sharedServer

type sharedServer struct {
	mu     sync.Mutex // guards the rest
	server *Server
	peers  []*Server // independent of it
}

func (s *sharedServer) addr() (string, error) {
	if addr := os.Getenv("RELOCK_REDIS"); addr != "" {
		_, err := probe(addr)
		if err != nil {
			err = fmt.Errorf("redistest: RELOCK_REDIS=%s does not answer: %w", addr, err)
		}
		return addr, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		server, err := StartServer("")
		if err != nil {
			return "", err
		}
		s.server = server
	}
	return s.server.Addr, nil
}

// peer returns the address of the nth peer, from 1 on.
func (s *sharedServer) peer(n int) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.peers) < n {
		server, err := StartServer("")
		if err != nil {
			return "", err
		}
		s.peers = append(s.peers, server)
	}
	return s.peers[n-1].Addr, nil
}

func (s *sharedServer) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		s.server.Close()
		s.server = nil
	}
	for _, peer := range s.peers {
		peer.Close()
	}
	s.peers = nil
}
