package redistest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are below the range that the system hands out to outgoing connections, and so is the one
// 10000 above each, which a Cluster node uses too.
const (
	firstPort = 10000
	blockSize = 400 // several times as many as the tests of one process use at once
	blocks    = 30
)

// ports are those of this process. One on which nobody listens may be that of a server that is
// down, or of a relay that refuses: another process that took it would be met by their clients.
// So ports come in blocks, and a block belongs to the process that listens on its first port.
var ports = portBlocks{taken: make(map[int]bool)}

type portBlocks struct {
	mu    sync.Mutex // guards the rest
	first []int      // of each block
	locks []net.Listener
	taken map[int]bool // those that were given out
}

// freePort finds a port that is free now, and stays this process' until it is given back.
func freePort() (int, error) { return ports.take() }

func (p *portBlocks) take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 200 {
		if len(p.taken) >= len(p.first)*blockSize/2 && !p.grow() && len(p.first) == 0 {
			break
		}
		port := p.first[rand.IntN(len(p.first))] + 1 + rand.IntN(blockSize-1)
		if !p.taken[port] && canListen(port) && canListen(port+10000) {
			p.taken[port] = true
			return port, nil
		}
	}
	return 0, errors.New("redistest: no free port found")
}

// grow makes one more block this process' own, for the rest of its life. mu is held.
func (p *portBlocks) grow() bool {
	for _, i := range rand.Perm(blocks) {
		first := firstPort + i*blockSize
		if l, err := net.Listen("tcp", addrOfPort(first)); err == nil {
			p.first, p.locks = append(p.first, first), append(p.locks, l)
			return true
		}
	}
	return false
}

// givePortBack lets others of this process have the port of addr, whose owner has been closed.
func givePortBack(addr string) {
	if _, port, err := net.SplitHostPort(addr); err == nil {
		if n, err := strconv.Atoi(port); err == nil {
			ports.mu.Lock()
			defer ports.mu.Unlock()
			delete(ports.taken, n)
		}
	}
}

func canListen(port int) bool {
	l, err := net.Listen("tcp", addrOfPort(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

func addrOfPort(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
