package relock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/goid"
	"github.com/relock-go/relock/internal/group"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/undo"
)

// A session is open until Close is called, and closed when Close has returned. In between it goes through these
// steps, one after the other. All of them together take closeTimeout at most.
//
//	closing is closed  Waiters see it, and leave with ErrClosed. No hold becomes held from here on: a hold looks
//	                   at it before that. The goroutine that watches the clocks ends.
//	closeHolds         All holds end at once: each here first, then on Redis. A hold that a Lock acquires, or an
//	                   Unlock releases, is left to that call, and waited for.
//	settleRest         Names that are still to be undone have their time.
//	endBackground      What no caller waits for ends: undos give up, nothing more is sent.
//	connections        The executors close. The hub has been closing since the beginning.
//
// Invariants:
//   - Close refuses to run in a hook: it would wait for the call that the hook delays.
//   - The error has each hold that Close ended, and whose release Redis did not confirm. It is put there before
//     Redis is asked. So no answer, however late, can take it from a Close that returns.
//   - Only Close ends background. So until the last steps an undo is sent as often as it is needed.
//
// What can come late: a Lock that put its hold into a gate after Close had listed them. It finds closing
// closed before it asks, or at the latest when it is granted: then it gives up its name, and returns
// ErrClosed. And the answer to a release, after the time is up: Close has returned its error by then, though
// the lock may be free.

const (
	// closeTimeout bounds Close: behind a Redis that does not answer there is nothing to wait for.
	closeTimeout = 5 * time.Second
	// lastWords is how long before that Close stops asking Redis, so that each hold can still say what it
	// was told.
	lastWords = closeTimeout / 20
)

// errCloseInHook is the error of a Close that a hook of the same client calls.
var errCloseInHook = fmt.Errorf("%w: Close in a hook of the same client: call it when the hook has returned, or on another goroutine", ErrUnsupported)

// close ends the session, and returns the errors of the holds that Redis has not heard of. It blocks for
// closeTimeout at most. Later calls wait for the first, and return the same. They wait at a channel: the clock of a
// synctest bubble would stand still while a goroutine waited for a sync.Once.
func (s *session) close() error {
	if _, inHook := s.inHook.Load(goid.Get()); inHook {
		return errCloseInHook
	}
	if !s.closeCalled.CompareAndSwap(false, true) {
		<-s.over
		return s.closeErr
	}
	defer close(s.over)
	s.closeErr = s.end()
	return s.closeErr
}

// end is the first Close.
func (s *session) end() error {
	close(s.closing)
	for _, r := range s.registrars {
		r.Close()
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), closeTimeout, lockerr.NoAnswerWithin(closeTimeout))
	defer cancel()
	// Beside the rest: it may be connecting just now, and no hold needs a message any more.
	var hub group.Group
	hub.Go(s.hub.Close)
	err := s.closeHolds(ctx)
	s.settleRest(ctx)
	s.endBackground(lockerr.Reason(lockerr.ErrClosed))
	// Again: on a quorum a silent minority may have used up the time of the first wait.
	s.goroutines.Wait(ctx)
	hub.Wait(ctx)
	var execs group.Group
	for _, x := range s.execs {
		execs.Go(func() { x.Close(ctx) })
	}
	execs.Wait(ctx)
	return err
}

// moment is how long Close waits for the other nodes of a quorum when most have answered: as long as answers usually
// take. So nodes that are well are rid of the locks, too.
func (s *session) moment() time.Duration {
	if s.usual == nil {
		return 0
	}
	return s.usual()
}

// settleRest waits for the work in the background: above all for undos. What it does not wait for is not sent
// again, and the lease ends it. On a quorum an undo is waited for, for the time of one command, until most nodes have
// settled it, because that is enough. A minority that does not answer gets no more than a moment.
func (s *session) settleRest(ctx context.Context) {
	if len(s.execs) > 1 {
		one, cancel := context.WithTimeout(ctx, s.patience)
		defer cancel()
		undo.Await(one, s.undos...)
		ctx, cancel = context.WithTimeout(ctx, s.moment())
		defer cancel()
	}
	s.goroutines.Wait(ctx)
}

// closeHolds ends what is held, and waits for what is being acquired or released. The error names each hold
// that Redis has not heard of when the time is up. All of them end at once. One after the other, a hold whose
// Redis does not answer would take the time from the others.
func (s *session) closeHolds(ctx context.Context) error {
	const limit = closeTimeout - lastWords
	asking, cancel := context.WithTimeoutCause(ctx, limit, lockerr.NoAnswerWithin(limit))
	defer cancel()
	var failures failures
	for _, h := range s.registry.all() {
		s.closers.Go(func() { h.close(asking, func(err error) { failures.set(h, err) }) })
	}
	s.closers.Wait(ctx)
	return failures.all()
}

// failures are the errors of the holds that Close ends. Each hold has one from its local end until Redis has
// heard of it: so the time-out of Close leaves it there.
type failures struct {
	mu   sync.Mutex
	errs map[*hold]error // written by the goroutines of Close, one for each hold; nil for one that is released
}

// set records what became of h so far; nil: Redis has heard of it. A later call for the same hold replaces what
// the earlier one said.
func (f *failures) set(h *hold, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.errs == nil {
		f.errs = make(map[*hold]error)
	}
	f.errs[h] = err
}

// all returns the errors as they are now. Goroutines that Close has given up may still call set.
func (f *failures) all() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(slices.Collect(maps.Values(f.errs))...)
}

// close ends a hold because the client is closed, and blocks until Redis has answered, or ctx ends. Its levels are left
// to be unlocked, to no effect. It calls failed twice: before it asks Redis, with the error that Redis has not heard
// of the end, and then with what Redis said. If another call ends the hold, it does not call failed at all.
func (h *hold) close(ctx context.Context, failed func(error)) {
	if !h.endForClose(ctx) {
		return
	}
	h.mu.Lock()
	event, hooks := h.event(h.session.now().Since(h.lease.Acquired()), nil), *h.hooks()
	failed(lockerr.Wrap("close", event.Name, h.unconfirmed(lockerr.NoAnswerWithin(closeTimeout))))
	h.mu.Unlock()

	h.endBatch(ctx)
	if h.slot.take(ctx) {
		err := h.giveBack(ctx, h.settings, false)
		h.batch.end(err)
		event.Err = lockerr.Wrap("close", event.Name, err)
		h.slot.free()
	} else {
		event.Err = lockerr.Wrap("close", event.Name, h.abandon(lockerr.Ended(ctx)))
	}
	failed(event.Err)
	h.mu.Lock()
	h.setPhase(lost)
	unlocked := len(h.levels.open) == 0 // meanwhile, so no Unlock will unregister it
	h.mu.Unlock()
	if unlocked {
		h.unregister()
	}
	h.session.report("Released", hooks.Released, h.owner, event)
}

// endForClose ends a hold here, as soon as no Lock acquires it and no Unlock releases it. false: there is nothing
// to be released, or another call is at it, and reports what becomes of it.
func (h *hold) endForClose(ctx context.Context) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ctx.Err() == nil && (h.phase == ending || h.phase == acquiring) {
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

// nameAndEntries returns the name that Redis knows h by, and the places in lines where it waits.
func (h *hold) nameAndEntries() (field string, waits []place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase == acquiring && h.kind.lined != nil {
		waits = h.places
	}
	return h.name.Field, waits
}
