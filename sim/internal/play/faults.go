package play

import (
	"slices"
	"time"

	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/internal/linktest"
)

// inject injects a fault, and ends it.
func (p *play) inject(f Fault) {
	p.await(f)
	switch f.What {
	case slow:
		p.lasting(f, func() {
			ways := p.ways(f)
			ways.each(func(l *linktest.Link) { l.Slow(f.Amount) })
			time.Sleep(f.For)
			ways.each(func(l *linktest.Link) { l.Slow(0) })
		})
	case fade:
		p.lasting(f, func() {
			ways := p.ways(f)
			ways.each(func(l *linktest.Link) { l.Slow(f.Amount) })
			time.Sleep(f.For / 4)
			p.await(f)
			ways.each(func(l *linktest.Link) { l.Slow(0) })
			p.separate(ways, f)
		})
	case cut:
		p.disturb(f)
		p.ways(f).each(func(l *linktest.Link) { l.Cut(f.loss(), f.Amount) })
	case dead:
		p.disturb(f)
		p.ways(f).each((*linktest.Link).Mute)
	case trap:
		p.at(f.Process).links[f.Server].Set(func(linktest.Trap) { p.disturb(f) }, linktest.Trap{Loss: f.loss(), Late: f.Amount, Silent: f.Silent, Skip: f.Skip})
	case partition:
		p.lasting(f, func() { p.separate(p.ways(f), f) })
	case messagesLost:
		p.ways(f).each(func(l *linktest.Link) { l.LoseMessages(f.For) })
		for left := f.For; left > 0; left -= p.plan.TTL {
			p.disturb(f)
			time.Sleep(min(left, p.plan.TTL))
		}
	case freeze:
		p.lasting(f, func() {
			s := p.servers[f.Server]
			s.until(&s.frozen, f.For)
			p.eachLink(f.Server, func(l *linktest.Link) { l.Freeze(f.For) })
			time.Sleep(f.For)
		})
	case restart, wipe, failover:
		p.stop(f)
	case loading:
		p.lasting(f, func() {
			p.servers[f.Server].load(f.For)
			time.Sleep(f.For)
		})
	case forget:
		p.disturb(f)
		p.forget(f.Server)
	case remove:
		p.journal.add(history.Event{Kind: history.DataLoss, Lock: f.Name, Note: f.String()})
		p.servers[f.Server].mini.Del(f.Name)
	case lie:
		p.servers[f.Server].mini.Del(f.Name)
	case pause:
		p.at(f.Process).pause(f.For)
	case kill:
		p.replace(f)
	case wall:
		p.disturb(f)
		p.at(f.Process).clocks.set(f.Amount)
	case clocks:
		p.journal.add(history.Event{Kind: history.DataLoss, Note: f.String()})
		p.servers[f.Server].step(f.Amount)
	}
}

// await waits for a while until a fault that should affect a holder would affect one.
func (p *play) await(f Fault) {
	hits := func() bool { return true }
	switch f.What {
	case remove, lie:
		hits = func() bool { return p.servers[f.Server].mini.Exists(f.Name) }
	case pause, kill, fade, slow, dead, partition, trap, cut:
		hits = func() bool { return p.at(f.Process).players.Holding.Load() > 0 }
	}
	if held := hits; f.Queue && f.What.meetsProcess() {
		hits = func() bool {
			c := p.at(f.Process)
			return held() && c.players.Holding.Load() > 0 && c.players.Waiting.Load() > 0
		}
	}
	for range 100 {
		if hits() || p.plan.Lasts-time.Since(p.journal.began) < p.plan.TTL {
			return
		}
		time.Sleep(37 * time.Millisecond)
	}
}

func (f Fault) loss() linktest.Loss {
	return map[string]linktest.Loss{"command": linktest.Command, "reply": linktest.Reply, "late": linktest.Late}[f.Trap]
}

// meetsProcess reports whether there is a moment of one process at which a fault does the most harm.
func (w What) meetsProcess() bool {
	return slices.Contains([]What{remove, lie, pause, kill, fade, slow, dead, partition, trap, cut}, w)
}

// ways returns the links of a process that a fault affects.
type ways []*linktest.Link

func (p *play) ways(f Fault) ways {
	links := p.at(f.Process).links
	if f.Wide {
		return links
	}
	return links[f.Server : f.Server+1]
}

func (w ways) each(fn func(*linktest.Link)) {
	for _, l := range w {
		fn(l)
	}
}

// eachLink calls fn with the links of all processes to a server.
func (p *play) eachLink(server int, fn func(*linktest.Link)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.processes {
		fn(c.links[server])
	}
}

// lasting records a fault while it lasts.
func (p *play) lasting(f Fault, harm func()) {
	p.journal.add(history.Event{Kind: history.FaultBegin, Op: f.Number, Note: f.String()})
	harm()
	p.journal.add(history.Event{Kind: history.FaultEnd, Op: f.Number, Note: f.String()})
}

// disturb records a fault that delays no one for long.
func (p *play) disturb(f Fault) {
	p.journal.add(history.Event{Kind: history.Disturbed, Op: f.Number, Note: f.String()})
}

// separate stops all traffic on links, and then breaks their connections.
func (p *play) separate(ways ways, f Fault) {
	ways.each(func(l *linktest.Link) {
		l.Refuse(f.For)
		l.Freeze(f.For)
	})
	time.Sleep(f.For)
	ways.each(func(l *linktest.Link) { l.Cut(f.loss(), f.Amount) })
}

// stop stops a server. It returns with or without its data, or as a replica that has taken over.
func (p *play) stop(f Fault) {
	s := p.servers[f.Server]
	var behind copyOf
	if f.What == failover {
		behind = s.copy()
		time.Sleep(f.Amount)
	}
	p.lasting(f, func() {
		s.until(&s.down, f.For)
		p.eachLink(f.Server, func(l *linktest.Link) {
			l.Refuse(f.For)
			l.Cut(f.loss(), 0)
		})
		time.Sleep(f.For)
		switch {
		case f.What == failover:
			s.become(behind)
		case f.What == wipe:
			s.mini.FlushAll()
		default:
			return
		}
		p.forget(f.Server)
		if p.plan.Servers == 1 {
			p.journal.add(history.Event{Kind: history.DataLoss, Note: f.String()})
		}
	})
}

// forget makes a server lose its scripts.
func (p *play) forget(server int) {
	s := p.servers[server]
	l := s.link(time.Microsecond, p.plan.Seed)
	conn, err := l.Dial()
	if err != nil {
		return // it is never refused
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("*2\r\n$6\r\nSCRIPT\r\n$5\r\nFLUSH\r\n")); err == nil {
		_, _ = conn.Read(make([]byte, 16))
	}
}

// replace kills a process, and starts another one.
func (p *play) replace(f Fault) {
	old := p.at(f.Process)
	if !old.kill() {
		return
	}
	time.Sleep(f.For)
	_ = p.begin(old.number+100, old.place) // does not fail, because the previous one began, too
}
