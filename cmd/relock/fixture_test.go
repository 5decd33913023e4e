//go:build unix

package main_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// process is one run of the program.
type process struct {
	cmd      *exec.Cmd
	out, err *output
	ended    chan struct{}
}

// output is what a process has written so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// environ is the environment of a program under test. It contains nothing of the tests' own.
func environ(redisURL, test string) []string {
	// The race detector sleeps for a second before each exit with 0, unless that is switched off.
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TERM=xterm", "GORACE=atexit_sleep_ms=0",
		"RELOCK_REDIS=" + redisURL, runVar + "=" + thisRun, nameVar + "=" + test}
}

func command(t *testing.T, redisURL string, args ...string) *exec.Cmd {
	noProcessLeft(t)
	cmd := exec.Command(program, args...)
	cmd.Env = environ(redisURL, t.Name())
	return cmd
}

// start starts the program. The cleanup ends it if it still runs.
func start(t *testing.T, redisURL string, args ...string) *process {
	t.Helper()
	return startCommand(t, command(t, redisURL, args...))
}

func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, out: &output{}, err: &output{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	p.cmd.WaitDelay = 2 * time.Second // what it has left in the background may have its outputs
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.stop()
		assert.NotContains(t, p.err.String(), "DATA RACE")
		if t.Failed() {
			t.Logf("%s: %d\n%s%s", strings.Join(p.cmd.Args, " "), p.cmd.ProcessState.ExitCode(), p.out, p.err)
		}
	})
	return p
}

// stop has the program end as a user would, which leaves nothing; one that does not is killed.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(redistest.SoonEnough):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// wait returns the exit code; 128+n if signal n has ended the program itself.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	redistest.Receive(t, p.ended)
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(sig))
}

// awaitOut waits until the program, or its command, has printed text.
func (p *process) awaitOut(t *testing.T, text string) {
	t.Helper()
	redistest.Eventually(t, "it printed "+text, func() bool { return strings.Contains(p.out.String(), text) })
}

// run runs the program to its end.
func run(t *testing.T, redisURL string, args ...string) (code int, out, err string) {
	t.Helper()
	p := start(t, redisURL, args...)
	code = p.wait(t)
	return code, p.out.String(), p.err.String()
}

// server starts a Redis for one test, which has to leave nothing there.
func server(t *testing.T, args ...string) (*redistest.Server, string) {
	t.Helper()
	s := redistest.NewServer(t, args...)
	opts := &redis.Options{Addr: s.Addr}
	if len(args) == 2 && args[0] == "--requirepass" {
		opts.Password = args[1]
	}
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	noKeyLeft(t, rdb)
	return s, "redis://" + s.Addr
}

// awaitWaiters waits until so many stand in line for the lock or the semaphore name.
func awaitWaiters(t *testing.T, rdb redis.UniversalClient, name string, n int64) {
	t.Helper()
	redistest.Eventually(t, strconv.FormatInt(n, 10)+" wait for "+name, func() bool {
		return rdb.ZCard(t.Context(), "relock_line:{"+name+"}").Val()+rdb.ZCard(t.Context(), "relock_line_permits:{"+name+"}").Val() == n
	})
}

// requireFree checks that nothing is left of a lock but its counter.
func requireFree(t *testing.T, rdb redis.UniversalClient, name string) {
	t.Helper()
	redistest.Eventually(t, "nothing is left of "+name, func() bool {
		return rdb.Exists(t.Context(), name).Val() == 0 && rdb.Exists(t.Context(), "relock_line:{"+name+"}").Val() == 0 &&
			rdb.Exists(t.Context(), "relock_line_entries:{"+name+"}").Val() == 0
	})
}

// beats are the moments at which a command said that it runs, one on each line of a file.
func beats(t *testing.T, file string) (all []time.Time) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64); err == nil {
			all = append(all, time.Unix(0, n))
		}
	}
	return all
}

// loop is a script that does this for a minute or two, and ends by itself. It counts without a program: a signal
// to the group would end that, too.
func loop(body string) string { return `i=0; while [ $((i+=1)) -lt 3000 ]; do ` + body + `; done` }

func inDir(t *testing.T, name string) string { return filepath.Join(t.TempDir(), name) }

// alive reports whether a process runs.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

const sigTerm = syscall.SIGTERM

// awaitCount waits until p has printed text so many times.
func awaitCount(t *testing.T, p *process, text string, n int) {
	t.Helper()
	redistest.Eventually(t, text+" is printed", func() bool { return strings.Count(p.out.String(), text) >= n })
}
