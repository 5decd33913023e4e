//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package redisexec

import (
	"net"
	"syscall"
)

// peek examines a connection on which nothing is in flight, without reading from it.
type peek struct {
	raw   syscall.RawConn // nil: it is not a connection of the system, but a tunnel, for example
	look  func(fd uintptr)
	found bool
}

// at sets the connection. It may be encrypted.
func (p *peek) at(conn net.Conn) {
	if encrypted, is := conn.(interface{ NetConn() net.Conn }); is {
		conn = encrypted.NetConn()
	}
	if system, is := conn.(syscall.Conn); is {
		p.raw, _ = system.SyscallConn()
	}
	p.look = func(fd uintptr) { // made once
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
		p.found = err != syscall.EAGAIN && err != syscall.EINTR
	}
}

// finds reports whether something has come, be it the end.
func (p *peek) finds() bool {
	return p.raw != nil && (p.raw.Control(p.look) != nil || p.found)
}
