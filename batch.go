package relock

import (
	"context"
	"errors"
	"time"

	"github.com/relock-go/relock/internal/acquire"
	"github.com/relock-go/relock/internal/batch"
	"github.com/relock-go/relock/internal/identity"
	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/redisexec"
)

// handAhead has the next waiter of this process follow h, which has ended, before Redis knows. It
// returns where the answer of Redis will be; nil: no one follows in this way.
func (h *hold) handAhead(s *settings) <-chan error {
	h.mu.Lock()
	// A name that a late copy may bring back has to be undone when Redis has it no more, so the batch cannot have it.
	single := len(h.places) == 1 && !h.name.Late
	h.mu.Unlock()
	if h.kind.batches == nil || !single || h.settings.replicas.N > 0 || h.isKept() {
		return nil
	}
	for {
		ticket := h.follower(s.localHandoffs)
		if ticket == nil {
			return nil
		}
		if told, done := h.pass(ticket); done {
			return told
		}
	}
}

// follower reserves the ticket of the next waiter if that may take h's place under its lease, and it
// is still this process' turn.
func (h *hold) follower(limit int) *acquire.Ticket {
	first := h.places[0]
	inRow, waiting := first.Queue.Handoffs()
	if !waiting {
		return nil
	}
	h.mu.Lock()
	left, b := h.lease.Left(h.session.Now()), h.batch
	h.mu.Unlock()
	if inRow >= limit && (limit == 0 || !b.GoesOn()) {
		return nil
	}
	return first.Ticket.Reserve(func(x acquire.Hold) bool {
		w := asHold(x)
		w.attempt.Offered = acquire.Offer{} // nothing is sent for it
		return w.target.ID == h.target.ID && w.settings.canFollow(left)
	})
}

// pass has the waiter with the reserved ticket follow h. not done: it has left. A nil channel: the
// batch is over, and h is to find out by itself.
func (h *hold) pass(ticket *acquire.Ticket) (told <-chan error, done bool) {
	b, next := h.joinBatch(), asHold(ticket.Value)
	n := h.session.Identities.Current().Of(b.Target(), next.owner)
	next.follow(h, n, b)
	told, over := b.Pass(next, n, func() bool { return h.places[0].Ticket.Grant(ticket) })
	if over {
		next.forget()
		ticket.Refuse()
	}
	return told, over || told != nil
}

// joinBatch returns the batch of h, which begins with it if there is none.
func (h *hold) joinBatch() *batch.Batch {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.batch == nil {
		h.batch = batch.New(h.kind.batches, h, h.name, h.target, h.places[0].Gate, h.slot, h.lease.Acquired())
	}
	return h.batch
}

// follow has h, a waiter, begin with the lease of the hold before.
func (h *hold) follow(before *hold, n identity.Name, b *batch.Batch) {
	before.mu.Lock()
	l := before.lease
	before.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.name, h.batch, h.slot = n, b, b.Slot()
	// mutant: batch-own-lease
	h.lease.Follow(l)
}

// forget has h be known by no name, and in no batch.
func (h *hold) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.name, h.batch, h.slot = identity.Name{}, nil, &h.first.slot
}

// WantedLease is the longest lease of the open levels'.
func (h *hold) WantedLease() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.levels.ttl()
}

// Told records that Redis knows the lock by the name of h.
func (h *hold) Told(b *batch.Batch, out redisexec.Outcome, lease time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.batch == b && (h.phase == held || h.phase == acquiring) {
		_ = h.renewalSettled(out, lease) // there is none
	}
}

// Untold has the hook told that a rename was not answered, as a renewal: the slot is taken, so not here.
func (h *hold) Untold(out redisexec.Outcome) {
	h.mu.Lock()
	holding := h.phase == held
	if holding {
		out.Err = h.renewalSettled(out, 0)
	}
	event, hooks := h.event(h.session.Now().Since(out.Sent), out.Err), *h.hooks()
	h.mu.Unlock()
	if holding && hooks.RenewFailed != nil {
		h.session.Goroutines.Go(func() { report(hooks.RenewFailed, h.owner, event) })
	}
}

// Lose ends h because Redis knows it by no name.
func (h *hold) Lose() { h.lose(lockerr.ErrNotOnRedis) }

// endBatch says that no one follows h, which has ended. If it is kept, then by its own name: Redis is told that first.
func (h *hold) endBatch(ctx context.Context) {
	if h.isKept() {
		_, _ = h.known(ctx) // without an answer the name before has to do
	}
	h.batch.HolderEnds()
}

// onRedis is the name by which Redis knows the lock. No rename is under way.
func (h *hold) onRedis() identity.Name {
	h.mu.Lock()
	n, b := h.name, h.batch
	h.mu.Unlock()
	if b == nil {
		return n
	}
	return b.Settled()
}

// known waits until Redis knows the lock by the name of h, the holder: the next command of h needs that.
// waited: there was something to tell, and its lease was proven by that.
func (h *hold) known(ctx context.Context) (waited bool, err error) {
	h.mu.Lock()
	b := h.batch
	h.mu.Unlock()
	if b == nil {
		return false, nil
	}
	told := b.Known(h)
	if told == nil {
		return false, nil
	}
	select {
	case err := <-told:
		return true, err
	case <-ctx.Done():
		return true, b.Unanswered(ctx)
	}
}

// awaitTold waits for the answer to a command that was sent after h had ended.
func (h *hold) awaitTold(ctx context.Context, told <-chan error) (err error) {
	select {
	case err = <-told:
		if err == nil || errors.Is(err, ErrLost) {
			return err
		}
	case <-ctx.Done():
		h.session.Identities.Retire(h.name.Identity) // its owner may come back before the answer
		err = h.batch.Unanswered(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unheard(err)
}
