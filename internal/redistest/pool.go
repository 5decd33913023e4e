package redistest

import (
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// minis are the in-memory servers of this process that tests have one after the other. Each
// keeps the scripts that it was told, which take it longer to read than most tests take.
var minis miniPool

type miniPool struct {
	mu   sync.Mutex // guards the rest
	idle []*miniredis.Miniredis
	all  []*miniredis.Miniredis
}

// lend returns a server that is tb's own until its cleanup, empty but for scripts.
func (p *miniPool) lend(tb testing.TB) *Backend {
	tb.Helper()
	m, err := p.take()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.giveBack(m) })
	m.FlushAll() // what a connection of the last test may have sent late
	return miniBackend(m)
}

func (p *miniPool) take() (*miniredis.Miniredis, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		m := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return m, nil
	}
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		return nil, err
	}
	p.all = append(p.all, m)
	return m, nil
}

func (p *miniPool) giveBack(m *miniredis.Miniredis) {
	m.FlushAll()
	m.SetTime(time.Time{}) // the clock of the machine
	m.SetError("")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, m)
}

// stop closes all of them.
func (p *miniPool) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.all {
		m.Close()
	}
	p.idle, p.all = nil, nil
}
