package scale

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	mini "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/linktest"
	"github.com/relock-go/relock/sim/internal/embedded"
)

// world is one server, and processes, each with a link to it.
type world struct {
	server    *miniredis.Miniredis
	processes []*process
	commands  atomic.Int64 // that clients have sent
	scripts   atomic.Int64 // of these
}

// process is a client process, with its own client of the library, and its own link.
type process struct {
	link  *linktest.Link
	rdb   *redis.Client
	locks *relock.Client
}

// ofClients are the commands that no script calls, except scripts themselves, and which so come from clients.
var ofClients = map[string]bool{"SUBSCRIBE": true, "UNSUBSCRIBE": true, "HELLO": true, "CLIENT": true, "PING": true, "SCRIPT": true}

// newWorld returns a world of so many processes, which have sent nothing yet.
func newWorld(processes int, roundTrip time.Duration) (*world, error) {
	server, serve, err := embedded.Start()
	if err != nil {
		return nil, err
	}
	w := &world{server: server}
	server.ClockTTL(true)
	server.Server().SetPreHook(func(_ *mini.Peer, name string, _ ...string) bool {
		script := strings.HasPrefix(name, "EVAL")
		if script {
			w.scripts.Add(1)
		}
		if script || ofClients[name] {
			w.commands.Add(1)
		}
		return false
	})
	for i := range processes {
		l := linktest.NewLink(embedded.Addr(1), serve, func() {}, roundTrip/2, uint64(i+1))
		opts := embedded.Options(l)
		// The defaults of go-redis on two cores, because the number of dials is measured, too.
		opts.PoolSize, opts.PipelinePoolSize, opts.DialerRetries = 20, 0, 0
		p := &process{link: l, rdb: redis.NewClient(opts)}
		if p.locks, err = relock.New(p.rdb); err != nil {
			return nil, err
		}
		w.processes = append(w.processes, p)
	}
	return w, nil
}

// close ends all processes at once, and the server.
func (w *world) close() {
	var all sync.WaitGroup
	for _, p := range w.processes {
		all.Go(func() {
			_ = p.locks.Close()
			_ = p.rdb.Close()
		})
	}
	all.Wait()
	w.server.Close()
}

// counted has the counters of all processes at a time.
type counted struct {
	Dials   int // connections that were requested
	Scripts int
	Open    int // open connections
}

func (w *world) counted() counted {
	c := counted{Scripts: int(w.scripts.Load())}
	for _, p := range w.processes {
		c.Dials += p.link.Dials()
		c.Open += p.link.Open()
	}
	return c
}

// watch reads the counters once a second, until the returned function is called, which returns the maximum of each in a second.
func (w *world) watch() (stop func() counted) {
	var most counted
	last := w.counted()
	end, ended := make(chan struct{}), make(chan struct{})
	look := func() {
		now := w.counted()
		most = counted{max(most.Dials, now.Dials-last.Dials), max(most.Scripts, now.Scripts-last.Scripts), max(most.Open, now.Open)}
		last = now
	}
	go func() {
		defer close(ended)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-end:
				look()
				return
			case <-ticker.C:
				look()
			}
		}
	}()
	return func() counted {
		close(end)
		<-ended
		return most
	}
}

// memory returns the memory of clients, the server, and the network between them.
type memory struct{ bytes, goroutines float64 }

func memoryNow() memory {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{float64(m.HeapAlloc + m.StackInuse), float64(runtime.NumGoroutine())}
}

// each returns the difference to an earlier memory, for each of n.
func (m memory) each(before memory, n int) memory {
	return memory{(m.bytes - before.bytes) / float64(n), (m.goroutines - before.goroutines) / float64(n)}
}
