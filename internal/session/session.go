// Package session has what the holds of one client share: who they are on Redis, the connections and
// messages that they use, which of them there are, and the goroutines that work for them.
//
// A session begins with its client, has one goroutine that watches the clocks, and ends with Close. It knows
// a hold by the few methods of [Hold], and no kind of lock.
//
//   - session.go has what is shared, the search for a hold by its name on Redis, and undos.
//   - close.go has how a session ends, step by step.
//
// Invariants:
//   - A name is undone only after its identity was retired: nothing is acquired by it any more.
//   - Every goroutine of the library belongs to Goroutines, to a hub, or to an executor: Close waits for it.
//   - Background ends when Close has given what is to be undone its time. Only the connections end later.
package session

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/batch"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/gate"
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

// HubConfig suits waiters that also poll. A connection that is deaf costs them one safety poll, and no more. So
// it is examined rarely, and when a poll finds out what a message should have told.
var HubConfig = wake.Config{
	PingInterval:  30 * time.Second,
	PongTimeout:   time.Second,
	AnswerTimeout: 10 * time.Second,
	Linger:        time.Second,
	RefusalRetry:  time.Minute,
	MinBackoff:    20 * time.Millisecond,
	MaxBackoff:    2 * time.Second,
	CloseTimeout:  CloseTimeout,
}

// Hub wakes waiters by messages: a *wake.Hub, *wake.Shards, or a *wake.Majority.
type Hub interface {
	Subscribe(channel string, wake func()) *wake.Subscription
	Suspect(channel string)
	Missed(channel string)
	Close()
}

// MessageHub is a hub for those that read the messages: the lines of one deployment.
type MessageHub interface {
	Hub
	line.Hub
	// Uses reports whether messages of a channel reach this process, or did only just now.
	Uses(channel string) bool
}

// Hold is what a session knows of one owner's use of its keys.
type Hold interface {
	acquire.Hold

	// ClocksMoved has it look at its deadline: the two clocks have moved apart.
	ClocksMoved()
	// HoldsAs reports whether it holds its keys by the name field, as far as Redis knew when it was asked. In a
	// batch Redis may still have the name of an earlier hold.
	HoldsAs(field string, asked clock.Instant) bool
	// Stands returns the name that Redis knows it by, and the places in lines where it waits.
	Stands() (field string, waits []acquire.Place)
	// Excuse has Close not wait for it if the goroutine caller, which is in Close, acquires it.
	Excuse(caller int64)
	// Close ends it, and blocks until Redis has answered, or ctx ends. It calls failed twice: before it asks
	// Redis, with the error that Redis has not heard of the end, and then with what Redis said. If another call
	// ends the hold, it does not call failed at all.
	Close(ctx context.Context, failed func(error))
}

// Options are those of a client that its session needs.
type Options struct {
	TTL       time.Duration
	Pipelined bool // commands share go-redis' automatic pipeline
	Registers bool // the client tells Redis of its process
	// Scattered says that other processes may listen at nodes of a Cluster where Redis does not count them.
	Scattered bool
}

// Session is what the holds of one client share. Its fields do not change after New, except Undos and
// Attempts.Uses, which the client sets before its first lock. So they are read without a mutex. What changes is
// inside of them, and each minds its own concurrency.
type Session struct {
	Now      clock.Clock
	Patience time.Duration    // with one copy of a command
	Limits   redisexec.Limits // of calls of Unlock
	Options  Options

	// Execs and Undos belong to the one deployment, or to each node of a quorum.
	Execs []*redisexec.Executor
	Undos []*undo.Queue

	Hub        Hub
	Attempts   acquire.Env
	Registry   *acquire.Registry
	Identities *identity.Source
	Registrar  *presence.Registrar // nil: the client does not register

	// Goroutines are the watchdogs that are awake, the one that watches the clocks, and those that undo. What runs in one of them ends soon after Closing or Background has: else
	// Close would take its whole time.
	Goroutines group.Group
	// Background is the context of what no caller waits for: undos, and commands to the nodes of a quorum.
	// Close alone ends it, after both have had their time.
	Background    context.Context
	endBackground context.CancelCauseFunc

	Closing     chan struct{} // closed by Close, first of all
	closers     group.Group   // the goroutines of Close, one for each hold
	closeCalled atomic.Bool
	closed      chan struct{} // closed when the first Close is over
	closeErr    error
}

// New returns a session on these deployments, whose waiters are woken by hub. It asks Redis nothing, and starts
// one goroutine, which ends with Close.
func New(rdbs []redis.UniversalClient, hub Hub, o Options, now clock.Clock) *Session {
	s := &Session{
		Now:        now,
		Patience:   redisexec.PatienceFor(o.TTL),
		Options:    o,
		Hub:        hub,
		Registry:   gate.NewRegistry[acquire.Hold](hub),
		Identities: identity.NewSource(),
		Closing:    make(chan struct{}),
		closed:     make(chan struct{}),
	}
	for _, rdb := range rdbs {
		x := redisexec.New(rdb, now, o.TTL)
		x.Unpipelined = !o.Pipelined
		s.Execs = append(s.Execs, x)
	}
	s.Background, s.endBackground = context.WithCancelCause(context.Background())
	s.Attempts.Now, s.Attempts.Patience, s.Attempts.Identities = now, s.Patience, s.Identities
	s.Attempts.Closing, s.Attempts.Hub = s.Closing, hub
	s.Attempts.Holder = func(t *keys.Set, i int, field string) acquire.Hold {
		if h := s.Holder(t, i, field, clock.Instant{}); h != nil {
			return h
		}
		return nil
	}
	if o.Registers {
		env := presence.Env{Now: now, Go: s.Goroutines.Go, Ctx: s.Background, Closing: s.Closing, Names: s.uuidsInUse}
		s.Registrar = presence.New(env, s.Execs)
	}
	started := now() // not in the goroutine, which may run much later: a jump before that would not be seen
	s.Goroutines.Go(func() { clock.Watch(s.Closing, now, started, s.clocksMoved) })
	return s
}

// Closed reports whether Close has been called. It may not have ended any hold yet.
func (s *Session) Closed() bool { return group.Closed(s.Closing) }

// holds returns all holds of the client at this moment, each once, though it has several keys: those that are
// being acquired, that are held, and that end. Others may come, and these may go, while the caller looks at
// them.
func (s *Session) holds() []Hold {
	var holds []Hold
	for _, x := range s.Registry.All() {
		holds = append(holds, x.(Hold))
	}
	return holds
}

// clocksMoved has every hold look at its deadline. When the machine slept, leases on Redis went on, but the
// monotonic clock, by which timers run, stood still: without this a watchdog would wake too late. A wall clock
// that was set looks the same from here.
func (s *Session) clocksMoved() {
	for _, h := range s.holds() {
		h.ClocksMoved()
	}
}

// GateOf returns the id of the gate of key i of t. The two sides of a read-write lock have a gate each, because
// each side has waiters of its own.
func GateOf(t *keys.Set, i int) gate.ID { return gate.ID{Key: t.Keys[i], Side: t.Side} }

// Holder returns the hold of this client that has field on key i of t, as Redis said when it was asked; or
// nil: it is another client's, or it has ended here since. The field tells the side of a read-write lock,
// whichever side t is of.
func (s *Session) Holder(t *keys.Set, i int, field string, asked clock.Instant) Hold {
	id := GateOf(t, i)
	if id.Side != keys.Alone {
		id.Side = keys.SideOf(field)
	}
	g := s.Registry.Gate(id)
	if g == nil {
		return nil
	}
	// The owner's hold may have this name. Or the hold in front of the queue has it, though its owner is
	// another: in a batch Redis is told of the last hold only, and has the name of an earlier one until then.
	for _, x := range []acquire.Hold{g.Find(keys.OwnerNamed(field)), g.Queue.Holder()} {
		if h, is := x.(Hold); is && h.HoldsAs(field, asked) {
			return h
		}
	}
	return nil
}

// uuidsInUse returns the uuids that this client holds or waits by: the current one, by which it asks next,
// and older ones that holds and places in lines still have. There are none if it neither holds nor waits. By
// them an operator finds the process of a holder or waiter. The current one comes first: if the registrar
// registers only some, that is among them.
func (s *Session) uuidsInUse() []string {
	holds := s.holds()
	if len(holds) == 0 {
		return nil
	}
	all := []string{string(*s.Identities.Current())}
	add := func(field string) {
		if id := keys.ClientOf(field); field != "" && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	seen := make(map[*acquire.Gate]bool)
	for _, h := range holds {
		field, waits := h.Stands()
		add(field)
		for _, p := range waits {
			// A thousand waiters of one key share one line: it is read once.
			if seen[p.Gate] {
				continue
			}
			seen[p.Gate] = true
			for _, e := range p.Gate.Line().Waiting() {
				add(e.Field)
			}
		}
	}
	return all
}

// BatchEnv is what the batches of a kind of lock need.
func (s *Session) BatchEnv(rename batch.Renamer) *batch.Env {
	return &batch.Env{
		Now: s.Now, Patience: s.Patience, Background: s.Background, Go: s.Goroutines.Go, Retire: s.Identities.Retire, Rename: rename,
	}
}

// UndoOnOne makes the queue of undos of a client on one deployment. A quorum brings the queues of its nodes.
func (s *Session) UndoOnOne() {
	s.Undos = []*undo.Queue{undo.New(undo.Env{Now: s.Now, Go: s.Goroutines.Go, Ctx: s.Background}, s.settle)}
}

// Undo releases the keys of n in the background, for each of fields in turn, wherever that field has them. The
// identities of all fields have been retired. The order matters: a late copy of a rename can turn an earlier
// field into the last one. If the last were released first, a copy that comes between the two would leave it.
// The channel is closed when most nodes have done it, or have given up.
func (s *Session) Undo(p protocol.Protocol, n undo.Name, fields ...string) (settled <-chan struct{}) {
	n.Field = fields[len(fields)-1]
	n.Release = func(ctx context.Context, opts redisexec.CallOptions, n undo.Name) (out redisexec.Outcome) {
		p := protocol.KeepingUntil(p, s.Now, n.KeepUntil)
		for _, field := range fields { // after a failure all are sent again: a release may be repeated
			if _, out = p.Release(ctx, opts, n.Keys, field, make([]int, len(n.Keys.Keys))); out.Err != nil {
				break
			}
		}
		return out
	}
	return undo.Add(n, s.Undos...)
}

// settle releases n on the one deployment, and reports whether nothing is left to do about it. It blocks for
// three copies of each command, or for one when the client is being closed. If it fails, the queue of undos calls it again after a pause, until the lease is
// over. A refusal does not settle it: the missing permission or password may come back in time.
func (s *Session) settle(n undo.Name) bool {
	// Close waits for undos. It need not do so for a Redis that nothing can be sent to.
	if n.Missed && s.Closed() && s.Execs[0].Unreachable(s.Background, n.Keys.Keys[0]) {
		return true
	}
	out := n.Release(s.Background, redisexec.CallOptions{Attempts: 3, Undoes: true, Enough: s.Closing}, n)
	return out.Err == nil || redisexec.ForGood(out.Err)
}
