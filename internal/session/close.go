package session

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

// A session is open until Close is called, and closed when Close has returned. In between it goes through these
// steps, one after the other. All of them together take CloseTimeout at most.
//
//	Closing is closed  Waiters see it, and leave with ErrClosed. No hold becomes held from here on: a hold looks
//	                   at it before that. The goroutine that watches the clocks ends.
//	closeHolds         All holds end at once: each here first, then on Redis. A hold that a Lock acquires, or an
//	                   Unlock releases, is left to that call, and waited for.
//	settleRest         Names that are still to be undone have their time.
//	endBackground      What no caller waits for ends: undos give up, nothing more is sent.
//	connections        The executors close. The hub has been closing since the beginning.
//
// Invariants:
//   - Close does not wait for the goroutine that calls it, nor for a call that this goroutine is inside of: a
//     hook may call Close.
//   - The error has each hold that Close ended, and whose release Redis did not confirm. It is put there before
//     Redis is asked. So no answer, however late, can take it from a Close that returns.
//   - Only Close ends Background. So until the last steps an undo is sent as often as it is needed.
//
// What can come late: a Lock that put its hold into a gate after Close had listed them. It finds Closing
// closed before it asks, or at the latest when it is granted: then it gives up its name, and returns
// ErrClosed. And the answer to a release, after the time is up: Close has returned its error by then, though
// the lock may be free.

const (
	// CloseTimeout bounds Close: behind a Redis that does not answer there is nothing to wait for.
	CloseTimeout = 5 * time.Second
	// lastWords is how long before that Close stops asking Redis, so that each hold can still say what it
	// was told.
	lastWords = CloseTimeout / 20
)

// Close ends the session, and returns the errors of the holds that Redis has not heard of. It blocks for
// CloseTimeout at most. Later calls wait for the first, and return the same. But first they say who they are:
// the first call must not wait for a goroutine that waits for it. They wait at a channel: the clock of a
// synctest bubble would stand still while a goroutine waited for a sync.Once.
func (s *Session) Close() error {
	s.excuse(goid.Get())
	if !s.closeCalled.CompareAndSwap(false, true) {
		<-s.closed
		return s.closeErr
	}
	defer close(s.closed)
	s.closeErr = s.end()
	return s.closeErr
}

// end is the first Close.
func (s *Session) end() error {
	close(s.Closing)
	s.Registrar.Close()
	ctx, cancel := context.WithTimeoutCause(context.Background(), CloseTimeout, lockerr.NoAnswerWithin(CloseTimeout))
	defer cancel()
	// Beside the rest: it may be connecting just now, and no hold needs a message any more.
	var hub group.Group
	hub.Go(s.Hub.Close)
	err := s.closeHolds(ctx)
	s.settleRest(ctx)
	s.endBackground(lockerr.Reason(lockerr.ErrClosed))
	// Again: on a quorum a silent minority may have used up the time of the first wait.
	s.Goroutines.Wait(ctx)
	hub.Wait(ctx)
	var execs group.Group
	for _, x := range s.Execs {
		execs.Go(func() { x.Close(ctx) })
	}
	execs.Wait(ctx)
	return err
}

// excuse has Close not wait for the goroutine that calls it. Close would wait for that goroutine only if it
// is in a hook: of a watchdog, of a call of Lock, or of another Close. Each would then wait for the other.
func (s *Session) excuse(caller int64) {
	s.Goroutines.Excuse(caller)
	s.closers.Excuse(caller)
	for _, h := range s.holds() {
		h.Excuse(caller)
	}
}

// settleRest waits for the work in the background: above all for undos. What it does not wait for is not sent
// again, and the lease ends it. A minority of a quorum that does not answer gets the time of one command,
// because most nodes have released the lock, and that is enough.
func (s *Session) settleRest(ctx context.Context) {
	if len(s.Execs) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.Patience)
		defer cancel()
	}
	s.Goroutines.Wait(ctx)
}

// closeHolds ends what is held, and waits for what is being acquired or released. The error names each hold
// that Redis has not heard of when the time is up. All of them end at once. One after the other, a hold whose
// Redis does not answer would take the time from the others.
func (s *Session) closeHolds(ctx context.Context) error {
	const limit = CloseTimeout - lastWords
	asking, cancel := context.WithTimeoutCause(ctx, limit, lockerr.NoAnswerWithin(limit))
	defer cancel()
	var failures failures
	for _, h := range s.holds() {
		s.closers.Go(func() { h.Close(asking, func(err error) { failures.set(h, err) }) })
	}
	s.closers.Wait(ctx)
	return failures.all()
}

// failures are the errors of the holds that Close ends. Each hold has one from its local end until Redis has
// heard of it: so the time-out of Close leaves it there.
type failures struct {
	mu   sync.Mutex
	errs map[Hold]error // written by the goroutines of Close, one for each hold; nil for one that is released
}

// set records what became of h so far; nil: Redis has heard of it. A later call for the same hold replaces what
// the earlier one said.
func (f *failures) set(h Hold, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.errs == nil {
		f.errs = make(map[Hold]error)
	}
	f.errs[h] = err
}

// all returns the errors as they are now. Goroutines that Close has given up may still call set.
func (f *failures) all() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(slices.Collect(maps.Values(f.errs))...)
}
