package relocktest

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/relock-go/relock"
)

// server is a Redis server that is reached through memory alone, and can be cut off.
type server struct {
	mini *miniredis.Miniredis
	// serve is a method of what mini itself drops when it is closed.
	serve func(net.Conn)
	rdb   *redis.Client
	opts  []relock.ClientOption // of the client that New has made

	mu      sync.Mutex // guards the rest
	until   time.Time  // the end of the outage
	refused int        // connections
	stopped bool
	conns   []*conn // since the last outage
	others  []*relock.Client
}

const (
	poolSize = 1000
	// redialPause is how long go-redis pauses between two tries to connect when it was refused as often.
	redialPause = time.Second
)

// conn is the client's end of a connection. Before go-redis uses an idle connection, it checks by the socket whether
// the connection has ended. A pipe has no socket, so a command on an ended pipe would fail.
type conn struct {
	net.Conn
	far net.Conn // the server's end
	cut atomic.Bool
}

// SyscallConn returns a socket that is open and without data at each check, or io.EOF if the connection was cut.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.cut.Load() {
		return nil, io.EOF
	}
	return silent{}, nil
}

type silent struct{}

func (silent) Control(func(fd uintptr)) error    { return nil }
func (silent) Read(func(fd uintptr) bool) error  { return nil }
func (silent) Write(func(fd uintptr) bool) error { return nil }

func startServer(opts []relock.ClientOption) *server {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	// To be dialed starts it without a listener: while one is waited for, the clock of a bubble
	// stands still.
	if first, err := m.Dial(); err == nil {
		_ = first.Close()
	}
	s := &server{mini: m, serve: m.Server().ServeConn, opts: opts}
	s.rdb = redis.NewClient(&redis.Options{
		Addr:          "192.0.2.1:6379", // an address for documentation: a name would be looked up
		Dialer:        s.dial,
		DialerRetries: 1, // else it pauses between them
		// A pool that is never full: go-redis waits for a place with timers that it keeps for
		// the next to wait, which may be in another bubble.
		PoolSize: poolSize,
		// Their set-up outlives a bubble.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return s
}

// dial connects, or refuses to in an outage. It does not wait for the end of that: go-redis holds a
// mutex while it dials for messages, and the clock of a bubble stands still while that is waited for.
func (s *server) dial(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || time.Now().Before(s.until) {
		s.refused++
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	near, far := net.Pipe()
	c := &conn{Conn: near, far: far}
	s.conns = append(s.conns, c)
	s.serve(far)
	return c, nil
}

// cut ends all connections, and has new ones refused for d.
func (s *server) cut(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := time.Now().Add(d); until.After(s.until) {
		s.until = until
	}
	for _, c := range s.conns {
		c.cut.Store(true)
		_ = c.far.Close()
	}
	s.conns = nil
}

func (s *server) endOutage() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Time{}
}

// closeLater has a client closed with s.
func (s *server) closeLater(c *relock.Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others = append(s.others, c)
}

// stop closes everything. It waits for the server's goroutines.
func (s *server) stop() {
	s.mu.Lock()
	others := s.others
	s.mu.Unlock()
	for _, c := range others {
		_ = c.Close()
	}
	_ = s.rdb.Close()
	s.mu.Lock()
	s.stopped = true
	refused := s.refused
	s.mu.Unlock()
	s.mini.Close()
	if refused >= poolSize { // what pauses looks then if it is closed; a bubble does not wait for that
		time.Sleep(redialPause)
	}
}
