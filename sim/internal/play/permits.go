package play

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/check"
	"github.com/relock-go/relock/chaos/player"
)

// Some goroutines of each process use a semaphore beside the locks. All processes are in one bubble, so it is known exactly
// when each permit is valid. The judge adds up the weights.

const (
	semaphoreName    = "permits"
	semaphoreLimit   = 4
	semaphorePlayers = 2 // in each process
)

// permitUse is a permit that was valid from one time to another.
type permitUse struct {
	process  int
	id       string
	weight   int
	from, to int64
}

// usePermits plays one goroutine that uses the semaphore.
func (c *process) usePermits(draws *rand.Rand, life context.Context) {
	d := player.Drawer{Rand: draws}
	opts := []relock.MutexOption{}
	if d.Chance(c.plan.OwnLease) {
		opts = append(opts, relock.WithoutRenewal())
	}
	s := c.locks.Semaphore(semaphoreName, semaphoreLimit, opts...)
	for {
		d.Rand.Uint64() // at least one draw for each use
		pause := d.Between(0, c.plan.Think/2)
		select {
		case <-time.After(pause):
		case <-c.stopping:
			return
		}
		c.Gate()
		c.usePermit(d, s, life)
	}
}

// usePermit acquires a permit, uses it for a while, and releases it.
func (c *process) usePermit(d player.Drawer, s *relock.Semaphore, life context.Context) {
	weight, length := player.Pick(d, 1, 1, 1, 2, 3, 4), c.Length(d)
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	if d.Chance(c.plan.Impatient) {
		ctx, cancel = context.WithTimeout(ctx, d.Between(0, c.plan.TTL))
		defer cancel()
	}
	p, err := s.AcquireN(ctx, weight)
	if d.Chance(c.plan.Try) && err != nil {
		p, _, err = s.TryAcquire(life)
	}
	c.Gate()
	if err != nil && life.Err() != nil { // see drain
		c.left("a waiter for permits was not served: %v", err)
	}
	if err != nil || p == nil {
		return
	}
	from, valid := c.Now(), p.Context(life)
	last := c.Trust(valid)
	select {
	case <-time.After(length):
	case <-valid.Done():
	}
	c.Gate()
	use := permitUse{process: c.number, id: p.ID(), weight: p.Weight(), from: from, to: last()}
	_ = p.Release()
	c.Gate()
	if use.to >= from { // else the clocks of the process stood still meanwhile
		c.play.mu.Lock()
		defer c.play.mu.Unlock()
		c.play.permits = append(c.play.permits, use)
	}
}

// judgePermits returns a violation if the weights of permits that were valid at one time exceed the limit.
func judgePermits(uses []permitUse) []check.Violation {
	slices.SortFunc(uses, func(a, b permitUse) int { return int(a.from - b.from) })
	for i, use := range uses {
		weight := 0
		var valid []permitUse
		for _, before := range uses[:i+1] {
			if before.to >= use.from {
				weight += before.weight
				valid = append(valid, before)
			}
		}
		if weight > semaphoreLimit {
			return []check.Violation{{Invariant: "permits", Lock: semaphoreName,
				Text: fmt.Sprintf("a weight of %d is in use at %s: %v", weight, seconds(use.from), valid)}}
		}
	}
	return nil
}
