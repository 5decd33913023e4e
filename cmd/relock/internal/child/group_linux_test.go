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
	stat := func(state, group, threads string) string {
		return "7 (a) b (c) " + state + " 1 " + group + " 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 " + threads + " 0 100 0"
	}
	require.True(t, livesIn(stat("S", "5", "1"), 5))
	require.True(t, livesIn(stat("T", "5", "1"), 5))
	require.True(t, livesIn(stat("Z", "5", "2"), 5))
	require.True(t, livesIn(stat("Z", "5", "10"), 5))
	require.False(t, livesIn(stat("Z", "5", "1"), 5))
	require.False(t, livesIn(stat("X", "5", "0"), 5))
	require.False(t, livesIn(stat("S", "6", "1"), 5))
	require.False(t, livesIn("", 5))
}
