// Package line has the places of one process in the line of one lock on Redis.
//
// Each waiter of a FairMutex has an entry there. Of a Mutex the first waiter of the process has one, for all that
// stand behind it. Polls keep the entries: one poll keeps all of the process.
//
//	asking --placed--> waiting --granted, by a poll or a message--> settled
//	   |                  |  \--its lease is over, or Redis has lost it--> settled
//	   |                  \--gives up--> removed
//	   \--granted at once, or failed--> removed
//
// The goroutine of the attempt enters and removes its entry. Any waiter's poll, and the goroutine that
// delivers messages, settle it; the waiter is told once, by a call that does not block.
//
// Invariants:
//   - A settled entry is in no map: no later answer or message moves it.
//   - A grant counts only with a proof: an answered request from before it, by this process.
//   - The next poll is never later than the entry with the shortest lease needs.
//   - A waiter that has the turn to poll has a place on Redis.
//
// What can come late: a message of a grant that a poll has told already, or of an entry that has been
// removed, which the map does not know any more; and one that comes before the answer to the request
// that made the entry, which is kept until that has come.
package line

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

// Hub tells of messages.
type Hub interface {
	// SubscribeTo opens a subscription, and Rejoin does so if there is one still.
	SubscribeTo(name string, wake func(), message func(string)) *wake.Subscription
	Rejoin(name string, wake func(), message func(string)) *wake.Subscription
	// Missed says that a message on a channel should have come.
	Missed(name string)
}

// Line is the places that one process has in the line of one lock on Redis.
type Line struct {
	// polls wakes the waiter that has the turn to poll, for all of the process. Each that queues for that has a place on
	// Redis.
	polls *queue.Bell

	hub            Hub
	now            clock.Clock
	releaseChannel string // of what wakes every waiter
	grantChannel   string // of what is meant for this process

	mu        sync.Mutex
	entries   map[uint64]*Entry // by ticket: those that do not know yet what became of them
	pollAt    clock.Instant     // when the next poll is due
	listeners int
	releases  *wake.Subscription // of what wakes every waiter
	grants    *wake.Subscription // of what is meant for this process
}

// New returns the line of one process for a key, which hub tells of releases and grants. polls wakes the waiter that has
// the turn to poll.
func New(hub Hub, now clock.Clock, releases, grants string, polls *queue.Bell) *Line {
	return &Line{hub: hub, now: now, releaseChannel: releases, grantChannel: grants, polls: polls}
}

// Entry is one place in the queue on Redis.
//
// A grant of it that was told by a message is proven: Redis grants a ticket once, and gives
// the lock the entry's lease. An answer that the ticket waits was given before the grant, so
// the lock is held at least for a lease from when that was asked, whatever any clock shows.
// If a copy of the request that made the entry was not answered, it could make the entry again,
// and there could be two grants. The message of the first may come late. Then messages prove nothing, and are a
// reason to ask.
type Entry struct {
	Ticket uint64
	Field  string          // the name under which the place is kept
	Terms  *protocol.Terms // of the waiter
	Mark   uint64          // wake-ups of the queue, before the request

	// The fields below are guarded by the line's mu.
	settled func() // tells the waiter that it need not wait any more
	now     protocol.Standing
	sure    bool  // every copy of its request was answered
	told    bool  // a message said that it was granted
	token   int64 // that it told
}

// Enter makes an entry for a waiter whose request is about to be sent. settled is called when
// it need not wait any more, and must not block.
func (l *Line) Enter(ticket uint64, field string, terms *protocol.Terms, settled func()) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries == nil {
		l.entries = make(map[uint64]*Entry)
	}
	e := &Entry{Ticket: ticket, Field: field, Terms: terms, Mark: l.polls.Wakes(), settled: settled}
	l.entries[ticket] = e
	return e
}

// Remove forgets an entry.
// Messages that come for it later find no one.
func (l *Line) Remove(e *Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.entries, e.Ticket)
}

// Adopt has another waiter of this process, which settled tells, wait by e from now on.
// If the entry was settled before, that waiter is told at once: the one before it will not tell it.
func (l *Line) Adopt(e *Entry, settled func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.settled = settled
	if e.now.State > protocol.EntryWaiting {
		settled()
	}
}

// Placed records the answer that e waits, and the last token that was minted. From then on polls keep the place, and messages can settle it.
// A message of the grant may have come first. It is believed only now, because the answer is its proof.
func (l *Line) Placed(e *Entry, last int64, out redisexec.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.now, e.sure = protocol.Standing{State: protocol.EntryWaiting, Proof: out.Sent, Token: last}, !out.Ambiguous
	if e.told {
		l.believe(e)
	}
	if l.polls.Wakes() != e.Mark {
		l.polls.Wake() // a poll for which this place was too early may have used them up
	}
}

const (
	// strangers says that it is the turn of those that have no place in the line.
	strangers = "1"
	// ask tells the first in line that it is left waiting for those.
	ask = "ask"
)

// released is what all are told.
func (l *Line) released(payload string) {
	if payload != strangers {
		l.polls.Wake()
	}
}

// message is what a process is told: the ticket that was granted, and its token; or to ask.
// What others publish here does no harm: a payload that is no ticket is nothing, and one that is needs a proof.
func (l *Line) message(payload string) {
	ticket, token, _ := strings.Cut(payload, " ")
	n, err := strconv.ParseUint(ticket, 10, 64)
	switch {
	case payload == ask:
		l.polls.Wake()
		return
	case err != nil:
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[n]
	if e == nil {
		return // it knows already, or has gone
	}
	e.told = true
	e.token, _ = strconv.ParseInt(token, 10, 64) // none at worst
	if e.now.State == protocol.EntryWaiting {
		l.believe(e)
	}
}

// believe takes the grant of e that was told if it is proven, and complete. mu is held.
func (l *Line) believe(e *Entry) {
	inTime := l.now().Until(clock.Deadline(e.now.Proof, e.Terms.EntryLease())) > 0
	if !e.sure || !inTime || e.Terms.Fencing && e.token <= 0 {
		l.polls.Wake()
		return
	}
	e.now.State, e.now.Token = protocol.EntryGranted, e.token
	l.settle(e)
}

// settle tells e's waiter that it need not wait any more. mu is held.
func (l *Line) settle(e *Entry) {
	// First out of the map: a message that comes now, or the answer to a poll under way, finds it no more.
	delete(l.entries, e.Ticket)
	e.settled()
}

// Waiting returns the entries that are in the queue, first come first.
func (l *Line) Waiting() []*Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	entries := make([]*Entry, 0, len(l.entries))
	for _, ticket := range slices.Sorted(maps.Keys(l.entries)) {
		if e := l.entries[ticket]; e.now.State == protocol.EntryWaiting {
			entries = append(entries, e)
		}
	}
	return entries
}

// Learn records how entries stand, as the answer to a request sent then says, and reports
// whether a message should have told of any.
func (l *Line) Learn(entries []*Entry, all []protocol.Standing, sent clock.Instant) (late bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range entries {
		if e.now.State != protocol.EntryWaiting || l.entries[e.Ticket] != e {
			// A message has told of its grant since the poll was sent, or it has gone. The answer, which may be
			// older than that message, must not take a grant back.
			continue
		}
		e.now = all[i]
		e.now.Proof = sent
		late = late || e.now.Late
		if e.now.State != protocol.EntryWaiting {
			l.settle(e)
		}
	}
	return late
}

// Standing returns how e stands.
func (l *Line) Standing(e *Entry) protocol.Standing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.now
}

// Schedule sets the time of the next poll. If e has just polled, that is in d. If e has just come, it is in d at
// the latest.
// There is one time for the whole process, because one poll keeps all its places.
func (l *Line) Schedule(e *Entry, d time.Duration, polled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if polled { // for all of them, each as often as its own place needs
		for _, e := range l.entries {
			// mutant: no-poll/2
			d = min(d, e.Terms.EntryPoll())
		}
	}
	at, others := l.now().After(d), len(l.entries)
	if l.entries[e.Ticket] == e { // it may have been served by now
		others--
	}
	if polled || others == 0 {
		l.pollAt = at
	} else if at.Mono < l.pollAt.Mono {
		l.pollAt = at
		l.polls.Recheck()
	}
}

// Due is when the next poll is.
func (l *Line) Due() clock.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pollAt
}

// Listen adds a listener, until Unlisten.
func (l *Line) Listen() { l.subscribe(l.hub.SubscribeTo) }

// Attend is Listen on subscriptions that exist already, or linger. It opens none: the request for a place that
// follows may get the lock at once, and then a subscription would be in vain.
func (l *Line) Attend() { l.subscribe(l.hub.Rejoin) }

// Missed has the subscription to grants examined: a message has not come.
func (l *Line) Missed() { l.hub.Missed(l.grantChannel) }

func (l *Line) subscribe(open func(name string, wake func(), message func(string)) *wake.Subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners++
	if l.releases == nil {
		l.releases = open(l.releaseChannel, l.polls.Wake, l.released)
	}
	if l.grants == nil {
		l.grants = open(l.grantChannel, l.polls.Wake, l.message)
	}
}

// Unlisten takes a listener away. The last one closes both subscriptions.
func (l *Line) Unlisten() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listeners--; l.listeners > 0 {
		return
	}
	for _, s := range []*wake.Subscription{l.releases, l.grants} {
		if s != nil {
			s.Close()
		}
	}
	l.releases, l.grants = nil, nil
}

// Listening reports whether messages arrive.
// Both are needed: releases wake the one that polls, grants tell the one that is served.
func (l *Line) Listening() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.releases != nil && l.grants != nil && l.releases.Live() && l.grants.Live()
}

// Told reports whether a message has told of a grant whose entry has no answer yet. It is for tests.
func (l *Line) Told() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.told {
			return true
		}
	}
	return false
}

// HideEntries has messages find no entry until restore is called. It is for tests.
func (l *Line) HideEntries() (restore func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entries := l.entries
	l.entries = make(map[uint64]*Entry)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.entries = entries
	}
}
