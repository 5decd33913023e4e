package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// readyTimeout bounds every wait for servers to start or to agree. Sentinels may need 13 s to agree, and 10 s more each
// time that the machine stalls meanwhile.
const readyTimeout = time.Minute

// Available reports whether a redis-server is installed, so that StartServer can work.
func Available() bool { return serverVersion() > 0 }

// Version is the major version of the installed redis-server, 0 if there is none.
func Version() int { return serverVersion() }

// RequireVersion skips the test if the installed redis-server is older than the given major version. Without a
// redis-server, RequireServer skips it.
func RequireVersion(tb testing.TB, major int) {
	tb.Helper()
	if Available() && Version() < major {
		tb.Skipf("redistest: it needs Redis %d, the redis-server on PATH is of version %d", major, Version())
	}
}

// serverVersion is the major version of the installed redis-server, 0 if there is none.
var serverVersion = sync.OnceValue(func() int {
	out, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		return 0
	}
	major := regexp.MustCompile(`v=(\d+)\.`).FindSubmatch(out)
	if major == nil {
		return 1
	}
	n, _ := strconv.Atoi(string(major[1]))
	return n
})

// Server is a redis-server that runs as a child of this process and dies with it.
// Its methods are safe for concurrent use.
type Server struct {
	Addr string // host:port, the same for the server's whole life
	Dir  string // its working directory: data and configuration files

	ownDir bool
	args   []string

	mu   sync.Mutex // guards proc
	proc *process
}

// StartServer starts a redis-server on a free port of 127.0.0.1 and waits until it
// answers. dir is its working directory; "" means a new one that Close removes. The
// server keeps nothing on disk, and DEBUG is enabled; args come after these defaults
// and may override them ("--appendonly", "yes").
func StartServer(dir string, args ...string) (*Server, error) {
	if !Available() {
		return nil, errors.New("redistest: no redis-server on PATH")
	}
	base := []string{"--save", "", "--appendonly", "no"}
	if serverVersion() >= 7 {
		base = append(base, "--enable-debug-command", "local")
	}
	s, err := newServer(dir)
	if err != nil {
		return nil, err
	}
	if err := s.startOnFreePort(nil, append(base, args...)); err != nil {
		return nil, err
	}
	return s, nil
}

// NewServer is StartServer in a directory of its own for the length of a test, a [Timed] one, which
// is skipped when no redis-server is installed.
func NewServer(tb testing.TB, args ...string) *Server {
	tb.Helper()
	Timed(tb)
	RequireServer(tb)
	s, err := StartServer("", args...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// newServer returns a server that is not started yet, in dir or in a new directory.
func newServer(dir string) (*Server, error) {
	if dir != "" {
		return &Server{Dir: dir}, nil
	}
	dir, err := os.MkdirTemp("", "redistest-")
	return &Server{Dir: dir, ownDir: true}, err
}

// startOnFreePort starts the server. The arguments for its port and directory come between head and args. If another
// program takes the port first, it tries another port.
func (s *Server) startOnFreePort(head, args []string) error {
	var failed error
	for range 5 {
		port, err := freePort()
		if err != nil {
			return err
		}
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		place := []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", s.Dir}
		s.args = slices.Concat(head, place, args)
		if failed = s.Restart(); failed == nil || !strings.Contains(failed.Error(), "in use") {
			break
		}
	}
	if failed != nil {
		s.Close()
	}
	return failed
}

// Restart kills the server if it runs, starts it again with the same address, directory and arguments, and waits until it
// has loaded its data and answers.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.kill()
	}
	p, err := startProcess("redis-server", s.args...)
	if err != nil {
		return err
	}
	s.proc = p
	if err := awaitReady(s.Addr, p); err != nil {
		p.kill()
		return err
	}
	return nil
}

// RestartWith is Restart with further arguments, which come last.
func (s *Server) RestartWith(args ...string) error {
	s.mu.Lock()
	s.args = slices.Concat(s.args, args)
	s.mu.Unlock()
	return s.Restart()
}

// Pause freezes the server (SIGSTOP): connections stay open, nothing is answered.
// When Pause returns the server has stopped.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.signal(sigStop); err != nil {
		return err
	}
	return eventually("the server to stop", func() (bool, error) { return stopped(s.proc.pid()), nil })
}

// Resume continues a paused server (SIGCONT), which then executes the commands that it was sent meanwhile.
func (s *Server) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.signal(sigCont)
}

// Kill ends the server as a crash does (SIGKILL) and waits for its end. Restart brings it back.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.kill()
}

// Close kills the server, paused or not, and removes the directory that StartServer
// made for it. It may be called more than once.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.kill()
	}
	givePortBack(s.Addr)
	if s.ownDir {
		os.RemoveAll(s.Dir)
	}
}

// Output returns the end of the server's output since its last start.
func (s *Server) Output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.output.String()
}

// Client returns a client with go-redis' default options, closed in tb's cleanup.
func (s *Server) Client(tb testing.TB) *redis.Client {
	tb.Helper()
	return NewClient(tb, s.Addr)
}

// awaitReady waits until the server at addr answers, and is the process that was started, not another program's server
// that took the port first.
func awaitReady(addr string, p *process) error {
	err := eventually(addr+" to answer", func() (bool, error) {
		if !p.alive() {
			return false, fmt.Errorf("server at %s ended: %s", addr, p.output)
		}
		answer, err := probe(addr)
		if err != nil || strings.HasPrefix(answer, "-LOADING") {
			return false, nil
		}
		// A server that requires a password does not report its process id.
		ours := "process_id:" + strconv.Itoa(p.pid()) + "\r\n"
		return strings.HasPrefix(answer, "-NOAUTH") || strings.Contains(answer, ours), nil
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.output)
	}
	return nil
}

// probe returns the server's raw answer to PING if that is an error, else to INFO server.
func probe(addr string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\nINFO server\r\n")); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	pong, err := readFrame(r)
	if err != nil || pong[0] == '-' {
		return string(pong), err
	}
	info, err := readFrame(r)
	return string(info), err
}

// eventually polls cond until it holds, fails, or readyTimeout has passed.
func eventually(what string, cond func() (bool, error)) error {
	deadline := time.Now().Add(readyTimeout)
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		ok, err := cond()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("redistest: gave up after %v waiting for %s", readyTimeout, what)
		}
		time.Sleep(wait)
	}
}
