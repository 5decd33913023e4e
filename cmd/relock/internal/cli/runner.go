package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/cmd/relock/internal/child"
	"github.com/relock-go/relock/cmd/relock/internal/look"
	"github.com/relock-go/relock/cmd/relock/internal/target"
)

// runner runs one command under a lock, or with a permit.
type runner struct {
	app     *app
	flags   *runFlags
	target  *target.Target
	name    string
	argv    []string
	err     *backlog
	log     *slog.Logger
	signals *child.Signals
	locks   *relock.Client
	lock    lock
	ids     map[string]bool // that locks has had, as seen by the progress: an entry in the line keeps the one with which it was made

	contended chan struct{} // has something when the wait has begun
	refused   atomic.Bool   // Redis has answered that the lock is taken
	owner     atomic.Value  // on Redis, of the hold
}

func newRunner(a *app, f *runFlags, t *target.Target, name string, argv []string) *runner {
	r := &runner{app: a, flags: f, target: t, name: name, argv: argv, err: newBacklog(a.err), contended: make(chan struct{}, 1)}
	r.log = logger(r.err, f.log == "json", f.verbose)
	return r
}

// run returns how it ended, as an exit code.
func (r *runner) run() (err error) {
	defer r.err.flush(time.Second)
	if r.flags.minHold > 0 { // once held, the lock would keep others from running theirs
		if _, err := exec.LookPath(r.argv[0]); err != nil {
			return r.failed(r.unrunnable(err))
		}
	}
	r.signals = child.WatchSignals()
	own := relock.Hooks{Contended: r.noteContended, Acquired: r.noteAcquired}
	r.locks, err = r.target.Locks(r.flags.options(relock.JoinHooks(relock.LogHooks(r.log), own))...)
	if err != nil {
		return err
	}
	defer r.locks.Close()
	if r.flags.slots > 0 {
		r.lock = r.flags.permitOf(r.locks, r.name)
	} else {
		r.lock = r.flags.lockOf(r.locks, r.name, relock.WithOwner(owner()))
	}
	if err := r.acquire(); err != nil {
		return r.failed(err)
	}
	deadline, held := r.lock.deadline()
	if !held { // this machine may have slept
		r.release()
		return r.failed(&exit{codeLost, fmt.Errorf("the %s was lost before the command was started", r.flags.what())})
	}
	r.signals.All()
	r.err.flush(100 * time.Millisecond) // the command writes there, too
	command, err := child.Start(r.argv, r.environ(os.Environ()), r.warn)
	if err != nil {
		r.release()
		return r.failed(r.unrunnable(err))
	}
	plan := newPlan(r.flags, time.Now(), deadline)
	r.watch(command, plan)
	return r.end(command, plan)
}

// acquire takes the lock, or returns why not: a signal may have ended the wait. It is the last look at
// signals before the command is started; later ones are kept for that.
func (r *runner) acquire() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- r.get(ctx) }()
	done := r.showProgress()
	defer done()
	around := make(chan error, 1)
	for {
		select {
		case <-r.contended:
			go func() { around <- r.heldAround(ctx) }()
		case err := <-around:
			if err == nil {
				continue
			}
			cancel()
			if <-got == nil {
				r.release()
			}
			return err
		case sig := <-r.signals.C:
			if child.Stops(sig) {
				r.warn("a relock that waits cannot be suspended: its turn may come meanwhile, and others would wait for it")
			}
			if !child.EndsWait(sig) {
				continue
			}
			r.signals.Stop() // a second one ends us at once
			cancel()
			if err := <-got; err == nil {
				r.release()
			}
			return r.stopped(sig)
		case err := <-got:
			if err != nil {
				return err
			}
			return r.lastLook()
		}
	}
}

// lastLook gives the lock back if a signal to stop has come with the grant.
func (r *runner) lastLook() error {
	sig := r.signals.Pending()
	if sig == nil {
		return nil
	}
	r.signals.Stop()
	r.release()
	return r.stopped(sig)
}

// get takes the lock, as the flags say.
func (r *runner) get(ctx context.Context) error {
	if !r.flags.noWait {
		return r.lock.lock(ctx)
	}
	held, err := r.lock.try(ctx)
	switch {
	case err != nil:
		return err
	case !held:
		return errBusy
	}
	return nil
}

// noteContended is a hook: it must not wait. So is noteAcquired.
func (r *runner) noteContended(relock.Event) {
	r.refused.Store(true)
	note(r.contended)
}

func (r *runner) noteAcquired(e relock.Event) { r.owner.Store(e.Owner) }

func note(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// warn reports what is not about Redis.
func (r *runner) warn(text string) { r.log.Warn(text, "name", r.name) }

// stopped is the error of a wait that sig has ended.
func (r *runner) stopped(sig os.Signal) error {
	by := errInterrupted
	if sig != os.Interrupt {
		by = errors.New(sig.String())
	}
	return &exit{child.CodeOf(sig), fmt.Errorf("%w while waiting for the %s: the command was not started", by, r.flags.what())}
}

// unrunnable is the error of a command that cannot be started.
func (r *runner) unrunnable(err error) error {
	return &exit{child.CodeOfStart(err), fmt.Errorf("cannot run %s: %w", r.argv[0], err)}
}

// failed says why the command was not run, unless that is what -n asks for.
func (r *runner) failed(err error) error {
	if errors.Is(err, relock.ErrInvalidName) {
		err = cmp.Or(r.foreign(), err)
	}
	code := codeOf(err)
	switch {
	case errors.Is(err, relock.ErrTimeout) && (!r.refused.Load() || unanswered(err)):
		code = codeUnavailable // -E must not make it a success: nobody may hold the lock
	case errors.Is(err, errBusy), code == codeBusy:
		code = r.flags.busyCode
	}
	if !errors.Is(err, errBusy) {
		r.log.Error(message(err))
		if hint := advice(err); hint != "" {
			r.log.Error(hint)
		}
	} else {
		r.log.Debug(r.flags.what()+" not acquired: it is not free", "name", r.name)
	}
	if errors.Is(err, errInterrupted) {
		return &exit{code, errInterrupted}
	}
	return &exit{code: code}
}

// foreign says that the key is no lock, and what it is; nil if it is one, or can be none.
func (r *runner) foreign() error {
	l, err := r.look(context.Background())
	if err != nil || !l.Foreign {
		return nil
	}
	return errForeign(l)
}

// look returns the state of the lock on Redis. It waits no longer than commands that only read.
func (r *runner) look(ctx context.Context) (*look.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	return look.One(ctx, r.target, r.name)
}

// watch waits for the end of the command, forwards signals, and has the command end in time when the lock is lost. If the command
// was asked to end, watch waits for all of its processes, because they may still work.
func (r *runner) watch(command *child.Child, plan *plan) {
	lost := r.lock.context(context.Background())
	timer := time.NewTimer(0)
	defer timer.Stop()
	forward := func(sig os.Signal) {
		plan.noteSignal(sig)
		command.Signal(sig)
	}
	ended, gone := command.Ended(), (<-chan struct{})(nil)
	for {
		deadline, held := r.lock.deadline()
		step, next := plan.next(time.Now(), deadline, held, context.Cause(lost))
		switch step {
		case terminate:
			command.Terminate()
			r.log.Error("ending the command: "+message(plan.why), "name", r.name)
			continue
		case kill:
			plan.killed = command.Kill()
			switch {
			case plan.killed:
				r.log.Error("the command has not ended: it is killed", "name", r.name)
			case !plan.ended.IsZero():
				return // all of it had ended
			}
			continue
		}
		if !plan.ended.IsZero() {
			left := time.Until(plan.waitsUntil())
			if left <= 0 {
				if plan.why == nil {
					r.warn("the command has ended, but some of its processes have not: they go on without the " + r.flags.what())
				}
				return
			}
			next = min(next, left)
			if plan.killing { // what was just being started may be left
				command.Kill()
				next = min(next, 50*time.Millisecond)
			}
		}
		timer.Reset(next)
		over := lost.Done()
		if plan.why != nil {
			over = nil
		}
		select {
		case sig := <-r.signals.C:
			forward(sig)
		case <-over:
		case <-timer.C:
		case <-ended:
			for len(r.signals.C) > 0 { // one may have come to this process and to the command at once
				forward(<-r.signals.C)
			}
			// A signal that came to the command alone is a request, too: its shell may have ended of it, and left the others.
			if plan.why == nil && !plan.asked && !child.AsksToEnd(command.EndedBy()) {
				return
			}
			plan.ended, ended, gone = time.Now(), nil, command.Gone()
		case <-gone:
			return
		}
	}
}

// end gives the lock back and returns the exit code.
func (r *runner) end(command *child.Child, plan *plan) error {
	lost := r.release()
	switch {
	case plan.killed:
		return &exit{code: codeKilled}
	case plan.why != nil || lost:
		return &exit{code: codeLost}
	case command.EndedBy() == os.Interrupt && plan.interrupted:
		return &exit{command.Code(), errInterrupted}
	case command.EndedBy() == os.Interrupt && command.HadTerminal():
		return &exit{command.Code(), errCommandInterrupted}
	case command.Code() != 0:
		return &exit{code: command.Code()}
	}
	return nil
}

// release unlocks, and reports whether the lock was lost before. If Redis does not receive the release, the
// lock ends with its lease: that is no failure of the command.
func (r *runner) release() (lost bool) {
	err := r.lock.unlock()
	switch {
	case errors.Is(err, relock.ErrLost):
		r.log.Error(message(err))
		return true
	case err != nil:
		r.log.Warn("the "+r.flags.what()+" is free when its lease ends: "+message(err), "name", r.name)
	}
	return false
}
