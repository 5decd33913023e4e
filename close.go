package relock

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/goid"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/lockerr"
)

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
	for _, h := range c.registry.All() {
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
	for _, h := range c.registry.All() {
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

	if h.take(ctx) {
		event.Err = wrap("close", event.Name, h.giveBack(ctx, h.settings, false))
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
	report(hooks.Released, event)
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
