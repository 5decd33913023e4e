package protocol

import (
	"context"
	_ "embed"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// The scripts of a semaphore: see [AcquireScript].
var (
	//go:embed lua/permit_prelude.lua
	permitPrelude string
	//go:embed lua/permit_acquire.lua
	permitAcquireSource string
	//go:embed lua/permit_poll.lua
	permitPollSource string
	//go:embed lua/permit_release.lua
	permitReleaseSource string
	//go:embed lua/permit_renew.lua
	permitRenewSource string
	//go:embed lua/permit_state.lua
	permitStateSource string

	PermitAcquireScript = withPrelude(permitAcquireSource, linePrelude, permitPrelude)
	PermitPollScript    = withPrelude(permitPollSource, linePrelude, permitPrelude)
	PermitReleaseScript = withPrelude(permitReleaseSource, linePrelude, permitPrelude)
	PermitRenewScript   = withPrelude(permitRenewSource, linePrelude, permitPrelude)
	PermitStateScript   = withPrelude(permitStateSource, linePrelude, permitPrelude)
)

// MostPermits is the highest limit of a semaphore. A larger sorted set is no semaphore for the scripts.
const MostPermits = 10_000

// Permits is the protocol of a semaphore on one Redis: a sorted set of the permits in use, and a line of waiters. A permit
// is granted only in the order of the line.
//
// A permit is its own owner, and no other request has its name. So it is not entered again, and no local waiter takes it
// over: Reenter and Handoff, which it has from Plain, are never called.
type Permits struct {
	*Plain
	process  string // as of Lined
	together *renewals
}

// NewPermits returns the protocol of a process whose channels for grants end in process.
func NewPermits(plain *Plain, process string) *Permits {
	p := &Permits{Plain: plain, process: process}
	p.together = newRenewals(plain.Exec, p.renewAlone, p.renewMany)
	return p
}

// Acquire implements [Protocol]. It does not overtake the line.
func (p *Permits) Acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms) (Grant, redisexec.Outcome) {
	return p.take(ctx, e, t, field, s)
}

// Enqueue implements [Queued].
func (p *Permits) Enqueue(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, ticket uint64) (Grant, redisexec.Outcome) {
	return p.take(ctx, e, t, field, s, s.EntryLease().Milliseconds(), ticket, keys.GrantsPrefix(t.Keys[0])+p.process)
}

// take sends the request of Acquire, or, with the parts of an entry, the request of Enqueue.
func (p *Permits) take(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, entry ...any) (Grant, redisexec.Outcome) {
	args := []any{field, s.ttl(), s.Limit, p.publishCommand(), p.countCommand()}
	r := p.run(ctx, e, PermitAcquireScript, t.Line, append(args, entry...)...)
	return understood(r.grant(t, false), &r)
}

// Poll implements [Queued].
func (p *Permits) Poll(ctx context.Context, e redisexec.CallOptions, t *keys.Set, waiters []Waiter) ([]EntryStatus, Grant, redisexec.Outcome) {
	args := []any{p.publishCommand(), p.countCommand()}
	for _, w := range waiters {
		args = append(args, w.Field, w.Terms.EntryLease().Milliseconds(), w.Terms.Limit)
	}
	r := p.run(ctx, e, PermitPollScript, t.Line, args...)
	return r.polled(t, len(waiters))
}

// mostBundled is the largest weight of a permit that is renewed in one command with others. Each unit of the weight is a
// member of the set, and Redis does nothing else meanwhile.
const mostBundled = 10

// Renew implements [Protocol]. A permit whose lease is over stays lost.
func (p *Permits) Renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	if e.Bundled && keys.WeightOf(field) <= mostBundled {
		return p.together.renew(ctx, e, t, field, lease)
	}
	return p.renewAlone(ctx, e, t, field, lease)
}

func (p *Permits) renewAlone(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	lost, out := p.renewMany(ctx, e, t.Locks(), []any{field}, lease)
	return lost == nil, out
}

// renewMany does what Plain.renewMany does.
func (p *Permits) renewMany(ctx context.Context, e redisexec.CallOptions, keys, fields []any, lease time.Duration) (lost []int, out redisexec.Outcome) {
	r := p.run(ctx, e, PermitRenewScript, keys, append([]any{lease.Milliseconds()}, fields...)...)
	return understood(r.lost(len(fields)), &r)
}

// Release implements [Protocol]. It gives up the permit and the entry in the line, and serves the line.
func (p *Permits) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, _ []int) (Released, redisexec.Outcome) {
	return p.release(ctx, e, t, field)
}

// LeavePlaceholder implements [Protocol]. The placeholder has the weight of the permit.
func (p *Permits) LeavePlaceholder(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, _ clock.Instant, rest time.Duration) (Released, redisexec.Outcome) {
	return p.release(ctx, e, t, field, keys.PermitPlaceholder(field), wholeMillis(rest))
}

// release sends the request of Release; with a placeholder and its life, the request of LeavePlaceholder; and with "",
// the request of Force.
func (p *Permits) release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, more ...any) (Released, redisexec.Outcome) {
	e.RequiredKeys = 1 // a line that cannot be had must not keep the permit
	r := p.run(ctx, e, PermitReleaseScript, t.Line, append([]any{field, p.publishCommand(), p.countCommand()}, more...)...)
	if status, _ := r.at(0).(int64); status < 0 && !r.bare {
		r.refuse(status, t)
		return understood(Released{}, &r)
	}
	return understood(r.releasedInLine(), &r)
}

// Force implements [Protocol]. fields is one permit. If it is the name of a waiter, nothing changes for that waiter.
func (p *Permits) Force(ctx context.Context, e redisexec.CallOptions, t *keys.Set, _ int, fields []string) (bool, redisexec.Outcome) {
	released, out := p.release(ctx, e, t, fields[0], "")
	return released.Ours, out
}

// State implements [Protocol]. Fields are the permits whose lease is not over.
func (p *Permits) State(ctx context.Context, e redisexec.CallOptions, t *keys.Set, _ int) (KeyState, redisexec.Outcome) {
	e.RequiredKeys = 1
	r := p.run(ctx, e, PermitStateScript, t.Line)
	if status := r.integer(0); status != 1 {
		r.refuse(status, t)
		return understood(KeyState{}, &r)
	}
	s := KeyState{Waiting: int(r.integer(1))}
	for i := 2; i < len(r.values); i += 2 { // member, rest of its lease; an odd end is a surprise
		s.Fields, s.Leases = append(s.Fields, r.text(i)), append(s.Leases, r.ttl(i+1))
	}
	return understood(s, &r)
}
