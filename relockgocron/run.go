package relockgocron

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/relock-go/relock"
)

// hold is what a run is under: a lock, or a *relock.Permit.
type hold interface {
	Context(ctx context.Context) context.Context
	Deadline() (time.Time, bool)
	Release() error
}

// lock is a Mutex of an owner of its own.
type lock struct{ *relock.Mutex }

func (l lock) Release() error { return l.Unlock() }

// run is one run of a job, from Lock to Unlock.
type run struct {
	job       string
	hold      hold
	keptUntil time.Time
	goroutine string
	among     *runs
}

// Unlock releases the lock: in the background when the time of KeepFor is over, or at once if it is over.
// It ignores ctx, which has ended when the scheduler shuts down. gocron drops its error;
// Hooks.Lost and Hooks.Released of the Client report it.
func (r *run) Unlock(context.Context) error {
	if !r.among.end(r) {
		return fmt.Errorf("relockgocron: unlock %q: %w: it was unlocked before", r.job, relock.ErrNotHeld)
	}
	if _, held := r.hold.Deadline(); held {
		if left := time.Until(r.keptUntil); left > 0 {
			time.AfterFunc(left, func() { _ = r.hold.Release() })
			return nil
		}
	}
	return r.hold.Release()
}

// under runs work with a context that ends with ctx, with h, or with work: a hold may
// last longer, and keeps the contexts that have not ended.
func under(ctx context.Context, name string, h hold, work func(ctx context.Context) error) error {
	if ctx == nil || work == nil {
		return fmt.Errorf("relockgocron: do %q: %w: the context or the function is nil", name, relock.ErrInvalidOption)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	held := h.Context(ctx)
	if held.Err() != nil {
		return context.Cause(held)
	}
	err := work(held)
	if held.Err() == nil || errors.Is(err, relock.ErrLost) {
		return err
	}
	if cause := context.Cause(held); errors.Is(cause, relock.ErrLost) {
		return errors.Join(err, cause)
	}
	return err
}

// runs are the runs in progress. gocron does not pass the result of Lock to the task, but calls both on
// one goroutine, by which the task finds its run. Both get the context of the job. It does not identify
// a run: after a loss a job may have two.
type runs struct {
	mu  sync.Mutex
	all map[string]*run // by the number of the goroutine
}

// begin adds a run of job on the calling goroutine, under h.
func (s *runs) begin(job string, h hold, keptUntil time.Time) *run {
	r := &run{job: job, hold: h, keptUntil: keptUntil, goroutine: goroutine(), among: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[string]*run)
	}
	s.all[r.goroutine] = r
	return r
}

// current returns the run of the calling goroutine, or nil.
func (s *runs) current() *run {
	id := goroutine()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

// end drops r; false: that was done before.
func (s *runs) end(r *run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[r.goroutine] != r {
		return false
	}
	delete(s.all, r.goroutine)
	return true
}

// goroutine returns the number of the calling goroutine, with which a stack trace begins: "goroutine
// 17 [". To make one takes some microseconds, which a run has.
func goroutine() string {
	var buf [64]byte
	_, trace, _ := bytes.Cut(buf[:runtime.Stack(buf[:], false)], []byte("goroutine "))
	number, _, _ := bytes.Cut(trace, []byte(" "))
	return string(number)
}
