package child

import "syscall"

// dieWithParent has the kernel kill the command, not what it has started, when this process ends
// without having done so.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
