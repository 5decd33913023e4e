package play

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/player"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/linktest"
	"github.com/relock-go/relock/sim/internal/embedded"
)

// process is a client process, with its own client of the library, links and clocks. It is a [player.World].
type process struct {
	*play
	number int
	place  int // stays the same when another process replaces a killed one
	links  []*linktest.Link
	rdbs   []redis.UniversalClient
	locks  *relock.Client
	clocks watches

	players *player.Process
	end     context.CancelFunc // ends all waits
	workers sync.WaitGroup
	burial  sync.WaitGroup // of a process that is gone

	mu     sync.Mutex // guards the rest
	dead   bool
	resume chan struct{} // closed when it continues; nil: it runs
	briefs []*brief
}

// watches are the two clocks of a process.
type watches struct {
	began time.Time // of the play

	mu      sync.Mutex
	stopped bool
	at      clock.Instant // when it was stopped, and a little more with each reading
	behind  time.Duration // how far the monotonic clock is behind
	ahead   time.Duration // how far the wall clock is ahead
}

func (w *watches) now() clock.Instant {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.read()
}

// creep is how far the clocks of a stopped process advance with each reading: a little, so that a timer which is almost due does
// not start again and again.
const creep = time.Millisecond

func (w *watches) read() clock.Instant {
	now := clock.System()
	// From the beginning of the play, and not of the program: renewals are due at round times.
	now.Mono = time.Since(w.began) - w.behind
	now.Wall += w.ahead
	if w.stopped {
		w.at = w.at.After(creep)
		return clock.Instant{Mono: min(w.at.Mono, now.Mono), Wall: min(w.at.Wall, now.Wall)}
	}
	return now
}

// stop stops the clocks.
func (w *watches) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at, w.stopped = w.read(), true
}

// start makes the wall clock show the right time, and the monotonic clock continue where it stood, as after a suspension of the
// machine.
func (w *watches) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	stood := w.at
	w.stopped = false
	if now := w.read(); now.Mono > stood.Mono {
		w.behind += now.Mono - stood.Mono
	}
}

// set sets the wall clock by d. While the clocks stand still nobody can: a machine whose wall clock is set back for as long as it
// is suspended cannot notice that, and neither can the library.
func (w *watches) set(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.ahead += d
	}
}

// next are the clocks of the client that is about to be made. Only one play is played at a time.
var next atomic.Pointer[watches]

func init() {
	clock.OfClient = func() clock.Clock {
		if w := next.Load(); w != nil {
			return w.now
		}
		return clock.System
	}
}

func (p *play) newProcess(number, place int) (*process, error) {
	c := &process{play: p, number: number, place: place, clocks: watches{began: p.journal.began}}
	life, end := context.WithCancel(context.Background())
	c.end = end
	for i, s := range p.servers {
		l := s.link(p.plan.Latency, p.plan.Seed<<16|uint64(number)<<4|uint64(i))
		s.reached(l)
		c.links = append(c.links, l)
		c.rdbs = append(c.rdbs, redis.NewClient(embedded.Options(l)))
	}
	var err error
	c.locks, err = c.newLocks()
	c.players = &player.Process{
		World: c, Number: number,
		Locks: c.locks, Names: p.plan.Names, Sided: p.plan.Sided, Semaphores: p.plan.Semaphores, Limit: p.plan.Limit, Life: life, Stopping: p.stopping,
		Try: p.plan.Try, Impatience: p.plan.TTL / 4, Step: [2]time.Duration{20 * time.Millisecond, p.plan.TTL / 4}, Apart: 200 * time.Millisecond,
		Quorum: p.plan.Servers > 1, Protected: true, Kept: !p.lossy, Counted: !p.lossy, AtOnce: p.plan.Theme == "doubt", Exact: !p.jumps,
	}
	return c, err
}

// newLocks makes a client of the library.
func (c *process) newLocks() (*relock.Client, error) {
	opts := []relock.ClientOption{relock.WithTTL(c.plan.TTL), relock.WithSafetyPoll(c.plan.Poll), relock.WithLocalHandoffs(c.plan.Handoffs)}
	if c.plan.DeadlockCheck > 0 {
		opts = append(opts, relock.WithDeadlockCheck(c.plan.DeadlockCheck))
	}
	if !c.plan.Untokened {
		opts = append(opts, relock.WithFencing())
	}
	next.Store(&c.clocks)
	defer next.Store(nil)
	if len(c.rdbs) > 1 {
		return relock.NewQuorum(c.rdbs, opts...)
	}
	return relock.New(c.rdbs[0], opts...)
}

// brief is a client of the library that is closed before its process ends. It is closed once: a second Close would wait for the
// first at a mutex, and the clock of the bubble would stand still.
type brief struct {
	locks   *relock.Client
	closing atomic.Bool
}

// close closes the client, unless another goroutine does.
func (b *brief) close() (err error) {
	if b.closing.CompareAndSwap(false, true) {
		err = b.locks.Close()
	}
	return err
}

// NewLocks makes a client that ends with the process at the latest.
func (c *process) NewLocks() (locks *relock.Client, closed func() error, err error) {
	locks, err = c.newLocks()
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &brief{locks: locks}
	if c.briefs = append(c.briefs, b); c.dead {
		c.burial.Go(func() { _ = b.close() })
	}
	return locks, b.close, nil
}

// start starts the players.
func (c *process) start() {
	for i := range c.plan.Workers + c.plan.Permitted {
		habits := c.plan.Habits
		if i >= c.plan.Workers {
			habits.Misuse, habits.Shared, habits.Sides, habits.Permits, habits.Long = 0, 0, 0, 1, 0.3
		}
		draws := rand.New(rand.NewPCG(c.plan.Seed, uint64(c.number)<<16|uint64(i)+1))
		c.workers.Go(func() { c.players.Play(i, habits, draws) })
	}
}

// Gate returns when the process runs. A goroutine of a process that is gone ends here.
func (c *process) Gate() {
	for {
		c.mu.Lock()
		dead, resume := c.dead, c.resume
		c.mu.Unlock()
		if dead {
			runtime.Goexit()
		}
		if resume == nil {
			return
		}
		<-resume
	}
}

// Shown returns the time at which the wall clock of the process will show t.
func (c *process) Shown(t time.Time) (at int64, known bool) {
	return c.Now() + int64(t.Sub(c.clocks.now().Time())), true
}

// Record records an event of the process, unless it is gone.
func (c *process) Record(e history.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.dead {
		e.Process = c.number
		c.journal.add(e)
	}
}

// pause stops the process for d, and reports whether it ran before.
func (c *process) pause(d time.Duration) bool {
	c.mu.Lock()
	if c.dead || c.resume != nil {
		c.mu.Unlock()
		return false
	}
	resume := make(chan struct{})
	c.resume = resume
	c.clocks.stop()
	for _, l := range c.links {
		l.Freeze(d + creep) // when it runs again, its clocks advance before anything arrives
	}
	c.mu.Unlock()
	c.journal.add(history.Event{Kind: history.Paused, Process: c.number})
	time.Sleep(d)
	c.journal.add(history.Event{Kind: history.Resumed, Process: c.number})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clocks.start()
	c.resume = nil
	close(resume)
	return true
}

// forever is longer than any play.
const forever = 1000 * time.Hour

// kill ends the process: it sends nothing any more. Its goroutines end in the background, because a bubble does not end before
// them.
func (c *process) kill() bool {
	c.mu.Lock()
	if c.dead || c.resume != nil {
		c.mu.Unlock()
		return false
	}
	c.dead = true
	for _, l := range c.links {
		l.Refuse(forever)
		l.Cut(linktest.Reply, 0)
	}
	for _, b := range c.briefs {
		c.burial.Go(func() { _ = b.close() })
	}
	c.burial.Go(func() { _ = c.locks.Close() })
	c.mu.Unlock()
	c.journal.add(history.Event{Kind: history.Killed, Process: c.number})
	c.end()
	return true
}

// close ends everything that the process has begun, and records what remains.
func (c *process) close() {
	c.workers.Wait()
	c.mu.Lock()
	dead := c.dead
	c.mu.Unlock()
	var err error
	if dead {
		c.burial.Wait() // a second Close would wait for the first at a mutex, and the clock would stand still
	} else {
		err = c.locks.Close()
	}
	for _, rdb := range c.rdbs {
		_ = rdb.Close()
	}
	if dead {
		return
	}
	// No Unlock has returned the failures of releases that were sent after it.
	if err != nil && (c.plan.Async == 0 && c.plan.Linger == 0 || len(c.plan.Faults) == 0) {
		c.left("after everything was unlocked, Close failed: %v", err)
	}
	time.Sleep(time.Second)
	for i, l := range c.links {
		if n := l.Open(); n > 0 {
			c.left("%d connections to server %d after everything was closed", n, i+1)
		}
	}
	c.end()
	c.Record(history.Event{Kind: history.Bye})
}

func (c *process) left(format string, args ...any) {
	c.Record(history.Event{Kind: history.Left, Note: fmt.Sprintf(format, args...)})
}
