package relock

// What the tests in package relock_test, and the fixtures of those in package relock, see of clients, handles and holds
// beyond the API.

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/queue"
	"github.com/relock-go/relock/internal/redistest"
	"github.com/relock-go/relock/internal/undo"
	"github.com/relock-go/relock/internal/wake"
)

var TryOptions = tryOptions

const (
	TrySplits            = trySplits
	GatheringMax         = gatheringMax
	RegistrationLease    = registrationLease
	RegistrationInterval = registrationInterval
)

// A sessioned is a client, or a handle of one.
type sessioned interface{ ofSession() *session }

func (c *Client) ofSession() *session { return c.session }
func (m *Mutex) ofSession() *session  { return m.session }

// Patience is how long c waits for an answer.
func (c *Client) Patience() time.Duration { return c.session.patience }

// Subscribe calls woken for each message on channel.
func (c *Client) Subscribe(channel string, woken func()) *wake.Subscription {
	return c.session.hub.Subscribe(channel, woken)
}

// Suspect has the subscription to channel examined.
func (c *Client) Suspect(channel string) { c.session.hub.Suspect(channel) }

// Undoing returns the names that are being released on a node in the background.
func (c *Client) Undoing(node int) []undo.Name { return c.session.undos[node].Pending() }

// Tickets is the last one that c has taken for an entry in a line.
func (c *Client) Tickets() uint64 { return c.session.tickets.Load() }

// TellFirst has c report each hand-over of a Mutex to Redis before the next waiter enters, as it does where that
// wants a token.
func (c *Client) TellFirst() { c.plain.rename = nil }

func (m *Mutex) Keys() *keys.Set             { return m.target }
func (m *Mutex) Terms() *protocol.Terms      { return &m.settings.Terms }
func (m *Mutex) Protocol() protocol.Protocol { return m.kind.protocol }

// Wakes is how often the waiters for the first key of m were woken.
func (m *Mutex) Wakes() uint64 { return m.gate().queue.Wakes() }

func (m *Mutex) gate() *gate {
	return m.session.registry.gate(gateID{m.target.Keys[0], m.target.Side})
}

// Outage is since when Redis has not answered for a key, and why.
type Outage struct {
	Asked, Failed clock.Instant
	Failure       error
}

// Learned is what the client of m has learned of its first key: who was last reported to hold it, and since when Redis
// does not answer.
func (m *Mutex) Learned() (holder string, out Outage) {
	g := m.gate()
	if g == nil {
		return "", Outage{}
	}
	seen, o := g.lastKnown(m.session.now())
	return seen.holder, Outage{Asked: o.asked, Failed: o.failed, Failure: o.failure}
}

// UndoFor has the client of m release it for field in the background.
func (m *Mutex) UndoFor(field string, until clock.Instant) {
	m.session.undo(m.kind.protocol, undo.Name{Keys: m.target, Until: until}, field)
}

// The sides of m, each a lock by itself.
func (m *RWMutex) Read() *Mutex  { return &m.read }
func (m *RWMutex) Write() *Mutex { return &m.write }

// Retire gives c a new identity, as an unknown outcome does.
func Retire(c sessioned) {
	identities := c.ofSession().identities
	identities.Retire(identities.Current())
}

// NamesOf returns how many names c keeps anything of.
func NamesOf(c sessioned) (n int) {
	r := c.ofSession().registry
	for i := range r.shards {
		shard := &r.shards[i]
		shard.mu.Lock()
		n += len(shard.gates)
		shard.mu.Unlock()
	}
	return n
}

// Settled reports whether c does nothing in the background.
func Settled(c sessioned) bool {
	return c.ofSession().goroutines.Len() == 1 // it watches the clocks
}

// Answered reports whether c waits for no answer, except to undos that it sends again and again.
func Answered(c *Client) bool {
	running := 1 // it watches the clocks
	for _, q := range c.session.undos {
		if len(q.Pending()) > 0 {
			running++ // it sends, or pauses
		}
	}
	return c.session.goroutines.Len() == running
}

// Idle reports whether c is closed, or keeps no name and does nothing in the background.
func Idle(c *Client) bool { return NamesOf(c) == 0 && (c.session.closed() || Settled(c)) }

// HoldView is the state of a hold at one moment.
type HoldView struct {
	Keys     *keys.Set
	Field    string // on Redis
	Deadline clock.Instant
	Longest  time.Duration // of all its leases
	Protocol protocol.Protocol
	Terms    *protocol.Terms
	Held     bool
	Waiting  bool
	Awaited  bool // another Lock of its owner queues behind it
	Listens  bool // a message would reach it

	gate *gate // of its first place; nil: it has none
	slot *slot
}

// HoldsOn are the holds of all owners of this process on key, from the wish for it to the end.
func HoldsOn(c sessioned, key string) (views []HoldView) {
	for _, h := range holdsOn(c.ofSession(), key) {
		views = append(views, h.view())
	}
	return views
}

// holdsOn returns the holds of all owners on key.
func holdsOn(s *session, key string) (holds []*hold) {
	for _, h := range s.registry.all() {
		h.mu.Lock()
		if h.target.Has(key) {
			holds = append(holds, h)
		}
		h.mu.Unlock()
	}
	return holds
}

func (h *hold) view() HoldView {
	h.mu.Lock()
	defer h.mu.Unlock()
	view := HoldView{
		Keys: h.target, Field: h.name.Field, Deadline: h.lease.Deadline(), Longest: h.lease.Longest(),
		Protocol: h.kind.protocol, Terms: &h.settings.Terms, Held: h.phase == held, Awaited: h.changed != nil, slot: h.slot,
	}
	for i, p := range h.queueEntries {
		state, _ := p.ticket.State()
		view.Waiting = view.Waiting || state != queue.Gone && h.phase == acquiring && len(h.queueEntries) == len(h.target.Keys)
		if i == 0 {
			view.gate, view.Listens = p.gate, p.listening()
		}
	}
	return view
}

// Line is the one of its process, for the first key; nil: it has no place.
func (v HoldView) Line() *line.Line {
	if v.gate == nil {
		return nil
	}
	return v.gate.line().Line
}

// Turn is to poll that line, of one waiter of its process at a time.
func (v HoldView) Turn() *queue.Bell { return &v.gate.line().polls.Bell }

// Occupy keeps commands about the keys of the hold back until free is called.
func (v HoldView) Occupy() (free func()) {
	v.slot.take(context.Background())
	return v.slot.free
}

// WaitersOn counts the owners of this process that wait for key, the one that talks to
// Redis included.
func WaitersOn(c sessioned, key string) (n int) {
	for _, h := range HoldsOn(c, key) {
		if h.Waiting {
			n++
		}
	}
	return n
}

// Listening reports whether a message about key would reach the waiters of c.
func Listening(c sessioned, key string) bool {
	return slices.ContainsFunc(HoldsOn(c, key), func(h HoldView) bool { return h.Listens })
}

// AwaitWaiters waits until n owners of this process wait for key.
func AwaitWaiters(t *testing.T, c sessioned, key string, n int) {
	t.Helper()
	redistest.Eventually(t, fmt.Sprintf("%d waiters", n), func() bool { return WaitersOn(c, key) == n })
}

// AwaitEntries waits until replies have reported to c its n entries in the line of key. Redis has them before: a
// waiter that gives up in between may have one, or not.
func AwaitEntries(t *testing.T, c sessioned, key string, n int) {
	t.Helper()
	redistest.Eventually(t, fmt.Sprintf("%d places", n), func() bool {
		for _, h := range HoldsOn(c, key) {
			return len(h.Line().Waiting()) == n
		}
		return n == 0
	})
}

// AwaitListening waits until a message about key would reach the waiters of c.
func AwaitListening(t *testing.T, c sessioned, key string) {
	t.Helper()
	redistest.Eventually(t, "listening", func() bool { return Listening(c, key) })
}

// LineUp has n actors lock m of c one after another, report to turns when they hold it, and unlock it.
func LineUp(t *testing.T, c sessioned, m *Mutex, n int, turns chan<- int) []<-chan error {
	t.Helper()
	before := WaitersOn(c, m.Name())
	var done []<-chan error
	for i := range n {
		done = append(done, locktest.NewActor(t).Begin(func() error {
			if err := m.Lock(t.Context()); err != nil {
				return err
			}
			turns <- i
			return m.Unlock()
		}))
		AwaitWaiters(t, c, m.Name(), before+i+1)
	}
	return done
}

// HandOver unlocks m of c, which the caller holds, while another owner waits with the handle to.
func HandOver(t *testing.T, c sessioned, m, to *Mutex) {
	t.Helper()
	next := locktest.NewActor(t)
	granted := next.Lock(t.Context(), to)
	AwaitWaiters(t, c, m.Name(), 1)
	locktest.RequireUnlocked(t, m)
	require.NoError(t, locktest.OutcomeOf(t, granted))
	next.Unlocks(t, to)
}

// LocksOn returns a client that is closed before rdb is.
func LocksOn(tb testing.TB, rdb redis.UniversalClient, opts ...ClientOption) *Client {
	tb.Helper()
	return locktest.Closed[*Client](tb)(New(rdb, locktest.Options(WithoutPipelining(), opts)...))
}

// QuorumOn returns a client that is closed before its Redis clients are.
func QuorumOn(tb testing.TB, rdbs []redis.UniversalClient, opts ...ClientOption) *Client {
	tb.Helper()
	return locktest.Closed[*Client](tb)(NewQuorum(rdbs, locktest.Options(WithoutPipelining(), opts)...))
}

// LocksWithClock is LocksOn with a clock that can be set.
func LocksWithClock(t *testing.T, rdb redis.UniversalClient, opts ...ClientOption) (*Client, *locktest.TwoClocks) {
	t.Helper()
	clocks := &locktest.TwoClocks{}
	s, err := newClientSettings(locktest.Options(WithoutPipelining(), opts))
	require.NoError(t, err)
	return locktest.Closed[*Client](t)(newClient(rdb, s, clocks.Now), nil), clocks
}
