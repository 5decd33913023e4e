package relockgocron

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/relock-go/relock"
)

// ErrHeldElsewhere is returned by [Locker.Lock] when another run has the lock of the job, on this
// node or on another one, or began less than [KeepFor] ago.
var ErrHeldElsewhere = errors.New("the lock is held elsewhere")

// DefaultKeep is how long a lock is kept from the beginning of its run, unless [KeepFor] says
// otherwise.
const DefaultKeep = 500 * time.Millisecond

// Locker lets one of several schedulers make each run of a job: the one that comes first. It is a
// gocron.Locker, for gocron.WithDistributedLocker and gocron.WithDistributedJobLocker. All methods
// are safe for concurrent use, also by several schedulers. [NewLocker] makes it.
type Locker struct {
	locks *relock.Client
	keep  time.Duration
	runs  runs
}

var _ gocron.Locker = (*Locker)(nil)

// LockerOption is an option of [NewLocker].
type LockerOption func(*Locker)

// KeepFor keeps each lock for d from the beginning of its run, also if the run ends sooner: a node
// whose clock is behind by less than that does not run the job again. Choose more than the clocks
// of the nodes differ, and less than the shortest interval of a job: until d is over each new run
// of that job is refused. 0 gives the lock back when the run ends. Default: [DefaultKeep].
func KeepFor(d time.Duration) LockerOption {
	return func(l *Locker) { l.keep = d }
}

// NewLocker returns a Locker of locks, which stays the caller's. To end, shut the schedulers
// down first, then close locks: that gives back what is still kept, too.
//
// Errors: relock.ErrInvalidOption for a nil Client or option, and for a negative KeepFor. No round
// trip.
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
	return l, nil
}

// Lock takes the lock of a job for one run. gocron calls it before each run, with the job's name, and
// leaves the run out if it fails. Each call is an owner of its own: two runs exclude each
// other wherever they are made.
//
// It does not wait for the lock. It blocks for one request, as [relock.Mutex.TryLock] does; ctx ends
// that, too. After a failure nothing is held.
//
// Errors: ErrHeldElsewhere; those of TryLock, which are Redis' own and that of ctx, relock.ErrClosed,
// and relock.ErrInvalidName if no lock can have the name of the job. gocron tells them to the
// listener gocron.AfterLockError, and to nothing else. One round trip.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	began := time.Now()
	m := l.locks.Mutex(job, relock.WithOwnerFrom(relock.NewOwner(ctx)))
	held, err := m.TryLock(ctx)
	if err != nil {
		return nil, err
	}
	if !held {
		return nil, fmt.Errorf("relockgocron: job %q is not run here: %w", job, ErrHeldElsewhere)
	}
	return l.runs.begin(m, began.Add(l.keep)), nil
}

// Do runs work, which is the task or a part of it, with a context that ends with ctx, when the lock of
// the run is lost, or with work itself. Call it in the task, on the goroutine that gocron runs that on:
//
//	gocron.NewTask(func(ctx context.Context) error {
//		return locker.Do(ctx, report) // report has to stop when its context ends
//	})
//
// It blocks for as long as work does, and returns its error. If the lock was lost meanwhile
// relock.ErrLost is joined to that, so gocron tells its listeners that the run has failed. The
// cause of the context's end wraps relock.ErrLost, too; or relock.ErrClosed if the Client was closed.
//
// Work does not run without the lock. Errors then: the cause of the end, if the lock was lost or ctx
// has ended already; relock.ErrNotHeld where the goroutine makes no run under a lock of l, as one
// that the task has started, and where gocron has an elector, or the locker is disabled for the
// job; relock.ErrInvalidOption for a nil argument. No round trip.
func (l *Locker) Do(ctx context.Context, work func(ctx context.Context) error) error {
	r := l.runs.current()
	if r == nil {
		return errNoRun
	}
	return under(ctx, r.mutex, work)
}

var errNoRun = fmt.Errorf("relockgocron: do: %w by a run on this goroutine; "+
	"call Do in the task itself, not in a goroutine that it starts", relock.ErrNotHeld)

// FencingToken returns the fencing token of the run that the calling goroutine makes: 0 unless the
// Client was made relock.WithFencing, and where Do finds no run. No round trip.
func (l *Locker) FencingToken() int64 {
	if r := l.runs.current(); r != nil {
		return r.mutex.FencingToken()
	}
	return 0
}
