//go:build !unix

package redistest

import "syscall"

// Systems without these signals refuse to send them, and have no redis-server either.
const (
	sigStop = syscall.Signal(19)
	sigCont = syscall.Signal(18)
)
