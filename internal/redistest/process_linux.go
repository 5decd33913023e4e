package redistest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether the process has come to a halt after sigStop, which is
// delivered some microseconds after the call that sends it returns.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	// The state follows the command's name, which is in parentheses.
	_, after, _ := bytes.Cut(stat, []byte(") "))
	return len(after) > 0 && (after[0] == 'T' || after[0] == 'Z')
}
