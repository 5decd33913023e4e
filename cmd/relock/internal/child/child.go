// Package child runs one command in a process group of its own: signals go to all of the group, and
// the command dies with this process where the system can promise that.
//
//   - child_unix.go has it; child_other.go says that there is none.
//   - signals_unix.go says which signals are forwarded, and which end a wait.
//   - orphan_linux.go has a child killed when its parent dies, and adopts its orphans; terminal_unix.go lends it the terminal.
//   - group_linux.go finds what lives of the command.
package child

import (
	"errors"
	"io/fs"
	"os/exec"
)

// Codes of a shell for a command that could not be run.
const (
	CodeNotRun   = 126
	CodeNotFound = 127
)

// CodeOfStart is what a shell returns when a command cannot be started because of err.
func CodeOfStart(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrDot) {
		return CodeNotFound
	}
	return CodeNotRun
}
