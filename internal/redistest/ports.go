package redistest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are below the range that the system uses for outgoing connections, and so are the ports 10000 above them, which
// Cluster nodes use, too.
const (
	firstPort = 10000
	blockSize = 400 // several times the number that the tests of one process use at once
	blocks    = 30
)

// ports has the ports of this process. A port without a listener may belong to a server that is down, or to a relay that
// refuses. If another process took it, their clients would connect to that process. So ports come in blocks, and a block
// belongs to the process that listens on its first port.
var ports = portBlocks{taken: make(map[int]bool)}

type portBlocks struct {
	mu    sync.Mutex // guards the rest
	first []int      // of each block
	locks []net.Listener
	taken map[int]bool // the ports that were given out
}

// freePort returns a free port, which is reserved until givePortBack.
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

// grow reserves one more block, for the life of the process. mu is held.
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

// givePortBack frees the port of addr, whose owner is closed.
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
