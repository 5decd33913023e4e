package relock

import (
	"context"
	"errors"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// How a hold uses its batch (batch.go).

// joinBatch returns the batch of h. If there is none, it begins one with h.
func (h *hold) joinBatch() *batch {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.batch == nil {
		h.batch = newBatch(h)
		h.batch.gate.beginBatch(h.batch)
	}
	return h.batch
}

// follow makes h, a waiter, begin with the lease of the previous hold.
func (h *hold) follow(before *hold, n keys.Name, b *batch) {
	before.mu.Lock()
	l := before.lease
	before.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.name, h.batch, h.slot = n, b, b.slot
	// mutant: batch-own-lease
	h.lease.Follow(l)
}

// setName records the name under which Redis is about to have the lock, because the previous one was retired.
func (h *hold) setName(n keys.Name) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.name = n
}

// forget makes h have no name, and no batch.
func (h *hold) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.name, h.batch, h.slot = keys.Name{}, nil, &h.first.slot
}

// wantedLease returns the longest lease of the open Locks.
func (h *hold) wantedLease() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.locks.ttl()
}

// renameConfirmed records that Redis has the lock under the name of h.
func (h *hold) renameConfirmed(b *batch, out redisexec.Outcome, lease time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.batch == b && (h.phase == held || h.phase == acquiring || h.lingered) {
		_ = h.renewalSettled(out, lease) // there is none
	}
}

// renameFailed reports to the hook RenewFailed that a rename was not answered. The hook runs on another goroutine, because
// the slot is taken here.
func (h *hold) renameFailed(out redisexec.Outcome) {
	h.mu.Lock()
	holding := h.phase == held
	if holding {
		out.Err = h.renewalSettled(out, 0)
	}
	event, hooks := h.event(h.session.now().Since(out.Sent), out.Err), h.hooks()
	h.mu.Unlock()
	if holding && hooks.RenewFailed != nil {
		h.session.goroutines.Go(func() { h.session.report("RenewFailed", hooks.RenewFailed, h.owner, event) })
	}
}

// endBatch ends the batch of h, which no hold follows. A min hold needs the name of h on Redis, so that is written first.
func (h *hold) endBatch(ctx context.Context) {
	if h.inMinHold() {
		_, _ = h.confirmName(ctx) // if Redis does not answer, the placeholder replaces the previous name
	}
	h.batch.holderEnds()
}

// onRedis returns the name of the lock on Redis, while no rename is in flight.
func (h *hold) onRedis() keys.Name {
	h.mu.Lock()
	n, b := h.name, h.batch
	h.mu.Unlock()
	if b == nil {
		return n
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.settled
}

// confirmName waits until Redis has the lock under the name of h, the holder, which the next command of h needs.
// waited: a rename was necessary, and has proven the lease.
func (h *hold) confirmName(ctx context.Context) (waited bool, err error) {
	h.mu.Lock()
	b := h.batch
	h.mu.Unlock()
	if b == nil {
		return false, nil
	}
	answer := b.confirmName(h)
	if answer == nil {
		return false, nil
	}
	select {
	case err := <-answer:
		return true, err
	case <-ctx.Done():
		return true, b.unanswered(ctx)
	}
}

// awaitAnswer waits for the answer to a command that was sent after the end of h.
func (h *hold) awaitAnswer(ctx context.Context, answer <-chan error) (err error) {
	select {
	case err = <-answer:
		if err == nil || errors.Is(err, ErrLost) {
			return err
		}
	case <-ctx.Done():
		err = h.batch.unanswered(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unconfirmed(err)
}
