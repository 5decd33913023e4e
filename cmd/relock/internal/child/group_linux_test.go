package child

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestGroup_OnlyTheLivingCount(t *testing.T) {
	cmd := exec.Command("sh", "-c", "read x")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	group := &Child{pid: cmd.Process.Pid}
	require.True(t, group.left())
	require.NoError(t, in.Close())
	redistest.Eventually(t, "it has ended", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(group.pid) + "/stat")
		return err == nil && strings.Contains(string(stat), ") Z ")
	})
	require.NoError(t, syscall.Kill(-group.pid, 0), "the kernel counts it")
	require.False(t, group.left(), "not reaped")
	_ = cmd.Wait()
	require.False(t, group.left(), "reaped")
}

func TestGroup_AProcessLivesWhileOneOfItsThreadsDoes(t *testing.T) {
	lives := func(state, threads string) bool {
		pid, p, ok := parse("7 (a) b (c) " + state + " 1 5 6 0 -1 0 0 0 0 0 0 0 0 0 20 0 " + threads + " 0 100 0")
		require.True(t, ok)
		require.Equal(t, 7, pid)
		require.Equal(t, process{parent: 1, group: 5, session: 6, lives: p.lives}, p)
		return p.lives
	}
	require.True(t, lives("S", "1"))
	require.True(t, lives("T", "1"))
	require.True(t, lives("Z", "2"))
	require.True(t, lives("Z", "10"))
	require.False(t, lives("Z", "1"))
	require.False(t, lives("X", "0"))
	_, _, ok := parse("")
	require.False(t, ok)
}

func TestGroup_OnlyDescendantsAreLeft(t *testing.T) {
	all := map[int]process{2: {parent: 1}, 3: {parent: 2}, 4: {parent: 3}, 5: {parent: 9}, 6: {parent: 7}, 7: {parent: 6}}
	require.True(t, descends(all, 3, 2))
	require.True(t, descends(all, 4, 2))
	require.False(t, descends(all, 2, 2), "itself")
	require.False(t, descends(all, 2, 3))
	require.False(t, descends(all, 5, 2), "its parent has ended")
	require.False(t, descends(all, 6, 2), "numbers that were used again")
}

// forbiddenVar has this program, as nobody, signal a process group that is not nobody's.
const forbiddenVar = "RELOCK_TEST_FORBIDDEN"

func init() {
	if group := os.Getenv(forbiddenVar); group != "" {
		number, _ := strconv.Atoi(group)
		c := &Child{pid: number, warn: func(text string) { os.Stdout.WriteString(text + "\n") }}
		c.Terminate()
		c.Signal(syscall.SIGINT)
		if !c.left() {
			os.Stdout.WriteString("taken for gone\n")
		}
		os.Exit(0)
	}
}

func TestChild_OfAnotherUserIsReportedOnce(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	other := exec.Command("sleep", "60")
	other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, other.Start())
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	nobody := exec.Command("/proc/self/exe")
	nobody.Dir = "/"
	nobody.Env = []string{forbiddenVar + "=" + strconv.Itoa(other.Process.Pid), "GORACE=atexit_sleep_ms=0"}
	nobody.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := nobody.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, 1, strings.Count(string(out), "not permitted to signal the command"), string(out))
	require.NotContains(t, string(out), "taken for gone")
}
