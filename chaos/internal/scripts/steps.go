package scripts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// steps are what makes the library run each of its scripts, in an order in which each step
// runs the scripts of one new verb at most.
func (l *learner) steps() []step {
	plain, sides, batch := newWatched(), newWatched(), newWatched()
	m := l.locks.Mutex("learn", plain.options...)
	untokened := l.untokened.Mutex("learn-untokened", batch.options...)
	both := l.locks.MultiMutex([]string{"{learn}-a", "{learn}-b"})
	rw := l.locks.RWMutex("learn-sides", sides.options...)
	lock := func(do func(context.Context) error) func() error {
		return func() error { return do(l.ctx) }
	}
	return []step{
		{Acquire, lock(m.Lock)},
		{Renew, l.await(plain.renewed)},
		{Reenter, lock(m.Lock)},
		// A level is given back by another script than the lock, which has a line.
		{Release, m.Unlock},
		{Release, m.Unlock},
		// Several locks at once mind their lines, and have no place there. So does a try of one lock without a token.
		{Acquire, lock(both.Lock)},
		{"", both.Unlock},
		// A waiter of another process has a place in the line.
		{Poll, l.pollOnce},
		// Locks that are renewed together are renewed by a script of its own.
		{Renew, l.renewTogether},
		{"", lock(m.Lock)},
		{"", l.follow(plain, m)},
		{Handoff, m.Unlock},
		{"", plain.followed},
		// Without a token the next of the process follows before Redis knows.
		{"", lock(untokened.Lock)},
		{"", l.follow(batch, untokened)},
		{Rename, untokened.Unlock},
		{"", batch.followed},
		// A read-write lock has two sides. A writer counts and renews like others.
		{Acquire, lock(rw.RLock)},
		{Renew, l.await(sides.renewed)},
		{Reenter, lock(rw.RLock)},
		{Release, rw.RUnlock},
		{"", rw.RUnlock},
		{Acquire, lock(rw.Lock)},
		{"", l.follow(sides, rw)},
		{Handoff, rw.Unlock},
		{Release, sides.followed},
	}
}

// renewOften is how often the watched locks are renewed: learning does not take long then.
var renewOften = relock.WithRenewInterval(50 * time.Millisecond)

// watched is a lock whose renewals and waiters are heard of.
type watched struct {
	options            []relock.MutexOption
	renewed, contended chan relock.Event
	enough             chan struct{} // tells the other goroutine of follow to give the lock back
	next               chan error    // how it fared
}

func newWatched() *watched {
	w := &watched{renewed: make(chan relock.Event, 100), contended: make(chan relock.Event, 100), enough: make(chan struct{}, 1), next: make(chan error, 1)}
	w.options = []relock.MutexOption{renewOften, relock.WithHooks(relock.Hooks{
		Renewed:   func(e relock.Event) { w.renewed <- e },
		Contended: func(e relock.Event) { w.contended <- e },
	})}
	return w
}

// followed has the goroutine of follow give the lock back.
func (w *watched) followed() error {
	w.enough <- struct{}{}
	return <-w.next
}

// await waits for an event.
func (l *learner) await(c <-chan relock.Event) func() error {
	return func() error {
		select {
		case <-c:
			return nil
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
}

// follow has another goroutine wait for a lock. Were it to give that back at once, what it does could
// tell Redis of the holder before, too.
func (l *learner) follow(w *watched, m interface {
	Lock(context.Context) error
	Unlock() error
},
) func() error {
	return func() error {
		go func() {
			err := m.Lock(l.ctx)
			<-w.enough
			if err == nil {
				err = m.Unlock()
			}
			w.next <- err
		}()
		return l.await(w.contended)()
	}
}

// renewTogether holds locks until several of them have been renewed by one script, which is
// none of those known.
func (l *learner) renewTogether() (err error) {
	for i := range 10 {
		m := l.locks.Mutex(fmt.Sprint("learn-", i), renewOften)
		if err := m.Lock(l.ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Unlock()) }()
	}
	return l.awaitUnknown()
}

// awaitUnknown waits until a script has been run that is none of those known.
func (l *learner) awaitUnknown() error {
	unknown := func(c redistest.Command) bool { return c.Name() == "EVAL" && !l.known[c.Arg(1)] }
	for l.relay.Count(unknown) == 0 {
		select {
		case <-time.After(time.Millisecond):
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
	return nil
}

// pollOnce has one process wait for what another one holds, until it has polled.
func (l *learner) pollOnce() error {
	held, waiter := l.untokened.Mutex("learn-line"), l.locks.Mutex("learn-line", relock.WithSafetyPoll(50*time.Millisecond))
	if err := held.Lock(l.ctx); err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() {
		err := waiter.Lock(l.ctx)
		if err == nil {
			err = waiter.Unlock()
		}
		served <- err
	}()
	err := l.awaitUnknown()
	return errors.Join(err, held.Unlock(), <-served)
}
