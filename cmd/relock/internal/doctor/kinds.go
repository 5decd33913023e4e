package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/cmd/relock/internal/look"
)

// kinds takes a lock of each kind, under a name that is used for nothing else, and gives it back.
func (e *Exam) kinds(ctx context.Context) {
	locks, err := e.Target.Locks(relock.WithTTL(10*time.Second), relock.WithFencing())
	if err != nil {
		e.note(Broken, "locks", "", "%v", err)
		return
	}
	defer locks.Close()
	defer e.forgetToken()
	const plain, line = Broken, Warning
	m := locks.Mutex(e.Name)
	e.kind(plain, "Mutex", "docs/operations.md#permissions has the rules of an ACL", e.turn(ctx, m.TryLock, m.Unlock))
	if e.Target.Quorum() {
		return
	}
	f := locks.FairMutex(e.Name)
	e.kind(line, "FairMutex, and the line of all waiters", "allow the keys relock_line* and the commands on sorted sets: without them waiters are served in no order, and --fair fails",
		e.turn(ctx, f.TryLock, f.Unlock))
	s := locks.Semaphore(e.Name+":permits", 1)
	var p *relock.Permit
	err = e.turn(ctx, func(ctx context.Context) (acquired bool, err error) {
		p, acquired, err = s.TryAcquire(ctx)
		return acquired, err
	}, func() error { return p.Release() })
	e.kind(line, "Semaphore", "allow the keys relock_line* and the commands on sorted sets: without them --slots fails", err)
	rw := locks.RWMutex(e.Name + ":rw")
	err = e.turn(ctx, rw.TryRLock, rw.RUnlock)
	if err == nil {
		err = e.turn(ctx, rw.TryLock, rw.Unlock)
	}
	e.kind(line, "RWMutex", "allow the keys relock_rw_claim* and {NAME*, and +hget +exists +del +hmget +hkeys +hrandfield: without them --shared and --exclusive fail", err)
}

// kind notes how a turn with a kind of lock went.
func (e *Exam) kind(s Status, what, advice string, err error) {
	if err != nil {
		e.note(s, "locks", remedy(err, advice), "%s: %v", what, err)
		return
	}
	e.note(Fine, "locks", "", "%s: acquired and released", what)
}

// turn takes a lock and gives it back.
func (e *Exam) turn(ctx context.Context, try func(context.Context) (bool, error), unlock func() error) error {
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	held, err := try(ctx)
	switch {
	case err != nil:
		return err
	case !held:
		return errors.New("another owner holds the lock, although its name is new")
	}
	if err := unlock(); err != nil {
		return fmt.Errorf("the lock was acquired, but not released: %w", err)
	}
	return nil
}

// forgetToken removes the counters of tokens, if this user may; they expire by themselves.
func (e *Exam) forgetToken() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, name := range []string{e.Name, e.Name + ":rw"} {
		names, err := look.NamesOf(name)
		if err != nil {
			continue
		}
		for _, n := range e.Target.Nodes {
			_ = n.Redis.Del(ctx, names.Keys[1]).Err()
		}
	}
}
