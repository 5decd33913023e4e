//go:build unix

package main_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
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
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// What a test starts has the run of the tests and the name of the test in its environment, and so has all
// that this starts in turn, whatever group or session it is in.
const (
	runVar  = "RELOCK_TEST_RUN"
	nameVar = "RELOCK_TEST_NAME"
)

// thisRun distinguishes the processes of these tests from others at the same time.
var thisRun = rand.Text()

// processesOf returns the processes of one test of a run and of its subtests, or with "" all of the run. Where
// there is no /proc it finds none.
func processesOf(run, test string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		environ, err := os.ReadFile(file)
		text := "\x00" + string(environ)
		if err != nil || !strings.Contains(text, "\x00"+runVar+"="+run+"\x00") {
			continue
		}
		_, name, _ := strings.Cut(text, "\x00"+nameVar+"="+test)
		if test != "" && !strings.HasPrefix(name, "\x00") && !strings.HasPrefix(name, "/") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if pid != os.Getpid() && alive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// checked has the names of the tests that noProcessLeft is to check.
var checked sync.Map

// noProcessLeft checks when t ends that nothing runs that it has started.
func noProcessLeft(t *testing.T) {
	if _, has := checked.LoadOrStore(t.Name(), true); has {
		return
	}
	t.Cleanup(func() {
		checked.Delete(t.Name())
		for end := time.Now().Add(redistest.SoonEnough); len(processesOf(thisRun, t.Name())) > 0; time.Sleep(redistest.LookEvery) {
			if time.Now().After(end) {
				t.Errorf("left by the test: %v", processesOf(thisRun, t.Name()))
				return
			}
		}
	})
}

// noKeyLeft checks when t ends that no key is left but counters of tokens, which outlive locks. A server that the
// test has killed has none.
func noKeyLeft(t *testing.T, rdb redis.UniversalClient) {
	t.Cleanup(func() {
		ctx := context.Background() // the context of t is over
		for end := time.Now().Add(redistest.SoonEnough); ; time.Sleep(redistest.LookEvery) {
			left, err := keysLeft(ctx, rdb)
			var down *net.OpError
			if errors.As(err, &down) || err == nil && len(left) == 0 {
				return
			}
			if err != nil || time.Now().After(end) {
				t.Errorf("keys are left: %v, %v", left, err) // FailNow of a test with subtests would leave it without a report
				return
			}
		}
	})
}

// keysLeft returns the keys that are there besides counters.
func keysLeft(ctx context.Context, rdb redis.UniversalClient) (left []string, err error) {
	var mu sync.Mutex
	look := func(ctx context.Context, one *redis.Client) error {
		all, err := one.Keys(ctx, "*").Result()
		mu.Lock()
		defer mu.Unlock()
		for _, key := range all {
			if !strings.HasPrefix(key, "redisson_lock_token:") {
				left = append(left, key)
			}
		}
		return err
	}
	if cluster, is := rdb.(*redis.ClusterClient); is {
		return left, cluster.ForEachMaster(ctx, look)
	}
	return left, look(ctx, rdb.(*redis.Client))
}

// watchVar has this program watch the run of that name.
const watchVar = "RELOCK_TEST_WATCHES"

// startWatcher starts this program again, to kill what is left of the run when this process has ended, however that
// comes. The returned function ends it.
func startWatcher() (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = []string{watchVar + "=" + thisRun}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to the group of the tests is not for it
	open, err := cmd.StdinPipe()                         // which is closed with this process
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() error {
		_ = open.Close()
		return cmd.Wait()
	}, nil
}

// watch is the watcher. It looks until it has found nothing for a while: one may be about to start another.
func watch(run string) {
	_, _ = io.Copy(io.Discard, os.Stdin)
	for quiet := 0; quiet < 10; quiet++ {
		for _, pid := range processesOf(run, "") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			quiet = 0
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// hangVar has this program start what tests start, say so, and wait to be killed.
const hangVar = "RELOCK_TEST_HANGS"

func hang(built string) int {
	program, thisRun = built, os.Getenv(runVar)
	unwatch, err := startWatcher()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer unwatch() // it also keeps the pipe: the watcher begins when that is collected
	s, err := redistest.StartServer("")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	stubborn := `trap "" HUP INT TERM; echo ready; ` + loop("sleep 0.02")
	cmd := exec.Command(program, "run", "a", "--", "sh", "-c", `setsid sh -c '`+stubborn+`' & exec sleep 60`)
	cmd.Env = environ("redis://"+s.Addr, "hang")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1 // it is killed before
}

func TestFixture_ProcessesDieWithTheTests(t *testing.T) {
	t.Parallel()
	redistest.RequireServer(t)
	self, err := os.Executable()
	require.NoError(t, err)
	run := rand.Text()
	tests := exec.Command(self)
	tests.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir(), hangVar + "=" + program, runVar + "=" + run}
	out := &output{}
	tests.Stdout, tests.Stderr = out, out
	tests.WaitDelay = time.Second
	require.NoError(t, tests.Start())
	redistest.Eventually(t, "it has started all", func() bool { return strings.Contains(out.String(), "ready") })
	require.GreaterOrEqual(t, len(processesOf(run, "")), 4, "tests, relock, its command, and what that has started")
	require.NoError(t, tests.Process.Kill())
	_ = tests.Wait()
	redistest.Eventually(t, "all of it is gone", func() bool { return len(processesOf(run, "")) == 0 })
}
