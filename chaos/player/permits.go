package player

import (
	"context"
	"slices"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
)

// usePermit is a use of a semaphore.
func (p *player) usePermit() {
	name, opts := Pick(p.Drawer, p.Semaphores...), []relock.MutexOption(nil)
	u := p.prepare([]string{name}, p.self()+".permit")
	u.weight = 1
	if p.Limit > 1 && p.Chance(p.Heavy) {
		u.weight = 2 + p.IntN(p.Limit-1)
	}
	if p.Chance(p.MinHold) {
		u.least = p.Between(50*time.Millisecond, p.TTL/2)
		opts = append(opts, relock.WithMinHold(u.least))
	}
	u.m = &permit{of: p.Locks.Semaphore(name, p.Limit, u.options(opts...)...), weight: u.weight}
	if u.lock() != history.OK {
		return
	}
	u.spend(p.Length(p.Drawer))
	u.unlockAll()
}

// permit is a permit of a semaphore, from its Acquire on.
type permit struct {
	of     *relock.Semaphore
	weight int
	*relock.Permit
}

// Lock implements [Locker], as the methods below do, and those of Permit.
func (m *permit) Lock(ctx context.Context) (err error) {
	m.Permit, err = m.of.AcquireN(ctx, m.weight)
	return err
}

// TryLock is for the weight 1.
func (m *permit) TryLock(ctx context.Context) (acquired bool, err error) {
	m.Permit, acquired, err = m.of.TryAcquire(ctx)
	return acquired, err
}

func (m *permit) Unlock() error { return m.Release() }

func (m *permit) HoldCount() int {
	if _, valid := m.Deadline(); !valid {
		return 0
	}
	return 1
}

func (m *permit) FencingToken() int64 { return 0 }

func (m *permit) OnRedis(ctx context.Context) (levels int, token int64, err error) {
	s, err := m.of.State(ctx)
	if err != nil {
		return 0, 0, err
	}
	if slices.ContainsFunc(s.Permits, func(p relock.PermitState) bool { return p.ID == m.ID() && p.Weight == m.weight }) {
		return 1, 0, nil
	}
	return 0, 0, nil
}
