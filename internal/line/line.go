// Package line has the entries of one process in the line of one lock on Redis.
//
// Each waiter of a FairMutex has an entry. For a Mutex, the first waiter of the process has one, for all waiters
// behind it. Polls keep the entries alive, one poll for all entries of the process.
//
//	asking --placed--> waiting --granted, by a poll or a message--> settled
//	   |                  |  \--its lease has ended, or Redis lost it--> settled
//	   |                  \--given up--> removed
//	   \--granted at once, or failed--> removed
//
// The goroutine of the attempt enters and removes its entry. Any waiter's poll, and the goroutine that
// delivers messages, settle it. The waiter is notified once, by a call that does not block.
//
// Invariants:
//   - A settled entry is in no map: no later answer or message changes it.
//   - A grant counts only with a proof: an answered request of this process from before the grant.
//   - The next poll is never later than the entry with the shortest lease needs.
//   - A waiter with the turn to poll has an entry on Redis.
//
// What can come late: a message of a grant that a poll has already returned, or for a removed entry, neither of
// which the map contains; and a message that comes before the answer to the request
// that made the entry, which is kept until the answer arrives.
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

// Hub delivers messages.
type Hub interface {
	// SubscribeTo opens a subscription. Rejoin does so only if the channel is still subscribed.
	SubscribeTo(name string, wake func(), message func(string)) *wake.Subscription
	Rejoin(name string, wake func(), message func(string)) *wake.Subscription
	// Missed reports to the hub that a message on a channel is missing.
	Missed(name string)
}

// Line is the entries of one process in the line of one lock on Redis.
type Line struct {
	// polls wakes the waiter with the turn to poll, for the whole process. Each waiter in that queue has an entry on
	// Redis.
	polls *queue.Bell

	hub            Hub
	now            clock.Clock
	releaseChannel string // for messages to every waiter
	grantChannel   string // for messages to this process

	mu        sync.Mutex
	entries   map[uint64]*Entry // by ticket: the entries that are not settled
	pollAt    clock.Instant     // when the next poll is due
	listeners int
	releases  *wake.Subscription // messages to every waiter
	grants    *wake.Subscription // messages to this process
	confirmed bool               // both were live at their last event that was no message
}

// New returns the line of one process for a key. hub delivers messages of releases and grants. polls wakes the waiter
// with the turn to poll.
func New(hub Hub, now clock.Clock, releases, grants string, polls *queue.Bell) *Line {
	return &Line{hub: hub, now: now, releaseChannel: releases, grantChannel: grants, polls: polls}
}

// Entry is one entry in the line on Redis.
//
// A grant in a message is proven as follows. Redis grants a ticket once, and gives the lock the entry's lease. The answer
// that the ticket waits was given before the grant. So the lock is held for at least a lease from when that
// request was sent, whatever any clock shows.
// If a copy of the request that made the entry was not answered, that copy could make the entry again,
// and there could be two grants. The message of the first may come late. Then messages prove nothing, and are only a
// reason to poll.
type Entry struct {
	Ticket uint64
	Field  string          // the name of the entry
	Terms  *protocol.Terms // of the waiter
	Mark   uint64          // wake-ups of the queue before the request

	// The fields below are guarded by the line's mu.
	settled  func() // notifies the waiter that it need not wait any more
	now      protocol.EntryStatus
	sure     bool  // every copy of its request was answered
	notified bool  // a message of its grant has arrived
	token    int64 // of that message
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

// Remove forgets an entry. Later messages for it are ignored.
func (l *Line) Remove(e *Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.entries, e.Ticket)
}

// Adopt makes another waiter of this process, which settled notifies, wait by e from now on. If the entry was settled
// before, that waiter is notified at once, because the previous waiter will not do it.
func (l *Line) Adopt(e *Entry, settled func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.settled = settled
	if e.now.State > protocol.EntryWaiting {
		settled()
	}
}

// Placed records the answer that e waits, and the last token that was created. From then on polls keep the entry alive,
// and messages can settle it. If the message of the grant came first, it counts only now, because the answer is its proof.
func (l *Line) Placed(e *Entry, last int64, out redisexec.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.now, e.sure = protocol.EntryStatus{State: protocol.EntryWaiting, Proof: out.Sent, Token: last}, !out.Ambiguous
	if e.notified {
		l.believe(e)
	}
	if l.polls.Wakes() != e.Mark {
		l.polls.Wake() // a poll that came too early for this entry may have used them up
	}
}

const (
	// foreignTurn announces a turn of foreign waiters, which have no entry in the line.
	foreignTurn = "1"
	// ask makes the first process in line poll: it has to ask again when a turn of foreign waiters or a min hold ends.
	ask = "ask"
)

// released handles a message to every waiter.
func (l *Line) released(payload string) {
	if payload != foreignTurn {
		l.polls.Wake()
	}
}

// message handles a message to this process: ask, or granted tickets, each with its token. A lock is granted to one
// ticket, permits to several.
// Other publishers can do no harm: what is no ticket is ignored, and a ticket needs a proof.
func (l *Line) message(payload string) {
	if payload == ask {
		l.polls.Wake()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for pair := range slices.Chunk(strings.Split(payload, " "), 2) {
		ticket, err := strconv.ParseUint(pair[0], 10, 64)
		e := l.entries[ticket]
		if err != nil || e == nil {
			continue // it is settled or removed
		}
		e.notified, e.token = true, 0
		if len(pair) == 2 {
			e.token, _ = strconv.ParseInt(pair[1], 10, 64)
		}
		if e.now.State == protocol.EntryWaiting {
			l.believe(e)
		}
	}
}

// believe settles e by the grant in a message, if the grant is proven and complete. If messages and answers are so slow that
// less than half of the lease is left, a poll brings a newer proof: the hold could not be renewed in time. mu is held.
func (l *Line) believe(e *Entry) {
	lease := e.Terms.EntryLease()
	inTime := l.now().Until(clock.Deadline(e.now.Proof, lease)) > lease/2
	if !e.sure || !inTime || e.Terms.Fencing && e.token <= 0 {
		l.polls.Wake()
		return
	}
	e.now.State, e.now.Token = protocol.EntryGranted, e.token
	l.settle(e)
}

// settle notifies e's waiter that it need not wait any more. mu is held.
func (l *Line) settle(e *Entry) {
	// First out of the map: a later message, or the answer to a poll in flight, does not find it.
	delete(l.entries, e.Ticket)
	e.settled()
}

// Waiting returns the entries that wait in the line, oldest first.
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

// Update records the states of entries from the answer to a request that was sent at sent, and reports
// whether a message about any of them is missing.
func (l *Line) Update(entries []*Entry, all []protocol.EntryStatus, sent clock.Instant) (late bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range entries {
		if e.now.State != protocol.EntryWaiting || l.entries[e.Ticket] != e {
			// A message about its grant has arrived since the poll was sent, or the entry was removed. The answer may
			// be older than that message, and must not revoke a grant.
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

// EntryStatus returns the state of e.
func (l *Line) EntryStatus(e *Entry) protocol.EntryStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.now
}

// Schedule sets the time of the next poll. If e has just polled, the poll is due in d. If e is new, it is due in d at
// the latest. There is one time for the whole process, because one poll keeps all its entries alive.
func (l *Line) Schedule(e *Entry, d time.Duration, polled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if polled { // for all entries, each as often as it needs
		for _, e := range l.entries {
			// mutant: no-poll/2
			d = min(d, e.Terms.EntryPoll())
		}
	}
	at, others := l.now().After(d), len(l.entries)
	if l.entries[e.Ticket] == e { // it may have been served already
		others--
	}
	if polled || others == 0 {
		l.pollAt = at
	} else if at.Mono < l.pollAt.Mono {
		l.pollAt = at
		l.polls.Recheck()
	}
}

// Due returns when the next poll is due.
func (l *Line) Due() clock.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pollAt
}

// Listen adds a listener, until Unlisten.
func (l *Line) Listen() { l.subscribe(l.hub.SubscribeTo) }

// Attend is Listen on subscriptions that still exist. It opens none, because the request for an entry that
// follows may get the lock at once, and then a subscription would be useless.
func (l *Line) Attend() { l.subscribe(l.hub.Rejoin) }

// Missed has the subscription to grants examined, because a message is missing.
func (l *Line) Missed() { l.hub.Missed(l.grantChannel) }

func (l *Line) subscribe(open func(name string, wake func(), message func(string)) *wake.Subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners++
	if l.releases == nil {
		l.releases = open(l.releaseChannel, l.changed, l.released)
	}
	if l.grants == nil {
		l.grants = open(l.grantChannel, l.changed, l.message)
	}
	l.confirmed = l.listening() // without an event: what was in use stays confirmed
}

// Unlisten removes a listener. The last one closes both subscriptions.
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
	l.releases, l.grants, l.confirmed = nil, nil, false
}

// changed handles the events of a subscription that are not messages: it is confirmed, lost or refused, so messages may
// have been missed. While the other one is still to be confirmed, the poll waits for that: one poll follows both.
func (l *Line) changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.confirmed
	if l.confirmed = l.listening(); before || l.confirmed {
		l.polls.Wake()
	}
}

// Listening reports whether messages arrive. Both subscriptions are needed: releases wake the waiter that polls, grants
// notify the waiter that is served.
func (l *Line) Listening() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listening()
}

// listening is Listening. mu is held.
func (l *Line) listening() bool {
	return l.releases != nil && l.grants != nil && l.releases.Live() && l.grants.Live()
}
