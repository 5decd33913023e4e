package relockgocron

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/relock-go/relock"
)

// ErrHeldElsewhere is returned by [Locker.Lock] if another run has the lock of the job, on this node or
// on another one, or if a run began less than [KeepFor] ago. With [WithConcurrency] it is returned if
// that is true of n runs.
var ErrHeldElsewhere = errors.New("the lock is held elsewhere")

// DefaultKeep is how long a lock is unavailable after its run has begun, unless [KeepFor] sets another
// time.
const DefaultKeep = 500 * time.Millisecond

// Locker makes one of several schedulers make each run of a job: the first one to lock it. It is a
// gocron.Locker, for gocron.WithDistributedLocker and gocron.WithDistributedJobLocker. [NewLocker]
// returns it. All methods are safe for concurrent use, also by several schedulers.
type Locker struct {
	locks       *relock.Client
	keep        time.Duration
	permits     bool // runs have permits, not a lock
	concurrency int  // of permits
	runs        runs
}

var _ gocron.Locker = (*Locker)(nil)

// LockerOption is an option of [NewLocker].
type LockerOption func(*Locker)

// KeepFor keeps each lock unavailable for d after its run has begun, even if the run ends sooner. So a
// node whose clock is late by less than d does not run the job again. Choose more than the clocks of
// the nodes differ, and less than the shortest interval of a job, because until d is over each new run
// of that job is refused. With 0 the lock is released when the run ends. Default: [DefaultKeep].
func KeepFor(d time.Duration) LockerOption {
	return func(l *Locker) { l.keep = d }
}

// WithConcurrency lets up to n runs of a job go on at a time, over all nodes, on one of them or on
// several. Each run has a permit of a relock.Semaphore with the name of the job, in place of a lock.
// Runs above n are skipped. [KeepFor] keeps each permit, so at most n runs begin in that time. Without
// this option one run goes on at a time.
//
// All nodes must have the option, because a name is either a lock or a semaphore: while a run with the
// option goes on, Lock without it returns relock.ErrInvalidName, and the other way round. n may differ
// between nodes. Each node keeps to its own, so a deployment can change it.
//
// There is no fencing token, because the tokens of runs at the same time have no order. A Client of
// relock.NewQuorum has no semaphore.
func WithConcurrency(n int) LockerOption {
	return func(l *Locker) { l.permits, l.concurrency = true, n }
}

// NewLocker returns a Locker that uses locks. To stop, shut the schedulers down first, then close
// locks: that also releases locks that KeepFor still keeps. The Locker itself does not close locks.
//
// Errors: relock.ErrInvalidOption for a nil Client or option, for a negative KeepFor, and for a
// concurrency that is not from 1 to 10,000; relock.ErrUnsupported for WithConcurrency on a quorum. No
// round trip.
func NewLocker(locks *relock.Client, opts ...LockerOption) (*Locker, error) {
	l := &Locker{locks: locks, keep: DefaultKeep}
	if locks == nil {
		return nil, fmt.Errorf("relockgocron: new locker: %w: nil Client", relock.ErrInvalidOption)
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("relockgocron: new locker: %w: nil LockerOption", relock.ErrInvalidOption)
		}
		opt(l)
	}
	if l.keep < 0 {
		return nil, fmt.Errorf("relockgocron: new locker: %w: KeepFor(%v): must not be negative", relock.ErrInvalidOption, l.keep)
	}
	if !l.permits {
		return l, nil
	}
	// The context has ended, so nothing is sent: what is wrong with the handle comes first.
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := locks.Semaphore("job", l.concurrency).State(ended)
	if errors.Is(err, relock.ErrInvalidOption) || errors.Is(err, relock.ErrUnsupported) {
		return nil, fmt.Errorf("relockgocron: new locker: WithConcurrency(%d): %w", l.concurrency, err)
	}
	return l, nil
}

// Lock acquires the lock of a job for one run. gocron calls it before each run, with the name of the
// job, and skips the run if Lock fails. Each call has its own owner, so any two runs exclude each
// other, also on one node. With [WithConcurrency] it acquires a permit instead.
//
// Lock does not wait for the lock. It blocks for one request, as relock.Mutex.TryLock does, or until
// ctx ends. After a failure nothing is held.
//
// Errors: [ErrHeldElsewhere]; and those of TryLock: errors from Redis, the error of ctx,
// relock.ErrClosed, and relock.ErrInvalidName if the name of the job cannot be the name of a lock.
// gocron reports them only to the listener gocron.AfterLockError. One round trip.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	keptUntil := time.Now().Add(l.keep)
	h, held, err := l.try(ctx, job)
	if err != nil {
		return nil, err
	}
	if !held {
		return nil, fmt.Errorf("relockgocron: job %q is not run here: %w", job, ErrHeldElsewhere)
	}
	return l.runs.begin(job, h, keptUntil), nil
}

// try acquires the lock of a job, or a permit, if that is possible without waiting.
func (l *Locker) try(ctx context.Context, job string) (hold, bool, error) {
	if l.permits {
		return l.locks.Semaphore(job, l.concurrency).TryAcquire(ctx)
	}
	m := l.locks.Mutex(job, relock.WithOwnerFrom(relock.NewOwner(ctx)))
	held, err := m.TryLock(ctx)
	return lock{m}, held, err
}

// Do runs work, which is the task or a part of it. The context of work ends with ctx, when the lock of
// the run is lost, or when work returns. Call Do in the task, on the goroutine on which gocron runs the
// task:
//
//	gocron.NewTask(func(ctx context.Context) error {
//		return locker.Do(ctx, report) // report has to stop when its context ends
//	})
//
// Do blocks until work returns, and returns its error. If the lock was lost meanwhile, relock.ErrLost
// is joined to that error, and gocron reports to its listeners that the run has failed. The cause of
// the context wraps relock.ErrLost after a loss, and relock.ErrClosed if the Client was closed.
//
// Without the lock, work does not run. Errors in that case: the cause, if the lock was lost or ctx has
// already ended; relock.ErrNotHeld if the goroutine makes no run under a lock of l; and
// relock.ErrInvalidOption for a nil argument. A goroutine makes no such run if the task has started it,
// if the scheduler has an elector, or if the locker is disabled for the job. No round trip.
func (l *Locker) Do(ctx context.Context, work func(ctx context.Context) error) error {
	r := l.runs.current()
	if r == nil {
		return errNoRun
	}
	return under(ctx, r.job, r.hold, work)
}

var errNoRun = fmt.Errorf("relockgocron: do: %w by a run on this goroutine; "+
	"call Do in the task itself, not in a goroutine that it starts", relock.ErrNotHeld)

// FencingToken returns the fencing token of the run that the calling goroutine makes. It is 0 if the
// Client was not made relock.WithFencing, with [WithConcurrency], and where Do finds no run. No round
// trip.
func (l *Locker) FencingToken() int64 {
	if r := l.runs.current(); r != nil {
		if m, isLock := r.hold.(lock); isLock {
			return m.FencingToken()
		}
	}
	return 0
}
