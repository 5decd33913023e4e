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

// ErrNotLeader is returned by [Elector.IsLeader] if this node does not lead.
var ErrNotLeader = errors.New("not the leader")

// Elector makes one of several nodes the leader, which makes all runs. It is a gocron.Elector, for
// gocron.WithDistributedElector. [NewElector] returns it. All methods are safe for concurrent use, also
// by several schedulers.
//
// If a leader stops, another node leads at once. If a leader dies, another node leads after the TTL of
// the lock. No node makes the runs that are due in between.
type Elector struct {
	mutex     *relock.Mutex // of an owner of its own
	onSetback func(error)
	setback   atomic.Pointer[setback]

	life     sync.Mutex // held by Start and Stop
	campaign atomic.Pointer[campaign]
}

var _ gocron.Elector = (*Elector)(nil)

// ElectorOption is an option of [NewElector].
type ElectorOption func(*Elector)

// OnSetback sets a function that is called with each error that does not end the campaign: Redis cannot
// be reached or refuses a command, or the lead is lost. f runs on the goroutine of the campaign, and
// delays it. gocron drops the error of IsLeader, so without f only the hooks of the Client report these
// errors.
func OnSetback(f func(error)) ElectorOption {
	return func(e *Elector) { e.onSetback = f }
}

// NewElector returns an Elector that campaigns for the lock name of locks. Use the same name on all
// nodes. The campaign begins with [Elector.Start]. The Elector does not close locks.
//
// Errors: relock.ErrInvalidOption for a nil Client, option or function; relock.ErrInvalidName for an
// invalid name. No round trip.
func NewElector(locks *relock.Client, name string, opts ...ElectorOption) (*Elector, error) {
	if locks == nil {
		return nil, fmt.Errorf("relockgocron: new elector: %w: nil Client", relock.ErrInvalidOption)
	}
	e := &Elector{
		mutex:     locks.Mutex(name, relock.WithOwnerFrom(relock.NewOwner(context.Background()))),
		onSetback: func(error) {},
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("relockgocron: new elector: %w: nil ElectorOption", relock.ErrInvalidOption)
		}
		opt(e)
	}
	if e.onSetback == nil {
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

// Start begins to campaign in the background. If the Elector already campaigns, Start does nothing. It
// blocks only while a Stop is in progress. Call it after the scheduler has started, because the
// leader has to run the jobs.
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
	e.onSetback(err)
}

// Stop ends the campaign. If this node leads, Stop releases the lock: the contexts of runs end, and
// another node leads. So shut the scheduler down first. Stop blocks until Redis has answered, or for
// the time of relock.WithUnlockTimeout. Start begins a new campaign.
//
// Errors: errors from Redis if it did not confirm the release; then another node leads after the TTL.
// If the campaign had already ended, its error, as for [Elector.IsLeader]. If there is no campaign,
// Stop returns nil. One round trip.
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

// IsLeader returns nil if this node leads, and otherwise an error with the reason. gocron calls it
// before each run. It does not use its context, and does not block.
//
// Errors: [ErrNotLeader], which also wraps the last setback since this node last led, if there was one.
// If the campaign has ended because another attempt would not help, it also wraps the reason, for
// example relock.ErrClosed. No round trip.
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
		return fmt.Errorf("relockgocron: %w of %q; last setback %v ago: %w", ErrNotLeader, name, time.Since(last.at).Round(time.Millisecond), last.err)
	default:
		return fmt.Errorf("relockgocron: %w of %q", ErrNotLeader, name)
	}
}

// Do runs work, which is the task or a part of it. The context of work ends with ctx, when this node no
// longer leads, or when work returns. Do may be called on any goroutine:
//
//	gocron.NewTask(func(ctx context.Context) error {
//		return elector.Do(ctx, report) // report has to stop when its context ends
//	})
//
// Do blocks until work returns, and returns its error. If the lead was lost meanwhile, relock.ErrLost
// is joined to that error, and gocron reports to its listeners that the run has failed. The cause of
// the context wraps relock.ErrLost after a loss, relock.ErrReleased after Stop, and relock.ErrClosed if
// the Client was closed.
//
// If the node does not lead, work does not run. Errors in that case: those of [Elector.IsLeader]; the
// error of ctx if it has already ended; relock.ErrInvalidOption for a nil argument. No round trip.
func (e *Elector) Do(ctx context.Context, work func(ctx context.Context) error) error {
	if err := e.IsLeader(ctx); err != nil {
		return err
	}
	return under(ctx, e.mutex.Name(), lock{e.mutex}, work)
}

// FencingToken returns the fencing token of the lead. It is 0 if this node does not lead, or if the
// Client was not made relock.WithFencing. No round trip.
func (e *Elector) FencingToken() int64 { return e.mutex.FencingToken() }
