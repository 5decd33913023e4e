// Package play plays a plan: processes use locks on embedded servers, in one bubble of virtual time, with faults, and a judge
// checks the history.
//
// The files:
//
//   - plan.go: the choices before a play, all of them by a seed
//   - play.go: a play, from its first goroutine to the verdict
//   - faults.go: the effect of each fault
//   - process.go: a client process, which can be stopped, and has its own clocks
//   - habits.go: which locks its players want, for how long, and when
//   - server.go: a Redis
//   - stuck.go: a play that does not end
//   - journal.go: the history of calls and observations
//   - story.go: the history for people
package play

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/relock-go/relock/chaos/check"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/internal/clock"
)

// slack is how late a promise about time may be kept: the library checks the clocks every quarter of a second, and messages
// take time.
const slack = 400 * time.Millisecond

// Result is the result of a play.
type Result struct {
	Plan     Plan
	Report   check.Report
	Events   []history.Event
	Commands int    // the number of commands to the servers
	Trace    uint64 // the same for two plays if the commands were the same, in the same order and at the same times
}

// Failed reports whether a promise was broken.
func (r *Result) Failed() bool { return len(r.Report.Violations) > 0 }

// Broken returns the invariants that were broken, each once.
func (r *Result) Broken() []string {
	var names []string
	for _, v := range r.Report.Violations {
		if !slices.Contains(names, v.Invariant) {
			names = append(names, v.Invariant)
		}
	}
	return names
}

// Digests returns, for each second of a play, a number that is the same for two plays if all events up to then were the same, at
// the same times.
func (r *Result) Digests() []uint64 {
	h := fnv.New64a()
	var all []uint64
	for _, e := range r.Events {
		for len(all) < int(e.At/int64(time.Second)) {
			all = append(all, h.Sum64())
		}
		fmt.Fprint(h, e.At, e.Process, e.Worker, e.Op, e.Kind, e.Lock, e.Outcome, e.Depth)
	}
	return append(all, h.Sum64())
}

// play is a plan that is being played.
type play struct {
	plan     Plan
	servers  []*server
	journal  *journal
	store    store
	stopping chan struct{} // closed when no new use may begin
	lossy    bool          // Redis may lose a hold before its holder notices
	jumps    bool          // clocks of processes are set, or they do not run: a context may end late, unless Err is called

	stuck     func(*Result)
	mu        sync.Mutex
	processes []*process // all that were ever started
}

// Run plays a plan in a bubble that run makes, and judges it. If the play does not end, stuck is called with the state, and must
// not return.
func Run(run func(func()), plan Plan, stuck func(*Result)) (*Result, error) {
	p := &play{plan: plan, journal: &journal{}, stopping: make(chan struct{}), store: store{tokens: make(map[string]int64)}, stuck: stuck}
	p.lossy, p.jumps = plan.lossy(), plan.has(pause, wall)
	var err error
	defer seedLibrary(plan.Seed)()
	ended := p.watchProgress()
	run(func() {
		p.stopping = make(chan struct{})
		err = p.run()
	})
	ended()
	if err != nil {
		return nil, fmt.Errorf("%v: %w", plan, err)
	}
	res := &Result{Plan: plan, Events: p.journal.events}
	for _, s := range p.servers {
		res.Commands += s.commands
		res.Trace = res.Trace*31 + s.trace
	}
	harmful := plan.Theme != "late" && plan.Theme != "far" && slices.ContainsFunc(plan.Faults, func(f Fault) bool { return f.What != pause })
	slack := slack + 20*plan.Latency
	if plan.Theme == "far" {
		slack = plan.TTL / 3 // Redis is slow, not the process
	}
	res.Report = check.Run(p.journal.withSigns(), check.Rules{
		TTL: plan.TTL, Poll: plan.Poll, Slack: slack,
		SplitBrain: true, Lossless: !harmful, Answered: plan.Theme == "far", Untokened: plan.Untokened, Quorum: plan.Servers > 1,
		SentOnce: len(plan.Faults) == 0 && plan.Servers == 1,
		// Owners that split the votes of a quorum try again after some round trips.
		Prompt: len(plan.Faults) == 0 && plan.Poll >= 60*plan.Latency,
		InLine: plan.inLine(),
	})
	return res, nil
}

// seedLibrary makes all random choices of the library follow from a seed, until the returned function is called. Only one play is
// played at a time.
func seedLibrary(seed uint64) (undo func()) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	uuid.SetRand(rand.NewChaCha8(key)) // it has a mutex for that
	var mu sync.Mutex
	random, before := rand.New(rand.NewPCG(seed, 0x6a6974746572)), clock.Random
	clock.Random = func(n int64) int64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Int64N(n)
	}
	return func() {
		uuid.SetRand(nil)
		clock.Random = before
	}
}

// run plays the play in the bubble.
func (p *play) run() error {
	p.journal.began = time.Now()
	p.journal.add(history.Event{Kind: history.Began})
	for i, ahead := range p.plan.Clocks {
		s, err := newServer(i+1, ahead)
		if err != nil {
			return err
		}
		p.servers = append(p.servers, s)
		defer s.mini.Close()
	}
	for i := range p.plan.Processes {
		if err := p.begin(i+1, i+1); err != nil {
			return err
		}
	}
	defer p.watchExpiry()()
	var faults sync.WaitGroup
	for _, f := range p.plan.Faults {
		faults.Go(func() {
			time.Sleep(f.At)
			p.inject(f)
		})
	}
	time.Sleep(p.plan.Lasts)
	faults.Wait()
	close(p.stopping)
	p.drain()
	return nil
}

// begin starts a process.
func (p *play) begin(number, place int) error {
	c, err := p.newProcess(number, place)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.processes = append(p.processes, c)
	p.mu.Unlock()
	c.start()
	return nil
}

// at returns the process that runs in a place.
func (p *play) at(place int) *process {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range slices.Backward(p.processes) {
		if c.place == place {
			return c
		}
	}
	return nil
}

// drain waits until everything has ended, and records what remains.
func (p *play) drain() {
	giveUp := time.AfterFunc(10*p.plan.TTL+10*time.Second, func() {
		for _, c := range p.processes {
			c.end()
		}
	})
	never := time.AfterFunc(40*p.plan.TTL+10*time.Minute, func() {
		p.hangs("goroutines that never end", contains("player.(*Process).Play", "play.(*process).close"))
	})
	var all sync.WaitGroup
	for _, c := range p.processes {
		all.Go(c.close)
	}
	all.Wait()
	giveUp.Stop()
	never.Stop()
	// An entry in the line may have a lease of 5 s, whatever the TTL.
	time.Sleep(max(p.plan.TTL, 5*time.Second) + time.Second)
	for i, s := range p.servers {
		for _, key := range s.left() {
			p.journal.add(history.Event{Kind: history.Left, Note: fmt.Sprintf("on server %d, after all leases: %s", i+1, key)})
		}
	}
}

// watchExpiry looks for keys without expiry, until stop is called. A key counts if it has no expiry at two checks in a row,
// because a failover sets the expiry of a key after the key.
func (p *play) watchExpiry() (stop func()) {
	over := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		looks := make(map[string]int) // in a row
		for {
			before := looks
			looks = make(map[string]int)
			for i, s := range p.servers {
				for _, key := range s.eternal() {
					where := fmt.Sprintf("on server %d, without expiry: %s", i+1, key)
					if looks[where] = before[where] + 1; looks[where] == 2 {
						p.journal.add(history.Event{Kind: history.Left, Note: where})
					}
				}
			}
			select {
			case <-ticker.C:
			case <-over:
				return
			}
		}
	})
	return func() {
		close(over)
		looking.Wait()
	}
}

// store is the resource that the locks protect: it refuses a token that is lower than an earlier one.
type store struct {
	mu     sync.Mutex
	tokens map[string]int64
}

func (s *store) write(lock string, token int64, takes time.Duration) (accepted bool) {
	time.Sleep(takes)
	s.mu.Lock()
	if accepted = token >= s.tokens[lock]; accepted {
		s.tokens[lock] = token
	}
	s.mu.Unlock()
	time.Sleep(takes / 2)
	return accepted
}
