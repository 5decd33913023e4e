package main

import (
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func dieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// cpuClock returns the processor time that a process has used so far, to the nanosecond: /proc has it in hundredths of a
// second.
func cpuClock(pid int) time.Duration {
	const schedClock = 2 // the kernel packs the process and the kind of clock into one id
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
