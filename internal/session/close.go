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

// How a session ends: waiters are told first, then each hold ends by itself, then what is left to undo has its
// time, and the connections go last. All of it together takes CloseTimeout at most.

const (
	// CloseTimeout bounds Close: behind a Redis that does not answer there is nothing to wait for.
	CloseTimeout = 5 * time.Second
	// lastWords is how long before that Close stops asking Redis, so that each hold can still say what it
	// was told.
	lastWords = CloseTimeout / 20
)

// Close ends the session, and returns the errors of the holds that Redis has not heard of. Later calls wait for
// the first, and return the same. They wait at a channel: the clock of a synctest bubble would stand still while a
// goroutine waited for a sync.Once.
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
	var hub group.Group
	hub.Go(s.Hub.Close) // which may be connecting just now
	err := s.closeHolds(ctx)
	s.settleRest(ctx)
	s.endBackground(lockerr.Reason(lockerr.ErrClosed))
	s.Goroutines.Wait(ctx)
	hub.Wait(ctx)
	var execs group.Group
	for _, x := range s.Execs {
		execs.Go(func() { x.Close(ctx) })
	}
	execs.Wait(ctx)
	return err
}

// excuse has Close not wait for the goroutine that calls it. If Close waits for that one, it is in a hook: of a
// watchdog, of a call of Lock, or of another Close.
func (s *Session) excuse(caller int64) {
	s.Goroutines.Excuse(caller)
	s.closers.Excuse(caller)
	for _, h := range s.holds() {
		h.Excuse(caller)
	}
}

// settleRest waits for the work in the background. A minority of a quorum that does not answer gets the time of
// one command.
func (s *Session) settleRest(ctx context.Context) {
	if len(s.Execs) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.Patience)
		defer cancel()
	}
	s.Goroutines.Wait(ctx)
}

// closeHolds ends what is held, and waits for what is being acquired or released. The error names each hold that
// Redis has not heard of when the time is up.
// All end at once, so that one that does not answer takes no time from the others.
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

// failures are the errors of the holds that Close ends. Each has one from its local end until Redis has heard of
// it: so the time-out of Close leaves it there.
type failures struct {
	mu   sync.Mutex
	errs map[Hold]error
}

// set records what became of h so far; nil: Redis has heard of it.
// A later word on the same hold replaces the earlier one.
func (f *failures) set(h Hold, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.errs == nil {
		f.errs = make(map[Hold]error)
	}
	f.errs[h] = err
}

func (f *failures) all() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(slices.Collect(maps.Values(f.errs))...)
}
