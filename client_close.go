package relock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/undo"
)

// A session is open until Close is called, and closed when Close has returned. In between it goes through these steps,
// one after the other. All of them together take closeTimeout at most.
//
//	closing is closed  Waiters return ErrClosed. From here on no hold becomes held, because each hold checks closing
//	                   before that. The goroutine that watches the clocks ends.
//	closeHolds         All holds end concurrently: each locally first, then on Redis. If a Lock is acquiring a hold, or
//	                   an Unlock is releasing it, Close leaves the hold to that call and waits for the call.
//	releases           Close waits for the releases of detached holds.
//	settleRest         Close waits until the names that are being undone are released, or the time for that is over.
//	endBackground      The work that no caller waits for ends: undos end, nothing more is sent.
//	connections        The executors close. The hub has been closing since the first step.
//
// Invariants:
//   - Close returns an error in a hook of its client, because it would wait for the call that the hook delays.
//   - The error of Close contains each hold that Close ended and whose release Redis did not confirm. The error is
//     recorded before the release is sent. So it does not depend on how late an answer arrives.
//   - Only Close ends background. So until the last steps an undo is sent as often as necessary.
//
// What can come late: a Lock that registers its hold after Close has listed the holds. It finds closing closed before it
// sends a request, or at the latest when it is granted the lock: then it gives up its name and returns ErrClosed. And an
// answer to a release after the time is over: Close then returns its error, though the lock may be free.

const (
	// closeTimeout bounds Close, which would otherwise wait for a Redis that does not answer.
	closeTimeout = 5 * time.Second
	// closeMargin is how long before the end of closeTimeout the releases end, so that each hold can still record its
	// error.
	closeMargin = closeTimeout / 20
)

// errCloseInHook is the error of a Close that a hook of the same client calls.
var errCloseInHook = fmt.Errorf("%w: Close in a hook of the same client: call it when the hook has returned, or on another goroutine", ErrUnsupported)

// close ends the session, and returns the errors of the holds whose release Redis did not confirm. It blocks for
// closeTimeout at most. Later calls wait for the first call, and return the same error. They wait on a channel, not on a
// sync.Once, because the clock of a synctest bubble stops while a goroutine waits for a sync.Once.
func (s *session) close() error {
	if _, inHook := s.inHook.Load(goroutine.ID()); inHook {
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
		r.start()
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), closeTimeout, lockerr.NoAnswerWithin(closeTimeout))
	defer cancel()
	// The hub closes concurrently, because it may be connecting. No hold needs messages any more.
	var hub goroutine.Group
	hub.Go(s.hub.Close)
	err := s.closeHolds(ctx)
	s.settleRest(ctx)
	s.endBackground(lockerr.Reason(lockerr.ErrClosed))
	// On a quorum, nodes that do not answer may have used up the time of the first wait.
	s.goroutines.Wait(ctx)
	s.checking.Wait(ctx)
	hub.Wait(ctx)
	var execs goroutine.Group
	for _, x := range s.execs {
		execs.Go(func() { x.Close(ctx) })
	}
	execs.Wait(ctx)
	return err
}

// settleRest waits for the work in the background, mainly for undos. An undo that it does not wait for is not sent again;
// its lock ends with the lease. On a quorum, settleRest waits until most nodes have answered an undo, which is enough,
// but at most for the time of one command. After that it waits for the other nodes for as long as answers usually take. So
// the locks are also released on the other nodes that work.
func (s *session) settleRest(ctx context.Context) {
	if len(s.execs) > 1 {
		one, cancel := context.WithTimeout(ctx, s.patience)
		defer cancel()
		undo.Await(one, s.undos...)
		ctx, cancel = context.WithTimeout(ctx, s.usual())
		defer cancel()
	}
	s.goroutines.Wait(ctx)
}

// closeHolds ends all holds in the phase held, and waits for holds that are being acquired or released. The error
// contains each hold whose release is not confirmed when the time is over. The holds end concurrently. Otherwise a hold
// whose Redis does not answer would use up the time of the others.
func (s *session) closeHolds(ctx context.Context) error {
	const limit = closeTimeout - closeMargin
	asking, cancel := context.WithTimeoutCause(ctx, limit, lockerr.NoAnswerWithin(limit))
	defer cancel()
	var failures failures
	var closers goroutine.Group
	for _, h := range s.registry.all() {
		h.endLingering()
		closers.Go(func() { h.close(asking, func(err error) { failures.set(h, err) }) })
	}
	closers.Wait(ctx)
	s.releases.Wait(asking)
	return lockerr.Join(failures.all(), s.failed.err(s.releases.Len()))
}

// failedReleases are the releases of detached holds that failed. No Unlock returned these errors.
type failedReleases struct {
	mu   sync.Mutex
	n    int
	last error
}

// noteRelease records the result of the release of a detached hold.
func (s *session) noteRelease(err error) {
	if err == nil {
		return
	}
	f := &s.failed
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n, f.last = f.n+1, err
}

// err returns the error of Close for releases that failed, or are still pending.
func (f *failedReleases) err(pending int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case pending > 0:
		return fmt.Errorf("WithAsyncUnlock or WithLinger: %d hold(s) released locally, but not confirmed by Redis; the keys may remain until their leases end: %w", pending, lockerr.NoAnswerWithin(closeTimeout))
	case f.n > 0:
		return fmt.Errorf("WithAsyncUnlock or WithLinger: the releases of %d hold(s) failed after the call that ended them had returned; the last one: %w", f.n, f.last)
	default:
		return nil
	}
}

// failures are the errors of the holds that Close ends. A hold has an error from its local end until Redis confirms the
// release. So after the time-out of Close the error is still there.
type failures struct {
	mu   sync.Mutex
	errs map[*hold]error // written by the goroutines of Close, one for each hold; nil for one that is released
}

// set records the error of h; nil: Redis confirmed the release. A later call for the same hold replaces the error.
func (f *failures) set(h *hold, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.errs == nil {
		f.errs = make(map[*hold]error)
	}
	f.errs[h] = err
}

// all returns the current errors. Goroutines that Close no longer waits for may still call set.
func (f *failures) all() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(slices.Collect(maps.Values(f.errs))...)
}

// close ends a hold because the client is closed, and blocks until Redis answers or ctx ends. The Locks stay open; their
// Unlocks have no effect. close calls failed twice: before it sends the release, with the error that the release is not
// confirmed, and then with the result. If another call ends the hold, close does not call failed.
func (h *hold) close(ctx context.Context, failed func(error)) {
	if !h.endForClose(ctx) {
		return
	}
	h.mu.Lock()
	event, hooks := h.event(h.session.now().Since(h.lease.Acquired()), nil), h.hooks()
	failed(lockerr.Wrap("close", event.Name, h.unconfirmed(lockerr.NoAnswerWithin(closeTimeout))))
	h.mu.Unlock()

	event.Err = lockerr.Wrap("close", event.Name, h.finish(ctx, h.settings))
	failed(event.Err)
	h.mu.Lock()
	h.setPhase(lost)
	unlocked := len(h.locks.open) == 0 // unlocked meanwhile, so no Unlock will unregister h
	h.mu.Unlock()
	if unlocked {
		h.unregister()
	}
	h.session.report("Released", hooks.Released, h.owner, event)
}

// endForClose ends a hold locally, as soon as no Lock is acquiring it and no Unlock is releasing it. It returns false if
// there is nothing to release, or if another call ends the hold and returns its result.
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
