package relockgocron

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/election"
)

// ErrNotLeader is returned by [Elector.IsLeader] when this node does not lead.
var ErrNotLeader = errors.New("not the leader")

// Elector lets one of several nodes lead, which makes all runs. It is a gocron.Elector, for
// gocron.WithDistributedElector. All methods are safe for concurrent use, also by several
// schedulers. [NewElector] makes it.
//
// When a leader stops, another node leads at once; when it dies, after the TTL of the lock. Runs that
// are due meanwhile are made by no node.
type Elector struct {
	mutex   *relock.Mutex // of an owner of its own
	told    func(error)
	setback atomic.Pointer[setback]

	life     sync.Mutex // held by Start and Stop
	campaign atomic.Pointer[campaign]
}

var _ gocron.Elector = (*Elector)(nil)

// ElectorOption is an option of [NewElector].
type ElectorOption func(*Elector)

// OnSetback sets a function that is called with each error that does not end the campaign: when Redis cannot be
// reached, or refuses, and when the lead is lost. f is called on the goroutine of the campaign,
// and delays it. gocron drops what IsLeader returns, so without f only the Client's hooks tell of
// it.
func OnSetback(f func(error)) ElectorOption {
	return func(e *Elector) { e.told = f }
}

// NewElector returns an Elector that campaigns for the lock name of locks, which stays the caller's:
// all nodes give the same name. It leads from [Elector.Start] on.
//
// Errors: relock.ErrInvalidOption for a nil Client, option or function; relock.ErrInvalidName for a
// name that no lock can have. No round trip.
func NewElector(locks *relock.Client, name string, opts ...ElectorOption) (*Elector, error) {
	if locks == nil {
		return nil, fmt.Errorf("relockgocron: new elector: %w: nil Client", relock.ErrInvalidOption)
	}
	e := &Elector{
		mutex: locks.Mutex(name, relock.WithOwnerFrom(relock.NewOwner(context.Background()))),
		told:  func(error) {},
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("relockgocron: new elector: %w: nil ElectorOption", relock.ErrInvalidOption)
		}
		opt(e)
	}
	if e.told == nil {
		return nil, fmt.Errorf("relockgocron: new elector: %w: OnSetback(nil)", relock.ErrInvalidOption)
	}
	if err := context.Cause(e.mutex.Context(context.Background())); !errors.Is(err, relock.ErrNotHeld) {
		return nil, fmt.Errorf("relockgocron: new elector: %w", err)
	}
	return e, nil
}

// campaign is what is under way from Start to Stop.
type campaign struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when err is there
	err    error
}

// setback is the last error that did not end the campaign.
type setback struct {
	err error
	at  time.Time
}

var errStopped = errors.New("the elector was stopped")

// Start begins to campaign, in the background. It does nothing if the Elector campaigns already, and
// blocks only while a Stop is under way. Call it when the scheduler has started: a node that leads
// has to make the runs.
func (e *Elector) Start() {
	e.life.Lock()
	defer e.life.Unlock()
	if c := e.campaign.Load(); c != nil && !c.over() {
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &campaign{cancel: cancel, done: make(chan struct{})}
	e.campaign.Store(c)
	go func() {
		defer close(c.done)
		c.err = election.Run(ctx, e.mutex, e.lead, election.OnSetback(e.failed))
	}()
}

// lead leads until the lock is lost, or Stop is called.
func (e *Elector) lead(ctx context.Context, _ int64) error {
	e.setback.Store(nil)
	<-ctx.Done()
	return nil
}

func (e *Elector) failed(err error) {
	e.setback.Store(&setback{err, time.Now()})
	e.told(err)
}

// Stop ends the campaign, and gives the lock back if this node leads: the contexts of runs end, and
// another node leads. So shut the scheduler down first. It blocks until Redis has answered, or
// WithUnlockTimeout has passed. Start begins anew.
//
// Errors: Redis' own if it could not be told, and another node leads after the TTL; what had ended
// the campaign before, as IsLeader says. nil if there is no campaign. One round trip.
func (e *Elector) Stop() error {
	e.life.Lock()
	defer e.life.Unlock()
	c := e.campaign.Swap(nil)
	if c == nil {
		return nil
	}
	c.cancel(errStopped)
	<-c.done
	if errors.Is(c.err, errStopped) {
		return nil
	}
	return c.err
}

func (c *campaign) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// IsLeader returns nil if this node leads, and else why not. gocron calls it before each run.
//
// Errors: ErrNotLeader in any case, with the last setback since this node has led, if there was one;
// with what has ended the campaign, as relock.ErrClosed, if trying again would not help. It
// uses no context, and does not block. No round trip.
func (e *Elector) IsLeader(context.Context) error {
	name, c, last := e.mutex.Name(), e.campaign.Load(), e.setback.Load()
	switch {
	case c == nil:
		return fmt.Errorf("relockgocron: %w of %q: the elector is not started", ErrNotLeader, name)
	case c.over():
		return fmt.Errorf("relockgocron: %w of %q: the campaign has ended: %w", ErrNotLeader, name, c.err)
	case e.mutex.HoldCount() > 0:
		return nil
	case last != nil:
		return fmt.Errorf("relockgocron: %w of %q; the last setback, %v ago: %w", ErrNotLeader, name, time.Since(last.at).Round(time.Millisecond), last.err)
	default:
		return fmt.Errorf("relockgocron: %w of %q", ErrNotLeader, name)
	}
}

// Do runs work, which is the task or a part of it, with a context that ends with ctx, when this node
// leads no more, or with work itself. It may be called on any goroutine:
//
//	gocron.NewTask(func(ctx context.Context) error {
//		return elector.Do(ctx, report) // report has to stop when its context ends
//	})
//
// It blocks for as long as work does, and returns its error. If the lead was lost meanwhile
// relock.ErrLost is joined to that, so gocron tells its listeners that the run has failed. The
// cause of the context's end wraps relock.ErrLost, too; relock.ErrReleased after Stop; or
// relock.ErrClosed if the Client was closed.
//
// Work does not run if the node does not lead. Errors then: those of IsLeader; that of ctx, if it
// has ended already; relock.ErrInvalidOption for a nil argument. No round trip.
func (e *Elector) Do(ctx context.Context, work func(ctx context.Context) error) error {
	if err := e.IsLeader(ctx); err != nil {
		return err
	}
	return under(ctx, e.mutex, work)
}

// FencingToken returns the fencing token of the lead: 0 unless the Client was made
// relock.WithFencing, and if this node does not lead. No round trip.
func (e *Elector) FencingToken() int64 { return e.mutex.FencingToken() }
