//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package redisexec

import "net"

// peek examines nothing here.
type peek struct{}

func (*peek) at(net.Conn) {}

func (*peek) finds() bool { return false }
