package cli

import (
	"context"
	"strconv"
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

// environ is that of the command.
func (f *runFlags) environ(env []string, name string, token int64) []string {
	var all []string
	for _, entry := range env {
		if !hasKey(entry, "RELOCK_NAME") && !hasKey(entry, "RELOCK_TOKEN") { // of a relock that runs us
			all = append(all, entry)
		}
	}
	all = append(all, "RELOCK_NAME="+name)
	if token != 0 {
		all = append(all, "RELOCK_TOKEN="+strconv.FormatInt(token, 10))
	}
	return all
}

func hasKey(entry, key string) bool { return len(entry) > len(key) && entry[:len(key)+1] == key+"=" }
