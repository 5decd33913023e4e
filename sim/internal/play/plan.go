package play

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/chaos/player"
)

// Plan has all choices that are made before a play. They depend on the seed alone.
type Plan struct {
	player.Habits
	Seed    uint64
	Theme   string
	Servers int           // of a quorum if there are several
	Poll    time.Duration // the safety poll
	Latency time.Duration // of the network, one way
	Lasts   time.Duration // for how long locks are used
	Clocks  []time.Duration

	Processes                int
	Workers, Permitted       int // goroutines of each: for locks, and for semaphores
	Names, Sided, Semaphores []string
	Limit                    int // of the semaphores

	Multi float64 // share of holds of two names at once, from 0 to 1
	Try   float64 // share of locks by TryLock

	Think    time.Duration // between two uses, at most
	Handoffs int           // WithLocalHandoffs
	Busy     bool          // holds are brief, and follow one another quickly
	Hot      bool          // most want one name
	Crowd    bool          // the goroutines of one process want it at the same time, again and again, so the process hands over locally
	Apart    time.Duration // the time between the crowds of two processes

	DeadlockCheck time.Duration // 0: the default of the library

	Faults []Fault
}

// Fault is one fault.
type Fault struct {
	Number  int
	What    What
	At, For time.Duration
	Process int // from 1
	Server  int
	Amount  time.Duration
	Name    string
	Wide    bool   // it affects all servers of a quorum
	Queue   bool   // it waits for a process that holds and has another waiter
	Skip    int    // commands that pass before one is lost
	Trap    string // the loss: see linktest.Loss
	Silent  bool
}

// What is a kind of fault.
type What string

// The kinds of faults.
const (
	slow         What = "slow"          // messages take longer
	fade         What = "fade"          // messages take longer, and then a process and a server do not reach each other
	cut          What = "cut"           // connections break
	trap         What = "trap"          // a command is lost, or its reply, or it is late
	partition    What = "partition"     // a process and a server do not reach each other
	dead         What = "dead"          // no replies arrive on current connections, without an error; new ones work
	messagesLost What = "messages lost" // messages of subscriptions are lost
	freeze       What = "freeze"        // a server does not run
	restart      What = "restart"       // a server stops, and comes back with its data
	loading      What = "loading"       // a server refuses commands
	forget       What = "forget"        // a server loses its scripts
	wipe         What = "wipe"          // a server stops, and comes back without its data
	failover     What = "failover"      // a replica takes over that lags behind
	remove       What = "remove"        // the key of a lock is deleted
	pause        What = "pause"         // a process does not run, and its monotonic clock stands still
	kill         What = "kill"          // a process is gone; another one comes
	wall         What = "wall"          // the wall clock of a process is set
	clocks       What = "clocks"        // the clock of a server is set
	lie          What = "lie"           // as remove, but not in the history. No plan has it: it shows that the judge detects it
)

// themes define the kinds and the number of faults of a play. The weight is the share of all plays.
var themes = []struct {
	name   string
	weight int
	most   int
	long   bool // holds often are: the faults hit holders
	faults []What
}{
	{"calm", 18, 0, false, nil},
	{"network", 16, 12, true, []What{slow, fade, fade, cut, partition, messagesLost}},
	{"doubt", 18, 40, false, []What{trap, trap, trap, trap, trap, cut, slow}},
	{"late", 10, 12, false, []What{trap}},
	{"far", 8, 12, true, []What{slow, dead}},
	{"servers", 8, 6, true, []What{freeze, restart, loading, forget}},
	{"data", 12, 10, true, []What{wipe, failover, remove, remove, remove}},
	{"clients", 14, 10, true, []What{pause, kill}},
	{"clocks", 6, 10, true, []What{wall, clocks, partition}},
	{"mix", 18, 24, false, []What{slow, fade, cut, trap, trap, partition, messagesLost, freeze, restart, loading, forget, wipe, failover, remove, pause, kill, wall}},
}

// Draw returns the plan of a seed.
func Draw(seed uint64) Plan {
	d := player.Drawer{Rand: rand.New(rand.NewPCG(seed, 0x706c616e))}
	p := Plan{
		Seed: seed, Servers: 1, Lasts: time.Minute, Workers: 4, Permitted: 3, Think: 12 * time.Second,
		Names: []string{"{x}1", "{x}2", "y"}, Sided: []string{"rw"}, Semaphores: []string{"permits"},
	}
	// The order of random choices does not change, so that a seed stays the same play.
	p.TTL = d.Between(1500*time.Millisecond, 6*time.Second)
	p.Poll = d.Between(time.Second, 3*time.Second)
	p.Latency = player.Pick(d, 100*time.Microsecond, 500*time.Microsecond, 5*time.Millisecond, 15*time.Millisecond, 40*time.Millisecond)
	p.Processes = 4 + d.IntN(2)
	p.Fair, p.Multi = player.Pick(d, 0.15, 0.5, 1), player.Pick(d, 0, 0.1, 0.3)
	p.Sides, p.Reads = player.Pick(d, 0.2, 0.2, 0.2, 0.8), player.Pick(d, 0.3, 0.9)
	p.Fixed, p.Shared, p.Long = player.Pick(d, 0, 0.15), 0.05, player.Pick(d, 0.03, 0.3)
	p.Impatient, p.Try = player.Pick(d, 0.1, 0.4), player.Pick(d, 0.05, 0.2)
	p.MinHold, p.OwnLease, p.Misuse = player.Pick(d, 0, 0, 0, 0.2), player.Pick(d, 0, 0.1), player.Pick(d, 0, 0.05)
	p.Untokened, p.Handoffs, p.Busy = d.Chance(0.4), player.Pick(d, 16, 16, 16, 3, 0), d.Chance(0.25)
	if d.Chance(0.2) {
		p.Servers, p.Permitted, p.Sides, p.Fair = 3, 0, 0, 0
	} else if p.Multi == 0 && p.Fair == 1 {
		p.Fair = 0.15
	}
	p.Clocks = make([]time.Duration, p.Servers)
	if p.Sides > 0.5 && p.Reads > 0.5 {
		p.Think = time.Second // readers follow one another
	}
	switch {
	case p.Servers == 1 && d.Chance(0.25):
		p.Crowd, p.Hot, p.Busy, p.Untokened, p.Handoffs = true, true, true, true, 16
		p.Sides, p.Multi, p.Fair, p.Fixed, p.MinHold, p.OwnLease = 0.05, 0.02, 0.1, 0, 0, 0
		p.Apart = player.Pick(d, 0, 1200*time.Millisecond)
		p.Impatient, p.Think, p.Long = player.Pick(d, 0, 0.2), 4*time.Second, player.Pick(d, 0.06, 0.3)
	case d.Chance(0.35):
		p.Hot, p.Think = true, player.Pick(d, 2*time.Second, 6*time.Second)
	}
	drawTheme(d, &p)
	p.Async = player.Pick(d, 0, 0, 0, 0.3, 1)
	p.Linger = player.Pick(d, 0, 0, 0.5, 1)
	p.Limit, p.Heavy = player.Pick(d, 2, 4), player.Pick(d, 0, 0.5)
	p.Nested, p.DeadlockCheck = player.Pick(d, 0, 0, 0.4), player.Pick(d, 0, 300*time.Millisecond)
	p.Watches = d.Chance(0.3)
	return p
}

// drawTheme chooses the faults of the play.
func drawTheme(d player.Drawer, p *Plan) {
	all := 0
	for _, t := range themes {
		all += t.weight
	}
	at := d.IntN(all)
	for _, t := range themes {
		if at -= t.weight; at >= 0 {
			continue
		}
		p.Theme = t.name
		if t.long && !p.Crowd {
			p.Long = 0.3
		}
		if t.most > 0 {
			for i := range 1 + d.IntN(t.most) {
				p.Faults = append(p.Faults, drawFault(d, p, i+1, player.Pick(d, t.faults...)))
			}
		}
		switch t.name {
		case "late":
			spread(d, p)
		case "far":
			recede(d, p)
			spread(d, p)
		}
		break
	}
	if p.lossy() {
		p.MinHold = 0 // a placeholder may be lost, too
	}
	// A master that comes back without its data, while clocks differ, breaks the order of tokens.
	apart := p.Servers > 1 && d.Chance(0.4) && !p.has(wipe)
	for i := range p.Clocks {
		if apart || p.Theme == "clocks" {
			p.Clocks[i] = d.Between(-80*time.Second, 80*time.Second)
		}
	}
	// A process that does not run when the data is lost notices it only when it runs again, which the judge does not consider.
	if p.has(wipe, failover, remove) {
		for i := range p.Faults {
			if p.Faults[i].What == pause {
				p.Faults[i].What = kill
			}
		}
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
}

// hot returns the name that most want: a name that is also wanted together with another, if there is one.
func (p *Plan) hot() int {
	if p.Multi > 0 && !p.Crowd {
		return 0
	}
	return len(p.Names) - 1
}

// spread makes the faults come one at a time, each after the effects of the previous one, and with errors at once. Then no hold
// is lost.
func spread(d player.Drawer, p *Plan) {
	at := time.Duration(0)
	for i := range p.Faults {
		f := &p.Faults[i]
		at += d.Between(2*p.TTL, 3*p.TTL)
		f.At, f.Silent = at, false
		if at > p.Lasts*29/30 {
			p.Faults = p.Faults[:i]
			return
		}
	}
}

// recede makes Redis take a little more than a second for each answer, or makes all connections of a process silent while new
// ones work. Leases are as long as in production, so no hold is lost, and no Lock fails.
func recede(d player.Drawer, p *Plan) {
	p.TTL, p.Poll, p.Lasts, p.Long = d.Between(15*time.Second, 30*time.Second), 3*time.Second, 4*time.Minute, 0.3
	p.OwnLease, p.Fixed = 0, 0
	p.Impatient, p.Crowd = 0, false // a waiter that gives up leaves an old answer to the next one, and a hold with little time
	what := player.Pick(d, slow, dead)
	for i := range p.Faults {
		f := &p.Faults[i]
		f.What, f.For, f.Amount = what, d.Between(p.TTL, 2*p.TTL), d.Between(520*time.Millisecond, 600*time.Millisecond)
	}
}

// has reports whether the plan has faults of these kinds.
func (p *Plan) has(kinds ...What) bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return slices.Contains(kinds, f.What) })
}

// lossy reports whether Redis may lose a hold before its holder notices.
func (p *Plan) lossy() bool { return p.has(wipe, failover, remove, clocks) }

// inLine returns the names for which processes have their turns in the order in which they came, and serve all of their
// waiters in a turn. With a min hold, no local waiter follows. A process that has learned that others want the lock gives
// way. A waiter that gives up passes its entry to the next waiter of its process only if both use the same options.
func (p *Plan) inLine() []string {
	if len(p.Faults) > 0 || p.Servers > 1 || p.Handoffs < 16 || p.Watches || p.MinHold > 0 || p.Fixed > 0 || p.OwnLease > 0 {
		return nil
	}
	return p.Names
}

func drawFault(d player.Drawer, p *Plan, number int, what What) Fault {
	f := Fault{
		Number: number, What: what,
		At:      d.Between(p.Lasts/30, p.Lasts*29/30),
		For:     d.Between(p.TTL/20, p.TTL*2),
		Process: 1 + d.IntN(p.Processes), Server: d.IntN(p.Servers),
		Amount: d.Between(p.TTL/100, p.TTL/3),
		Name:   player.Pick(d, slices.Concat(p.Names, p.Sided, p.Semaphores, p.Semaphores, []string{"y", "y"})...),
		Trap:   player.Pick(d, "command", "reply", "late"), Silent: d.Chance(0.3),
		Wide: p.Servers > 1 && d.Chance(0.6), Queue: d.Chance(0.4) || p.Crowd, Skip: d.IntN(4),
	}
	if p.Hot && !slices.Contains(p.Semaphores, f.Name) && d.Chance(0.8) {
		f.Name = p.Names[p.hot()]
	}
	if d.Chance(0.5) {
		f.For /= 8
	}
	switch what {
	case wipe:
		if p.Servers > 1 { // as documented for users: not before a TTL is over
			f.For += p.TTL + p.TTL/4
		}
	case pause: // sometimes for longer than the lease of an entry in the line
		if f.For = d.Between(p.TTL/4, 4*p.TTL); d.Chance(0.3) {
			f.For /= 8
		}
	case fade:
		f.Amount, f.For = d.Between(p.TTL/20, p.TTL/4), d.Between(p.TTL, 2*p.TTL)
	case clocks:
		if f.Amount = d.Between(-p.TTL, p.TTL); f.Amount > 0 && p.Servers > 1 {
			f.Amount = -f.Amount // a clock that is set forward would lose votes
		}
	case wall:
		f.Amount = d.Between(-2*p.TTL, 2*p.TTL)
	case remove:
		if p.Servers > 1 {
			f.What = cut
		}
	case failover:
		if p.Servers > 1 {
			f.What = restart
		}
	}
	return f
}

// String describes the plan in one line.
func (p Plan) String() string {
	shape := "one server"
	if p.Servers > 1 {
		shape = fmt.Sprintf("a quorum of %d", p.Servers)
	}
	return fmt.Sprintf("seed %d, %s: %d processes of %d goroutines on %s; TTL %v, poll %v, %v one way; %d faults",
		p.Seed, p.Theme, p.Processes, p.Workers+p.Permitted, shape, ms(p.TTL), ms(p.Poll), p.Latency, len(p.Faults))
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// With returns the plan with only the faults that have one of the numbers.
func (p Plan) With(numbers []int) Plan {
	p.Faults = slices.DeleteFunc(slices.Clone(p.Faults), func(f Fault) bool { return !slices.Contains(numbers, f.Number) })
	return p
}

// String describes a fault.
func (f Fault) String() string {
	lost := map[string]string{"command": "it is lost", "reply": "its reply is lost", "late": fmt.Sprintf("it arrives %v later", ms(f.Amount))}[f.Trap]
	link := fmt.Sprintf("process %d and server %d", f.Process, f.Server+1)
	if f.Wide {
		link = fmt.Sprintf("process %d and all servers", f.Process)
	}
	server, process := fmt.Sprintf("server %d", f.Server+1), fmt.Sprintf("process %d", f.Process)
	switch f.What {
	case slow:
		return fmt.Sprintf("messages between %s take %v longer, for %v", link, ms(f.Amount), ms(f.For))
	case fade:
		return fmt.Sprintf("messages between %s take %v longer, for %v at least, and then none arrives for %v", link, ms(f.Amount), ms(f.For/4), ms(f.For))
	case cut:
		return fmt.Sprintf("the connections between %s break; of what is under way: %s", link, lost)
	case trap:
		text := fmt.Sprintf("the connection of a command from %s breaks (%s)", strings.Replace(link, " and ", " to ", 1), lost)
		if f.Silent {
			text += ", and the process is not notified"
		}
		return text
	case dead:
		return fmt.Sprintf("the connections between %s are dead, and the process is not notified", link)
	case partition:
		return fmt.Sprintf("%s do not reach each other, for %v", link, ms(f.For))
	case messagesLost:
		return fmt.Sprintf("messages of subscriptions between %s are lost, for %v", link, ms(f.For))
	case freeze:
		return fmt.Sprintf("%s stands still, for %v", server, ms(f.For))
	case restart:
		return fmt.Sprintf("%s stops, and is back after %v with its data", server, ms(f.For))
	case loading:
		return fmt.Sprintf("%s answers LOADING, for %v", server, ms(f.For))
	case forget:
		return fmt.Sprintf("%s forgets the scripts", server)
	case wipe:
		return fmt.Sprintf("%s stops, and is back after %v without its data", server, ms(f.For))
	case failover:
		return fmt.Sprintf("a replica takes over from %s that is %v behind, after %v", server, ms(f.Amount), ms(f.For))
	case remove, lie:
		return fmt.Sprintf("the key %s is deleted", f.Name)
	case pause:
		return fmt.Sprintf("%s does not run, for %v", process, ms(f.For))
	case kill:
		return fmt.Sprintf("%s is gone; another one begins after %v", process, ms(f.For))
	case wall:
		return fmt.Sprintf("the wall clock of %s is set by %v", process, ms(f.Amount))
	case clocks:
		return fmt.Sprintf("the clock of %s is set by %v", server, ms(f.Amount))
	}
	return string(f.What)
}
