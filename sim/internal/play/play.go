// Package play plays a plan: processes that use locks on embedded servers, in one bubble of virtual time,
// while faults do harm, and a judge that looks at what they saw.
//
// The files:
//
//   - plan.go: what is decided before, all of it by a seed
//   - play.go: a play, from its first goroutine to the verdict
//   - faults.go: what each fault does
//   - process.go: a client process, which can be stopped, and has clocks of its own
//   - habits.go: which locks its players want, for how long, and when
//   - server.go: a Redis
//   - stuck.go: a play that does not come to its end
//   - journal.go: what was done and seen
//   - story.go: that, for people
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

// slack is how late a promise may be kept that rests on time: the clocks are looked at every quarter of a
// second, and messages take time.
const slack = 400 * time.Millisecond

// Result is what became of a play.
type Result struct {
	Plan     Plan
	Report   check.Report
	Events   []history.Event
	Commands int    // that the servers have met
	Trace    uint64 // the same if those were the same, in the same order and at the same times
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

// Digests returns, for each second of a play, a number that is the same for two plays if all that was done
// and seen up to then was the same, at the same times.
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
	stopping chan struct{} // closed when no new use is to begin
	lossy    bool          // Redis may lose a hold before its holder hears of that
	jumps    bool          // clocks of processes are set, or they do not run: a context may end late, unless it is asked

	stuck     func(*Result)
	mu        sync.Mutex
	processes []*process // all that ever began
}

// Run plays a plan in a bubble that run makes, and judges it. If the play does not come to its end, stuck is
// called with what is known, and must not return.
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
		slack = plan.TTL / 3 // what is slow is Redis, not the process
	}
	res.Report = check.Run(p.journal.withSigns(), check.Rules{
		TTL: plan.TTL, Poll: plan.Poll, Slack: slack,
		SplitBrain: true, Lossless: !harmful, Answered: plan.Theme == "far", Untokened: plan.Untokened, Quorum: plan.Servers > 1,
		SentOnce: len(plan.Faults) == 0 && plan.Servers == 1,
		// Owners who split the votes of a quorum try again after some round trips.
		Prompt: len(plan.Faults) == 0 && plan.MinHold == 0 && plan.Poll >= 60*plan.Latency,
		InLine: plan.inLine(),
	})
	return res, nil
}

// seedLibrary has all that is random in the library come from a seed, until the function that it returns
// is called. One play is played at a time.
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

// run is what happens in the bubble.
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

// begin has a process begin.
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

// drain waits until all that has begun has ended, and looks at what is left.
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
	// A place in the line may have a lease of 5 s, whatever the TTL.
	time.Sleep(max(p.plan.TTL, 5*time.Second) + time.Second)
	for i, s := range p.servers {
		for _, key := range s.left() {
			p.journal.add(history.Event{Kind: history.Left, Note: fmt.Sprintf("on server %d, after all leases: %s", i+1, key)})
		}
	}
}

// watchExpiry looks for keys without expiry, until stop is called. One that has none at two looks in a row is left
// over: a failover sets the expiry of a key after the key.
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

// store is what the locks protect: it refuses a token that is lower than one it has seen.
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
