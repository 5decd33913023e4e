//go:build unix && !linux

package child

import "syscall"

// dieWithParent does nothing: this system has no way to have a command killed with its parent.
func dieWithParent(*syscall.SysProcAttr) {}

// adoptOrphans does nothing: this system gives them to process 1.
func adoptOrphans() {}
