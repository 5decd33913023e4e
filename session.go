package relock

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/batch"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/gate"
	"github.com/relock-go/relock/internal/goid"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/undo"
	"github.com/relock-go/relock/internal/wake"
)

// hubConfig suits waiters that poll all the same: a deaf connection costs a safety poll, so
// it is examined rarely, and when a poll found out what a message should have told.
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

// session is what the holds of one client share: who they are on Redis, what they reach it by, which
// of them there are, and the goroutines that work for them. It ends with Close.
type session struct {
	now      clock.Clock
	patience time.Duration    // with one copy of a command
	limits   redisexec.Limits // of calls of Unlock
	// scattered says that other processes may hear of a release at nodes of the Cluster where
	// Redis does not count them.
	scattered bool

	// What follows is of the one deployment, or of each node of a quorum.
	execs []*redisexec.Executor
	undos []*undo.Queue

	hub      hub
	attempts acquire.Env
	registry *acquire.Registry

	identities *identity.Source

	// goroutines are the watchdogs that are awake, the one that watches the clocks, the
	// acquirers of fixed owners, and those that clean up.
	goroutines group.Group
	// closers are those of Close, one for each hold.
	closers group.Group
	// background is the context of cleaning up. It ends last.
	background    context.Context
	endBackground context.CancelCauseFunc

	closing   chan struct{} // closed by Close, first of all
	closeOnce sync.Once
	closeErr  error
}

// hub has waiters woken by messages: a *wake.Hub, *wake.Shards, or a *wake.Majority.
type hub interface {
	Subscribe(channel string, wake func()) *wake.Subscription
	Suspect(channel string)
	Missed(channel string)
	Close()
}

// messageHub is a hub for those who read the messages.
type messageHub interface {
	hub
	SubscribeTo(channel string, wake func(), message func(payload string)) *wake.Subscription
	Rejoin(channel string, wake func(), message func(payload string)) *wake.Subscription
	Uses(channel string) bool
}

// newSession returns a session on these deployments, whose waiters are woken by hub.
func newSession(rdbs []redis.UniversalClient, hub hub, s clientSettings, scattered bool, now clock.Clock) *session {
	c := &session{
		now:        now,
		patience:   redisexec.PatienceFor(s.TTL),
		scattered:  scattered,
		hub:        hub,
		registry:   gate.NewRegistry[acquire.Hold](hub),
		identities: identity.NewSource(),
		closing:    make(chan struct{}),
	}
	for _, rdb := range rdbs {
		x := redisexec.New(rdb, now, s.TTL)
		x.Unpipelined = !s.pipelined
		c.execs = append(c.execs, x)
	}
	c.background, c.endBackground = context.WithCancelCause(context.Background())
	c.attempts.Now, c.attempts.Patience, c.attempts.Identities = now, c.patience, c.identities
	c.attempts.Closing, c.attempts.Hub = c.closing, hub
	c.attempts.Holder = func(t *keys.Set, i int, field string) acquire.Hold {
		if h := c.holder(t, i, field, clock.Instant{}); h != nil {
			return h
		}
		return nil
	}
	started := now() // before the goroutine, which may run much later
	c.goroutines.Go(func() { clock.Watch(c.closing, now, started, c.clocksMoved) })
	return c
}

func (c *session) isClosed() bool { return group.Closed(c.closing) }

// gateOf is what the gate of key i of t is found by.
func gateOf(t *keys.Set, i int) gate.ID { return gate.ID{Key: t.Keys[i], Side: t.Side} }

// holds returns all holds of the client.
func (c *session) holds() []*hold {
	var holds []*hold
	for _, x := range c.registry.All() {
		holds = append(holds, asHold(x))
	}
	return holds
}

// holder returns the hold of this client that has field on key i of t, as Redis said when it was
// asked, or nil.
func (c *session) holder(t *keys.Set, i int, field string, asked clock.Instant) *hold {
	id := gateOf(t, i)
	if id.Side != keys.Alone {
		id.Side = keys.SideOf(field) // of whichever a handle is
	}
	g := c.registry.Gate(id)
	if g == nil {
		return nil
	}
	if h := asHold(g.Find(keys.OwnerNamed(field))); h != nil && h.holdsAs(field, asked) {
		return h
	}
	if h := asHold(g.Queue.Holder()); h != nil && h.holdsAs(field, asked) { // by a name of its batch
		return h
	}
	return nil
}

// batchEnv is what batches of a kind of lock need of c.
func (c *session) batchEnv(rename batch.Renamer) *batch.Env {
	return &batch.Env{
		Now: c.now, Patience: c.patience, Background: c.background, Go: c.goroutines.Go, Retire: c.identities.Retire, Rename: rename,
	}
}

// undoEnv is what undos need of c.
func (c *session) undoEnv() undo.Env {
	return undo.Env{Now: c.now, Go: c.goroutines.Go, Ctx: c.background}
}

// undo has the keys of t released for a field in the background, wherever it holds them, and before it
// for those of which a late copy could make it that one. unobserved: no one can have waited for that.
// The channel is closed when most nodes have done it.
func (c *session) undo(p protocol.Protocol, t *keys.Set, until clock.Instant, unobserved bool, fields ...string) (settled <-chan struct{}) {
	release := func(ctx context.Context, opts redisexec.CallOptions, n undo.Name) (out redisexec.Outcome) {
		for _, field := range fields {
			if _, out = p.Release(ctx, opts, n.Keys, field, make([]int, len(n.Keys.Keys))); out.Err != nil {
				break
			}
		}
		return out
	}
	return undo.Add(undo.Name{Keys: t, Field: fields[len(fields)-1], Until: until, Unobserved: unobserved, Release: release}, c.undos...)
}

// settle releases n on the one deployment. A refusal does not settle it: what is missing, a
// permission or a password, may come back in time. Once the client is being closed, it does not
// wait for a Redis to come back that nothing can be sent to.
func (c *session) settle(n undo.Name) bool {
	if n.Missed && c.isClosed() && c.execs[0].Unreachable(c.background, n.Keys.Keys[0]) {
		return true
	}
	out := n.Release(c.background, redisexec.CallOptions{Attempts: 1, Undoes: true}, n)
	return out.Err == nil || redisexec.ForGood(out.Err)
}

const (
	// closeTimeout bounds Close: behind a Redis that does not answer there is nothing to wait for.
	closeTimeout = 5 * time.Second
	// lastWords is how long before that Close stops asking Redis, so that each hold can still say
	// what it was told.
	lastWords = closeTimeout / 20
)

// close ends the session: see Client.Close.
func (c *session) close() error {
	c.excuse(goid.Get())
	c.closeOnce.Do(func() {
		close(c.closing)
		ctx, cancel := context.WithTimeoutCause(context.Background(), closeTimeout, lockerr.NoAnswerWithin(closeTimeout))
		defer cancel()
		var hub group.Group
		hub.Go(c.hub.Close) // which may be caught in connecting
		c.closeErr = c.closeHolds(ctx)
		c.settleRest(ctx)
		c.endBackground(lockerr.Reason(ErrClosed))
		c.goroutines.Wait(ctx)
		hub.Wait(ctx)
		var execs group.Group
		for _, x := range c.execs {
			execs.Go(func() { x.Close(ctx) })
		}
		execs.Wait(ctx)
	})
	return c.closeErr
}

// excuse has Close not wait for the goroutine that calls it, which is in a hook if it is one of
// those that Close waits for: of a watchdog, of a call of Lock, or of another Close.
func (c *session) excuse(caller int64) {
	c.goroutines.Excuse(caller)
	c.closers.Excuse(caller)
	for _, h := range c.holds() {
		h.mu.Lock()
		if h.owner.Goroutine == caller || h.acquirer == caller {
			h.excused = true
			h.tellChange()
		}
		h.mu.Unlock()
	}
}

// settleRest waits for what is under way in the background. A minority that does not answer
// is given as long as one command is.
func (c *session) settleRest(ctx context.Context) {
	if len(c.execs) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.patience)
		defer cancel()
	}
	c.goroutines.Wait(ctx)
}

// closeHolds ends what is held, and waits for what is being acquired or released. A hold that
// Redis has not heard of when the time is up is in the error.
func (c *session) closeHolds(ctx context.Context) error {
	asking, cancel := context.WithTimeoutCause(ctx, closeTimeout-lastWords, lockerr.NoAnswerWithin(closeTimeout-lastWords))
	defer cancel()
	var failures failures
	for _, h := range c.holds() {
		c.closers.Go(func() { h.close(asking, &failures) })
	}
	c.closers.Wait(ctx)
	return failures.all()
}

// failures are what became of holds that Close has ended: each has its error from when it was
// ended here until Redis has heard of it.
type failures struct {
	mu   sync.Mutex
	errs map[*hold]error
}

// set records what became of h so far; nil: Redis has heard of it.
func (f *failures) set(h *hold, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.errs == nil {
		f.errs = make(map[*hold]error)
	}
	f.errs[h] = err
}

func (f *failures) all() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(slices.Collect(maps.Values(f.errs))...)
}

// close ends a hold because the client is closed. Its levels are left to be unlocked, to
// no effect.
func (h *hold) close(ctx context.Context, failures *failures) {
	if !h.endForClose(ctx) {
		return
	}
	h.mu.Lock()
	event, hooks := h.event(h.session.now().Since(h.lease.Acquired()), nil), *h.hooks()
	failures.set(h, wrap("close", event.Name, h.unheard(lockerr.NoAnswerWithin(closeTimeout))))
	h.mu.Unlock()

	h.batch.HolderEnds()
	if h.take(ctx) {
		err := h.giveBack(ctx, h.settings, false)
		h.batch.End(err)
		event.Err = wrap("close", event.Name, err)
		h.free()
	} else {
		event.Err = wrap("close", event.Name, h.abandon(lockerr.Ended(ctx)))
	}
	failures.set(h, event.Err)
	h.mu.Lock()
	h.setPhase(lost)
	unclaimed := len(h.levels) == 0
	h.mu.Unlock()
	if unclaimed {
		h.unregister()
	}
	report(hooks.Released, h.owner, event)
}

// endForClose ends a hold here, when it is not being acquired or released any more. false: there is
// nothing to be released, or another call is at it, and reports what becomes of it.
func (h *hold) endForClose(ctx context.Context) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ctx.Err() == nil && (h.phase == ending || h.phase == acquiring && !h.excused) {
		changed := h.changes()
		h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		h.mu.Lock()
	}
	if h.phase != held {
		return false
	}
	h.end(ending, ErrClosed)
	return true
}
