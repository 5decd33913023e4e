package relock

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/wake"
)

// party is those of one process who have places in the queue of one fair lock on Redis.
type party struct {
	// queue is that for the turn to poll. Everybody in it has a place on Redis.
	queue queue.Queue[*hold]

	hub            messageHub
	releaseChannel string // of what wakes everybody
	grantChannel   string // of what is meant for this process

	mu        sync.Mutex
	entries   map[uint64]*fairEntry // by ticket: those who do not know yet what became of them
	pollAt    clock.Instant         // when the next poll is due
	listeners int
	releases  *wake.Subscription // of what wakes everybody
	grants    *wake.Subscription // of what is meant for this process
}

// newParty is the line of one process for a key, which hub tells of releases and grants.
func newParty(hub messageHub, releases, grants string) *party {
	return &party{hub: hub, releaseChannel: releases, grantChannel: grants}
}

// fairEntry is one place in the queue of a fair lock.
//
// A grant of it that was told by a message is proven: Redis grants a ticket once, and gives
// the lock the entry's lease. An answer that the ticket waits was given before the grant, so
// the lock is held at least for a lease from when that was asked, whatever any clock shows.
// If a copy of the request that made the entry was not answered, it could make it again,
// and so there could be two grants, the message of the first of which may come late: then
// messages prove nothing, and are a reason to ask.
type fairEntry struct {
	party  *party
	hold   *hold
	ticket uint64
	mark   uint64 // wake-ups of the queue, before the request

	name name // under which the place is kept; without a token yet

	// The fields below are guarded by party.mu.
	now   protocol.Standing
	sure  bool  // every copy of its request was answered
	told  bool  // a message said that it was granted
	token int64 // that it told
}

// enter makes an entry for h, whose request is about to be sent.
func (p *party) enter(h *hold) *fairEntry {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.entries == nil {
		p.entries = make(map[uint64]*fairEntry)
	}
	e := &fairEntry{party: p, hold: h, ticket: h.client.tickets.Add(1), mark: p.queue.Wakes()}
	p.entries[e.ticket] = e
	return e
}

// remove forgets an entry.
func (p *party) remove(e *fairEntry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.entries, e.ticket)
}

// placed records the answer that e waits.
func (p *party) placed(e *fairEntry, out redisexec.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.now, e.sure = protocol.Standing{State: protocol.EntryWaiting, Proof: out.Sent}, !out.Ambiguous
	if e.told {
		p.believe(e)
	}
	if p.queue.Wakes() != e.mark {
		p.queue.Wake() // a poll for which this place was too early may have used them up
	}
}

// message is what a process is told: the ticket that was granted, and its token.
func (p *party) message(payload string) {
	ticket, token, _ := strings.Cut(payload, " ")
	n, err := strconv.ParseUint(ticket, 10, 64)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.entries[n]
	if e == nil {
		return // it knows already, or has gone
	}
	e.told = true
	e.token, _ = strconv.ParseInt(token, 10, 64) // none at worst
	if e.now.State == protocol.EntryWaiting {
		p.believe(e)
	}
}

// believe takes the grant of e that was told if it is proven, and complete. mu is held.
func (p *party) believe(e *fairEntry) {
	s, lease := e.hold.settings, e.hold.settings.EntryLease()
	inTime := e.hold.client.now().Until(clock.Deadline(e.now.Proof, lease)) > 0
	if !e.sure || !inTime || s.Fencing && e.token <= 0 {
		p.queue.Wake()
		return
	}
	e.now.State, e.now.Token = protocol.EntryGranted, e.token
	p.settle(e)
}

// settle tells e's owner that he need not wait any more. mu is held.
func (p *party) settle(e *fairEntry) {
	delete(p.entries, e.ticket)
	e.hold.ring()
}

// waiting returns those who are in the queue, first come first.
func (p *party) waiting() []*fairEntry {
	p.mu.Lock()
	defer p.mu.Unlock()
	entries := make([]*fairEntry, 0, len(p.entries))
	for _, ticket := range slices.Sorted(maps.Keys(p.entries)) {
		if e := p.entries[ticket]; e.now.State == protocol.EntryWaiting {
			entries = append(entries, e)
		}
	}
	return entries
}

// learn records how entries stand, as the answer to a request sent then says, and reports
// whether any was granted.
func (p *party) learn(entries []*fairEntry, all []protocol.Standing, sent clock.Instant) (served bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range entries {
		if e.now.State != protocol.EntryWaiting || p.entries[e.ticket] != e {
			continue // it learned of a grant meanwhile, or has gone
		}
		e.now = all[i]
		e.now.Proof = sent
		served = served || e.now.State == protocol.EntryGranted
		if e.now.State != protocol.EntryWaiting {
			p.settle(e)
		}
	}
	return served
}

// standing returns how e stands.
func (e *fairEntry) standing() protocol.Standing {
	e.party.mu.Lock()
	defer e.party.mu.Unlock()
	return e.now
}

// paced is effort for a command that keeps e, among others: several copies have to fit into
// the lease of the briefest place.
func (e *fairEntry) paced(effort redisexec.CallOptions) redisexec.CallOptions {
	patience := min(e.hold.client.patience, redisexec.PatienceFor(e.hold.settings.EntryLease()))
	if effort.Patience == 0 || patience < effort.Patience {
		effort.Patience = patience
	}
	return effort
}

// schedule sets the time of the next poll: as said by e, who has just polled, or else no later
// than suits e, who has just come.
func (p *party) schedule(e *fairEntry, now clock.Instant, d time.Duration, polled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if polled { // for all of them, each as often as its own place needs
		for _, e := range p.entries {
			d = min(d, e.hold.settings.EntryPoll())
		}
	}
	at, others := now.After(d), len(p.entries)
	if p.entries[e.ticket] == e { // it may have been served by now
		others--
	}
	if polled || others == 0 {
		p.pollAt = at
	} else if at.Mono < p.pollAt.Mono {
		p.pollAt = at
		p.queue.Rouse()
	}
}

// due is when the next poll is.
func (p *party) due() clock.Instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pollAt
}

// listen adds a listener, until unlisten.
func (p *party) listen() { p.subscribe(p.hub.SubscribeTo) }

// attend is listen on subscriptions that there are still; those that there are not stay so.
func (p *party) attend() { p.subscribe(p.hub.Rejoin) }

// suspect has the subscription to grants examined.
func (p *party) suspect() { p.hub.Suspect(p.grantChannel) }

func (p *party) subscribe(open func(name string, wake func(), message func(string)) *wake.Subscription) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listeners++
	if p.releases == nil {
		p.releases = open(p.releaseChannel, p.queue.Wake, nil)
	}
	if p.grants == nil {
		p.grants = open(p.grantChannel, p.queue.Wake, p.message)
	}
}

func (p *party) unlisten() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listeners--; p.listeners > 0 {
		return
	}
	for _, s := range []*wake.Subscription{p.releases, p.grants} {
		if s != nil {
			s.Close()
		}
	}
	p.releases, p.grants = nil, nil
}

// listening reports whether messages arrive.
func (p *party) listening() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.releases != nil && p.grants != nil && p.releases.Live() && p.grants.Live()
}
