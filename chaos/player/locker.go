package player

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
)

// Locker is a Mutex of any kind, one side of an RWMutex, or one permit of a Semaphore at a time.
type Locker interface {
	Lock(ctx context.Context) error
	TryLock(ctx context.Context) (bool, error)
	Unlock() error
	HoldCount() int
	FencingToken() int64
	Deadline() (time.Time, bool)
	Context(ctx context.Context) context.Context

	// OnRedis returns HoldCount and FencingToken according to Redis.
	OnRedis(ctx context.Context) (levels int, token int64, err error)
}

// Mutex is one of any kind.
type Mutex struct{ *relock.Mutex }

// OnRedis implements [Locker].
func (m Mutex) OnRedis(ctx context.Context) (levels int, token int64, err error) {
	s, err := m.State(ctx)
	return s.Count, s.FencingToken, err
}

// WriteSide is the side of a read-write lock that excludes all others.
type WriteSide struct{ *relock.RWMutex }

// OnRedis implements [Locker].
func (m WriteSide) OnRedis(ctx context.Context) (levels int, token int64, err error) {
	s, err := m.State(ctx)
	return s.Count, s.FencingToken, err
}

// ReadSide is the side of a read-write lock that many owners may hold. Its owner is fixed, so that it can be found among the
// readers.
type ReadSide struct {
	*relock.RWMutex
	Owner string
}

// Lock implements [Locker], as the methods below do.
func (m ReadSide) Lock(ctx context.Context) error            { return m.RLock(ctx) }
func (m ReadSide) TryLock(ctx context.Context) (bool, error) { return m.TryRLock(ctx) }
func (m ReadSide) Unlock() error                             { return m.RUnlock() }
func (m ReadSide) HoldCount() int                            { return m.RHoldCount() }
func (m ReadSide) FencingToken() int64                       { return 0 }
func (m ReadSide) Deadline() (time.Time, bool)               { return m.RDeadline() }

func (m ReadSide) Context(ctx context.Context) context.Context { return m.RContext(ctx) }

func (m ReadSide) OnRedis(ctx context.Context) (levels int, token int64, err error) {
	s, err := m.State(ctx)
	if err != nil {
		return 0, 0, err
	}
	n := 0
	for field, count := range s.Readers {
		switch {
		case !strings.HasSuffix(field, ":"+m.Owner):
		case n > 0:
			return 0, 0, errGivenUp
		default:
			n = count
		}
	}
	return n, 0, nil
}

// errGivenUp reports that an owner has two names on Redis: one of them is given up and not undone yet, or was created again by
// delayed commands. It is unknown which one.
var errGivenUp = errors.New("an earlier hold of the owner is still on Redis")

// OutcomeOf returns the outcome of a call.
func OutcomeOf(err error) history.Outcome {
	switch {
	case err == nil:
		return history.OK
	case errors.Is(err, relock.ErrLost):
		return history.IsLost
	case errors.Is(err, relock.ErrNotHeld):
		return history.NotHeld
	case errors.Is(err, relock.ErrClosed):
		return history.Closed
	case errors.Is(err, relock.ErrDeadlock):
		return history.Deadlocked
	default:
		return history.Failed
	}
}

// Text returns the text of err, or "".
func Text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
