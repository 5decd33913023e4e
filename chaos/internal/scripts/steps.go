package scripts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// steps make the library run each of its scripts, in an order in which each step runs scripts of at most one new verb.
func (l *finder) steps() []step {
	plain, sides, batch, permits := newWatched(), newWatched(), newWatched(), newWatched()
	m := l.locks.Mutex("learn", plain.options...)
	untokened := l.untokened.Mutex("learn-untokened", batch.options...)
	both := l.locks.MultiMutex([]string{"{learn}-a", "{learn}-b"})
	rw := l.locks.RWMutex("learn-sides", sides.options...)
	semaphore := l.locks.Semaphore("learn-permits", 1, permits.options...)
	var permit *relock.Permit
	lock := func(do func(context.Context) error) func() error {
		return func() error { return do(l.ctx) }
	}
	return []step{
		{Acquire, lock(m.Lock)},
		{Renew, l.await(plain.renewed)},
		{Reenter, lock(m.Lock)},
		// The release of a level uses another script than the release of the lock, which has a line.
		{Release, m.Unlock},
		{Release, m.Unlock},
		// Several locks at once check their lines, without an entry there. So does a TryLock of one lock without a token.
		{Acquire, lock(both.Lock)},
		{"", both.Unlock},
		// A waiter of another process has an entry in the line.
		{Poll, l.pollOnce},
		// Locks that are renewed together are renewed by a script of its own.
		{Renew, l.renewTogether},
		{"", lock(m.Lock)},
		{"", l.follow(plain, m)},
		{Handoff, m.Unlock},
		{"", plain.followed},
		// Without a token, the process hands over locally.
		{"", lock(untokened.Lock)},
		{"", l.follow(batch, untokened)},
		{"", untokened.Unlock},
		{"", batch.followed},
		// A read-write lock has two sides. A writer counts and renews like others.
		{Acquire, lock(rw.RLock)},
		{Renew, l.await(sides.renewed)},
		{Reenter, lock(rw.RLock)},
		{Release, rw.RUnlock},
		{"", rw.RUnlock},
		{Acquire, lock(rw.Lock)},
		{"", l.follow(sides, rw)},
		{"", rw.Unlock},
		{Release, sides.followed},
		// Permits have scripts of their own.
		{Acquire, func() (err error) { permit, err = semaphore.Acquire(l.ctx); return err }},
		{Renew, l.await(permits.renewed)},
		{Release, func() error { return permit.Release() }},
		{Poll, l.pollForPermit},
	}
}

// renewOften is the short renewal interval of the watched locks, so that Find is fast.
var renewOften = relock.WithRenewInterval(50 * time.Millisecond)

// watched is a lock whose renewals and waiters are reported.
type watched struct {
	options            []relock.MutexOption
	renewed, contended chan relock.Event
	enough             chan struct{} // makes the other goroutine of follow release the lock
	next               chan error    // its result
}

func newWatched() *watched {
	w := &watched{renewed: make(chan relock.Event, 100), contended: make(chan relock.Event, 100), enough: make(chan struct{}, 1), next: make(chan error, 1)}
	w.options = []relock.MutexOption{renewOften, relock.WithHooks(relock.Hooks{
		Renewed:   func(e relock.Event) { w.renewed <- e },
		Contended: func(e relock.Event) { w.contended <- e },
	})}
	return w
}

// followed makes the goroutine of follow release the lock.
func (w *watched) followed() error {
	w.enough <- struct{}{}
	return <-w.next
}

// await waits for an event.
func (l *finder) await(c <-chan relock.Event) func() error {
	return func() error {
		select {
		case <-c:
			return nil
		case <-l.ctx.Done():
			return l.ctx.Err()
		}
	}
}

// follow makes another goroutine wait for a lock. If the goroutine released the lock at once, its release could also replace
// the rename for the previous holder.
func (l *finder) follow(w *watched, m interface {
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
func (l *finder) renewTogether() (err error) {
	for i := range 10 {
		m := l.locks.Mutex(fmt.Sprint("learn-", i), renewOften)
		if err := m.Lock(l.ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Unlock()) }()
	}
	return l.awaitUnknownOutcome()
}

// awaitUnknownOutcome waits until a script has run that is none of those known.
func (l *finder) awaitUnknownOutcome() error {
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

// pollOnce makes one process wait for a lock that another one holds, until it has polled.
func (l *finder) pollOnce() error {
	held, waiter := l.untokened.Mutex("learn-line"), l.locks.Mutex("learn-line", relock.WithSafetyPoll(time.Second))
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
	err := l.awaitUnknownOutcome()
	return errors.Join(err, held.Unlock(), <-served)
}

// pollForPermit is pollOnce with a semaphore. The weights are so large that a library that is wrong by one polls, too.
func (l *finder) pollForPermit() error {
	const all = 3
	held, err := l.untokened.Semaphore("learn-permits", all).AcquireN(l.ctx, all)
	if err != nil {
		return err
	}
	waiter := l.locks.Semaphore("learn-permits", all, relock.WithSafetyPoll(time.Second))
	served := make(chan error, 1)
	go func() {
		p, err := waiter.AcquireN(l.ctx, all)
		if err == nil {
			err = p.Release()
		}
		served <- err
	}()
	err = l.awaitUnknownOutcome()
	return errors.Join(err, held.Release(), <-served)
}
