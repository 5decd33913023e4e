package relock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/deadlock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
	"github.com/relock-go/relock/internal/wake"
)

// A session has what the holds of one client share: the identity on Redis, connections and messages, the holds in use,
// and the goroutines that work for them.
//
// It begins with its client, has one goroutine that watches the clocks, and ends with Close (client_close.go).
//
// Invariants:
//   - A name is undone only after its identity was retired: no later acquisition uses it.
//   - Every goroutine of the library belongs to goroutines, to a hub, or to an executor: Close waits for it.
//   - background ends after Close has waited for the undos. Only the connections end later.

// hubConfig suits waiters that also poll. A connection that receives nothing costs them one safety poll. So it is
// examined rarely, and when a poll returns what a message should have announced.
var hubConfig = wake.Config{
	PingInterval:  30 * time.Second,
	PongTimeout:   time.Second,
	AnswerTimeout: 10 * time.Second,
	Linger:        time.Second,
	RefusalRetry:  time.Minute,
	MinBackoff:    20 * time.Millisecond,
	MaxBackoff:    2 * time.Second,
	CloseTimeout:  closeTimeout,
}

// hub wakes waiters by messages: a *wake.Hub, *wake.Shards, or a *wake.Majority.
type hub interface {
	Subscribe(channel string, wake func()) *wake.Subscription
	Suspect(channel string)
	Missed(channel string)
	Close()
}

// messageHub is a hub that delivers messages: for the lines of one deployment.
type messageHub interface {
	hub
	line.Hub
	// Uses reports whether this process is subscribed to a channel, or was until just now.
	Uses(channel string) bool
}

// session is what the holds of one client share. The client sets some of its fields after newSession, before its first lock; then
// they do not change. So they are read without a mutex. The objects that they point to change, and synchronize themselves.
type session struct {
	now      clock.Clock
	patience time.Duration    // for one copy of a command
	limits   redisexec.Limits // of calls of Unlock

	// execs and undos belong to the one deployment, or to each node of a quorum.
	execs []*redisexec.Executor
	undos []*undo.Queue
	// usual returns how long answers of the slowest node usually take, and at least a quarter of a patience; nil
	// for one deployment.
	usual func() time.Duration

	hub hub
	// uses reports whether messages of a channel reach this process, or did until just now; on one deployment.
	uses func(channel string) bool
	// scattered: other processes may be subscribed at nodes of a Cluster that do not count them.
	scattered bool

	registry   *registry
	identities *keys.Identities
	registrars []*registrar      // one for each deployment; none if the client does not register
	tickets    atomic.Uint64     // numbers the entries in lines
	deadlocks  *deadlock.Checker // nil on a quorum
	checking   goroutine.Group   // its goroutine, which ends some seconds after the last wait

	// goroutines are the watchdogs that are awake, the goroutine that watches the clocks, and the undos. Each of them
	// has to end soon after closing or background, or Close would take its whole time.
	goroutines goroutine.Group
	// background is the context of work that no caller waits for: undos, and commands to the nodes of a quorum. Only
	// Close ends it, after it has waited for both.
	background    context.Context
	endBackground context.CancelCauseFunc

	inHook sync.Map // the goroutines that run a hook, by number: Close refuses to run on them

	// releases are the goroutines that release detached holds, and detached is how many such holds there are.
	releases goroutine.Group
	detached atomic.Int64
	failed   failedReleases

	closing     chan struct{} // closed first by Close
	closeCalled atomic.Bool
	over        chan struct{} // closed when the first Close returns
	closeErr    error
}

// newSession returns a session on these deployments, whose waiters are woken by hub. It sends no request, and starts
// one goroutine, which ends with Close.
func newSession(rdbs []redis.UniversalClient, hub hub, o *clientSettings, now clock.Clock) *session {
	s := &session{
		now:        now,
		patience:   redisexec.PatienceFor(o.TTL),
		hub:        hub,
		registry:   newRegistry(hub, now),
		identities: keys.NewIdentities(),
		closing:    make(chan struct{}),
		over:       make(chan struct{}),
	}
	for _, rdb := range rdbs {
		x := redisexec.New(rdb, now, o.TTL)
		x.Unpipelined = !o.pipelined
		s.execs = append(s.execs, x)
	}
	s.background, s.endBackground = context.WithCancelCause(context.Background())
	if o.registers {
		for _, x := range s.execs {
			s.registrars = append(s.registrars, newRegistrar(s, x))
		}
	}
	started := now() // not in the goroutine, which may run much later and miss a jump before that
	s.goroutines.Go(func() { clock.Watch(s.closing, now, started, s.clocksMoved) })
	return s
}

// life returns what work in the background needs.
func (s *session) life() goroutine.Life {
	return goroutine.Life{Now: s.now, Go: s.goroutines.Go, Closing: s.closing, Ctx: s.background}
}

// paced returns opts for a command about a lease, in which several copies have to fit.
func (s *session) paced(opts redisexec.CallOptions, lease time.Duration) redisexec.CallOptions {
	opts.Patience, opts.MaxPatience = min(s.patience, redisexec.PatienceFor(lease)), lease/4
	return opts
}

// closed reports whether Close has been called. Holds may not have ended yet.
func (s *session) closed() bool { return goroutine.Closed(s.closing) }

// clocksMoved makes every hold check its deadline. While a machine sleeps, leases on Redis go on, but the
// monotonic clock, by which timers run, stands still: without this check a watchdog would wake too late. A change of
// the wall clock looks the same.
func (s *session) clocksMoved() {
	for _, h := range s.registry.all() {
		h.clocksMoved()
	}
}

// holder returns the hold of this client that had field on key i of t when Redis was asked. It returns nil if the field
// belongs to another client, or the hold has ended since. The field, not t, determines the side of a read-write lock.
func (s *session) holder(t *keys.Set, i int, field string, asked clock.Instant) *hold {
	id := gateID{t.Keys[i], t.Side}
	if id.side == keys.Writing || id.side == keys.Reading {
		id.side = keys.SideOf(field)
	}
	g := s.registry.gate(id)
	if g == nil {
		return nil
	}
	// The owner's hold may have this name. In a batch, Redis may have the name of an earlier hold, whose owner is not
	// the owner of the hold in front of the queue.
	for _, h := range []*hold{g.find(keys.OwnerNamed(field)), g.queue.Holder()} {
		if h != nil && h.holdsAs(field, asked) {
			return h
		}
	}
	return nil
}

// uuidsInUse returns the uuids by which this client holds or waits: the current one, and older ones that holds and
// entries in lines still have. It returns none if the client neither holds nor waits. An operator finds the process
// of a holder or waiter by them. The current uuid comes first, so that it is included if the registrar registers
// only some.
func (s *session) uuidsInUse() []string {
	holds := s.registry.all()
	if len(holds) == 0 {
		return nil
	}
	all := []string{string(*s.identities.Current())}
	add := func(field string) {
		if id := keys.ClientOf(field); field != "" && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	seen := make(map[*gate]bool)
	for _, h := range holds {
		field, waits := h.nameAndEntries()
		add(field)
		add(h.onRedis().Field)
		for _, p := range waits {
			// A thousand waiters of one key share one line, which is read once.
			if seen[p.gate] {
				continue
			}
			seen[p.gate] = true
			for _, e := range p.gate.line().Waiting() {
				add(e.Field)
			}
		}
	}
	return all
}

// nameAndEntries returns the name of h on Redis, and its queue entries while it waits for a lock with a line.
func (h *hold) nameAndEntries() (field string, waits []queueEntry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase == acquiring && h.kind.lined != nil {
		waits = h.queueEntries
	}
	return h.name.Field, waits
}

// onOne creates the undo queue and the checker of a client on one deployment. A quorum has a queue for each node.
func (s *session) onOne() {
	s.undos = []*undo.Queue{undo.New(s.life(), s.settle)}
	checking := s.life()
	checking.Go = s.checking.Go
	s.deadlocks = deadlock.NewChecker(checking, s.longWaits, s.execs[0])
}

// undo releases the keys of n in the background, under each of fields in turn. The identities of all fields have been
// retired. The order matters: a delayed copy of a rename can turn an earlier field into the last one. If the last were
// released first, a copy that comes between the two would leave it.
// The channel is closed when most nodes have released the keys, or have given up.
func (s *session) undo(p protocol.Protocol, n undo.Name, fields ...string) (settled <-chan struct{}) {
	n.Field = fields[len(fields)-1]
	n.Release = func(opts redisexec.CallOptions) (out redisexec.Outcome) {
		none := noneLeft(len(n.Keys.Keys))
		for _, field := range fields { // after a failure all are released again, which is harmless
			if _, out = protocol.ReleaseUntil(s.background, p, opts, n.Keys, field, none, s.now, n.PlaceholderUntil); out.Err != nil {
				break
			}
		}
		return out
	}
	return undo.Add(n, s.undos...)
}

// settle releases n on the one deployment, and reports whether nothing remains to be done. It blocks for
// three copies of each command, or for one while the client is being closed. If it fails, the undo queue calls it
// again after a pause, until the lease is over. A refusal is not final, because the missing permission or
// password may come back in time, unless the client is being closed and this is not the first try.
func (s *session) settle(n undo.Name) bool {
	// Close waits for undos, but not for a Redis that nothing can be sent to.
	if n.Missed && s.closed() && s.execs[0].Unreachable(s.background, n.Keys.Keys[0]) {
		return true
	}
	out := n.Release(redisexec.CallOptions{Attempts: 3, Undoes: true, Enough: s.closing})
	// Again nothing could be sent, or Redis refused.
	givenUp := out.Err != nil && !out.Ambiguous && n.Missed && s.closed()
	return out.Err == nil || givenUp || redisexec.ForGood(out.Err)
}
