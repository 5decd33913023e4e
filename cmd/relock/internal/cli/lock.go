package cli

import (
	"context"
	"time"

	"github.com/relock-go/relock"
)

// lock is the one that run takes, of whatever kind: the handles of the library have no common type.
type lock struct {
	lock     func(context.Context) error
	try      func(context.Context) (bool, error)
	unlock   func() error
	context  func(context.Context) context.Context
	deadline func() (time.Time, bool)
	token    func() int64
}

// lockOf returns the lock that the flags ask for.
func (f *runFlags) lockOf(locks *relock.Client, name string, opts ...relock.MutexOption) lock {
	if f.shared {
		m := locks.RWMutex(name, opts...)
		return lock{m.RLock, m.TryRLock, m.RUnlock, m.RContext, m.RDeadline, func() int64 { return 0 }}
	}
	opts = append(opts, relock.WithFencing())
	if f.exclusive {
		m := locks.RWMutex(name, opts...)
		return lock{m.Lock, m.TryLock, m.Unlock, m.Context, m.Deadline, m.FencingToken}
	}
	m := locks.Mutex(name, opts...)
	if f.fair {
		m = locks.FairMutex(name, opts...)
	}
	return lock{m.Lock, m.TryLock, m.Unlock, m.Context, m.Deadline, m.FencingToken}
}

// permitOf returns a permit of the semaphore name as the lock that run takes.
func (f *runFlags) permitOf(locks *relock.Client, name string) lock {
	s := locks.Semaphore(name, f.slots)
	var p *relock.Permit // lock or try sets it, before any other function is called
	return lock{
		lock: func(ctx context.Context) (err error) {
			p, err = s.Acquire(ctx)
			return err
		},
		try: func(ctx context.Context) (held bool, err error) {
			p, held, err = s.TryAcquire(ctx)
			return held, err
		},
		unlock:   func() error { return p.Release() },
		context:  func(ctx context.Context) context.Context { return p.Context(ctx) },
		deadline: func() (time.Time, bool) { return p.Deadline() },
		token:    func() int64 { return 0 },
	}
}
