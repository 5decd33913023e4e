package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/relock-go/relock/internal/redistest"
)

// subreaperVar has this program become a subreaper, and then the program of that name.
const subreaperVar = "RELOCK_TEST_SUBREAPER"

func init() {
	if program := os.Getenv(subreaperVar); program != "" {
		_ = os.Unsetenv(subreaperVar)
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			panic(err)
		}
		panic(syscall.Exec(program, append([]string{program}, os.Args[1:]...), os.Environ()))
	}
}

// reapers start relock so that it inherits all processes which lose their parents.
var reapers = map[string]func(t *testing.T, cmd *exec.Cmd){
	"process 1": func(t *testing.T, cmd *exec.Cmd) {
		cmd.SysProcAttr = inNamespace()
		if err := (&exec.Cmd{Path: "/bin/true", SysProcAttr: inNamespace()}).Run(); err != nil {
			t.Skipf("a namespace of process numbers is not to be had: %v", err)
		}
	},
	"subreaper": func(t *testing.T, cmd *exec.Cmd) {
		self, err := os.Executable()
		require.NoError(t, err)
		cmd.Env, cmd.Path = append(cmd.Env, subreaperVar+"="+cmd.Path), self
	},
}

// inNamespace starts a process as the first of a namespace.
func inNamespace() *syscall.SysProcAttr {
	if os.Getuid() == 0 {
		return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	}
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}}
}

// childrenOf counts the children of a process, also children that have ended and are not reaped.
func childrenOf(pid int) (n int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		stat, _ := os.ReadFile(file)
		fields := strings.Fields(string(stat)[strings.LastIndex(string(stat), ")")+1:])
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			n++
		}
	}
	return n
}

func TestRun_ReapsOrphans(t *testing.T) {
	t.Parallel()
	for name, as := range reapers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := server(t)
			fifo := fifo(t)
			cmd := command(t, url, "run", "a", "--", "sh", "-c", `sh -c 'sh -c "read x < `+fifo+`" &'; echo ready; exec sleep 60`)
			as(t, cmd)
			p := startCommand(t, cmd)
			p.awaitOut(t, "ready")
			redistest.Eventually(t, "it has inherited one", func() bool { return childrenOf(p.cmd.Process.Pid) == 2 })
			require.NoError(t, os.WriteFile(fifo, []byte("\n"), 0))
			redistest.Eventually(t, "that is reaped", func() bool { return childrenOf(p.cmd.Process.Pid) == 1 })
			p.signal(t, sigTerm)
			require.Equal(t, 143, p.wait(t))
		})
	}
}

// If a process ends on SIGTERM, the wait ends before it would be killed.
func TestRun_OrphansThatHaveEndedAreNotLeft(t *testing.T) {
	t.Parallel()
	for name, as := range reapers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := server(t)
			cmd := command(t, url, "run", "--ttl", "200s", "--kill-after", "60s", "--max-hold", "1s", "a", "--", "sh", "-c",
				`trap "exit 0" TERM; sh -c 'sleep 60 &'; echo ready; sleep 60 & wait`)
			as(t, cmd)
			p := startCommand(t, cmd)
			require.Equal(t, 124, p.wait(t))
			require.NotContains(t, p.err.String(), "killed")
		})
	}
}
