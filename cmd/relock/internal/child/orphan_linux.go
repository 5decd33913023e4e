package child

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent has the kernel kill the command, not what it has started, when this process ends
// without having done so.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// adoptOrphans makes this process the parent of its descendants that lose theirs, so groupsLeft finds them.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
