package relock

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/line"
	"github.com/relock-go/relock/internal/presence"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
	"github.com/relock-go/relock/internal/wake"
)

// A session has what the holds of one client share: who they are on Redis, the connections and
// messages that they use, which of them there are, and the goroutines that work for them.
//
// It begins with its client, has one goroutine that watches the clocks, and ends with Close (client_close.go).
//
// Invariants:
//   - A name is undone only after its identity was retired: nothing is acquired by it any more.
//   - Every goroutine of the library belongs to goroutines, to a hub, or to an executor: Close waits for it.
//   - background ends when Close has given what is to be undone its time. Only the connections end later.

// hubConfig suits waiters that also poll. A connection that is deaf costs them one safety poll, and no more. So
// it is examined rarely, and when a poll finds out what a message should have told.
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

// messageHub is a hub for those that read the messages: the lines of one deployment.
type messageHub interface {
	hub
	line.Hub
	// Uses reports whether messages of a channel reach this process, or did only just now.
	Uses(channel string) bool
}

// session is what the holds of one client share. Its fields do not change after newSession, except undos, usual, uses and
// registry.newLine, which the client sets before its first lock. So they are read without a mutex. What changes is
// inside of them, and each minds its own concurrency.
type session struct {
	now      clock.Clock
	patience time.Duration    // with one copy of a command
	limits   redisexec.Limits // of calls of Unlock

	// execs and undos belong to the one deployment, or to each node of a quorum.
	execs []*redisexec.Executor
	undos []*undo.Queue
	// usual is how long answers of the slowest node usually take, and at least a quarter of a patience; nil
	// where there is one deployment.
	usual func() time.Duration

	hub hub
	// uses reports whether messages of a channel reach this process, or did only just now; on one deployment.
	uses func(channel string) bool
	// scattered says that other processes may listen at nodes of a Cluster where Redis does not count them.
	scattered bool

	registry   *registry
	identities *identity.Source
	registrars []*presence.Registrar // of each deployment; none: the client does not register
	tickets    atomic.Uint64         // numbers the places in lines

	// goroutines are the watchdogs that are awake, the one that watches the clocks, and those that undo. What runs in
	// one of them ends soon after closing or background has: else Close would take its whole time.
	goroutines group.Group
	// background is the context of what no caller waits for: undos, and commands to the nodes of a quorum.
	// Close alone ends it, after both have had their time.
	background    context.Context
	endBackground context.CancelCauseFunc

	closing     chan struct{} // closed by Close, first of all
	closers     group.Group   // the goroutines of Close, one for each hold
	closeCalled atomic.Bool
	over        chan struct{} // closed when the first Close is over
	closeErr    error
}

// newSession returns a session on these deployments, whose waiters are woken by hub. It asks Redis nothing, and starts
// one goroutine, which ends with Close.
func newSession(rdbs []redis.UniversalClient, hub hub, o *clientSettings, now clock.Clock) *session {
	s := &session{
		now:        now,
		patience:   redisexec.PatienceFor(o.TTL),
		hub:        hub,
		registry:   newRegistry(hub),
		identities: identity.NewSource(),
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
		env := presence.Env{Now: now, Go: s.goroutines.Go, Ctx: s.background, Closing: s.closing, Names: s.uuidsInUse}
		for _, x := range s.execs {
			s.registrars = append(s.registrars, presence.New(env, x))
		}
	}
	started := now() // not in the goroutine, which may run much later: a jump before that would not be seen
	s.goroutines.Go(func() { clock.Watch(s.closing, now, started, s.clocksMoved) })
	return s
}

// paced is opts for a command about a lease: several copies have to fit into it.
func (s *session) paced(opts redisexec.CallOptions, lease time.Duration) redisexec.CallOptions {
	opts.Patience, opts.MaxPatience = min(s.patience, redisexec.PatienceFor(lease)), lease/4
	return opts
}

// closed reports whether Close has been called. It may not have ended any hold yet.
func (s *session) closed() bool { return group.Closed(s.closing) }

// clocksMoved has every hold look at its deadline. When the machine slept, leases on Redis went on, but the
// monotonic clock, by which timers run, stood still: without this a watchdog would wake too late. A wall clock
// that was set looks the same from here.
func (s *session) clocksMoved() {
	for _, h := range s.registry.all() {
		h.clocksMoved()
	}
}

// holder returns the hold of this client that has field on key i of t, as Redis said when it was asked; or
// nil: it is another client's, or it has ended here since. The field tells the side of a read-write lock,
// whichever side t is of.
func (s *session) holder(t *keys.Set, i int, field string, asked clock.Instant) *hold {
	id := gateID{t.Keys[i], t.Side}
	if id.side != keys.Alone {
		id.side = keys.SideOf(field)
	}
	g := s.registry.gate(id)
	if g == nil {
		return nil
	}
	// The owner's hold may have this name. Or the hold in front of the queue has it, though its owner is
	// another: in a batch Redis is told of the last hold only, and has the name of an earlier one until then.
	for _, h := range []*hold{g.find(keys.OwnerNamed(field)), g.queue.Holder()} {
		if h != nil && h.holdsAs(field, asked) {
			return h
		}
	}
	return nil
}

// uuidsInUse returns the uuids that this client holds or waits by: the current one, by which it asks next,
// and older ones that holds and places in lines still have. There are none if it neither holds nor waits. By
// them an operator finds the process of a holder or waiter. The current one comes first: if the registrar
// registers only some, that is among them.
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
		field, waits := h.stands()
		add(field)
		for _, p := range waits {
			// A thousand waiters of one key share one line: it is read once.
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

// undoOnOne makes the queue of undos of a client on one deployment. A quorum brings the queues of its nodes.
func (s *session) undoOnOne() {
	s.undos = []*undo.Queue{undo.New(undo.Env{Now: s.now, Go: s.goroutines.Go, Ctx: s.background}, s.settle)}
}

// undo releases the keys of n in the background, for each of fields in turn, wherever that field has them. The
// identities of all fields have been retired. The order matters: a late copy of a rename can turn an earlier
// field into the last one. If the last were released first, a copy that comes between the two would leave it.
// The channel is closed when most nodes have done it, or have given up.
func (s *session) undo(p protocol.Protocol, n undo.Name, fields ...string) (settled <-chan struct{}) {
	n.Field = fields[len(fields)-1]
	n.Release = func(ctx context.Context, opts redisexec.CallOptions, n undo.Name) (out redisexec.Outcome) {
		p := protocol.KeepingUntil(p, s.now, n.KeepUntil)
		for _, field := range fields { // after a failure all are sent again: a release may be repeated
			if _, out = p.Release(ctx, opts, n.Keys, field, make([]int, len(n.Keys.Keys))); out.Err != nil {
				break
			}
		}
		return out
	}
	return undo.Add(n, s.undos...)
}

// settle releases n on the one deployment, and reports whether nothing is left to do about it. It blocks for
// three copies of each command, or for one when the client is being closed. If it fails, the queue of undos calls it
// again after a pause, until the lease is over. A refusal does not settle it, because the missing permission or
// password may come back in time, unless the client is being closed and it is not the first.
func (s *session) settle(n undo.Name) bool {
	// Close waits for undos. It need not do so for a Redis that nothing can be sent to.
	if n.Missed && s.closed() && s.execs[0].Unreachable(s.background, n.Keys.Keys[0]) {
		return true
	}
	out := n.Release(s.background, redisexec.CallOptions{Attempts: 3, Undoes: true, Enough: s.closing}, n)
	// Again nothing could be sent, or Redis has refused it.
	givenUp := out.Err != nil && !out.Ambiguous && n.Missed && s.closed()
	return out.Err == nil || givenUp || redisexec.ForGood(out.Err)
}
