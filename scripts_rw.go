package relock

import (
	"context"
	_ "embed"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

var (
	//go:embed lua/rw_prelude.lua
	rwPrelude string
	//go:embed lua/rw_read.lua
	rwReadSource string
	//go:embed lua/rw_read_reenter.lua
	rwReadReenterSource string
	//go:embed lua/rw_read_renew.lua
	rwReadRenewSource string
	//go:embed lua/rw_read_release.lua
	rwReadReleaseSource string
	//go:embed lua/rw_write.lua
	rwWriteSource string
	//go:embed lua/rw_write_release.lua
	rwWriteReleaseSource string
	//go:embed lua/rw_handoff.lua
	rwHandoffSource string
	//go:embed lua/rw_force.lua
	rwForceSource string
	//go:embed lua/rw_state.lua
	rwStateSource string

	rwReadScript         = newReadWriteScript(rwReadSource)
	rwReadReenterScript  = newReadWriteScript(rwReadReenterSource)
	rwReadRenewScript    = newReadWriteScript(rwReadRenewSource)
	rwReadReleaseScript  = newReadWriteScript(rwReadReleaseSource)
	rwWriteScript        = newReadWriteScript(rwWriteSource)
	rwWriteReleaseScript = newReadWriteScript(rwWriteReleaseSource)
	rwHandoffScript      = newReadWriteScript(rwHandoffSource)
	rwForceScript        = newReadWriteScript(rwForceSource)
	rwStateScript        = newReadWriteScript(rwStateSource)
)

// undeclared is the line by which Dragonfly lets a script touch keys that are not in KEYS: those of
// readers follow from the lock. It has to be the first; to Redis it is a comment.
const undeclared = "--!df flags=allow-undeclared-keys\n"

func newReadWriteScript(source string) *redisexec.Script {
	s := redisexec.NewScript(undeclared + withPrelude(source, rwPrelude).Source)
	s.LooksFirst = true
	return s
}

// rw is what both sides of a read-write lock do alike on Redis.
type rw struct{ *plain }

// readSide is the protocol of those who read. They do not hand over: whoever can be told of a
// release may have read all along.
type readSide struct{ rw }

// writeSide is the protocol of those who write. Levels and leases of a writer are those of a
// plain lock, in a field of its own.
type writeSide struct{ rw }

var (
	_ protocol = (*readSide)(nil)
	_ protocol = (*writeSide)(nil)
)

// readGrace is how long a writer's claim lets new readers in. The first reader after a
// writer takes all those with him who were woken together.
const readGrace = 25 * time.Millisecond

func (p *readSide) acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *terms) (grant, redisexec.Outcome) {
	return p.take(ctx, e, t, field, s, "")
}

// take is acquire for an owner that writes under the name writes, if that is not empty.
func (p *readSide) take(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *terms, writes string) (grant, redisexec.Outcome) {
	r, out := p.run(ctx, e, rwReadScript, t.WithClaim(false), t.RW.Timeouts, field, s.ttl.Milliseconds(), writes)
	return r.reads(t, out, s.ttl, r.grant)
}

func (p *readSide) reenter(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *terms, _ bool, counts []int) (grant, redisexec.Outcome) {
	r, out := p.run(ctx, e, rwReadReenterScript, t.Locks(), t.RW.Timeouts, field, s.ttl.Milliseconds(), counts[0])
	return r.reads(t, out, s.ttl, r.grantOrLost)
}

func (p *readSide) renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	r, out := p.run(ctx, e, rwReadRenewScript, t.Locks(), t.RW.Timeouts, field, lease.Milliseconds())
	g, out := r.reads(t, out, lease, r.grantOrLost)
	return g.held, out
}

func (p *readSide) release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (released, redisexec.Outcome) {
	return p.giveBack(ctx, e, rwReadReleaseScript, t, t.Locks(), field, counts[0])
}

func (p *writeSide) acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *terms) (grant, redisexec.Outcome) {
	return p.take(ctx, e, t, field, s, 0)
}

// take is acquire for a writer who claims the lock for so long if he finds readers.
func (p *writeSide) take(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *terms, claim time.Duration) (grant, redisexec.Outcome) {
	r, out := p.run(ctx, e, rwWriteScript, t.WithClaim(s.fencing), t.RW.Timeouts, field,
		s.ttl.Milliseconds(), s.counterLife.Milliseconds(), claim.Milliseconds(), readGrace.Milliseconds())
	return understood(r.grant(t, s.fencing), out, &r)
}

func (p *writeSide) release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (released, redisexec.Outcome) {
	keys := t.Locks()
	if e.Undoes { // a claim may be all that there is to give up
		keys = t.WithClaim(false)
	}
	answer, out := p.giveBack(ctx, e, rwWriteReleaseScript, t, keys, field, counts[0])
	answer.extra = 1 // one for writers, and one for readers
	return answer, out
}

func (p *writeSide) handoff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, s *terms) (grant, redisexec.Outcome) {
	r, out := p.run(ctx, e, rwHandoffScript, t.LocksAndCounters(s.fencing),
		t.RW.Timeouts, from, s.ttl.Milliseconds(), s.counterLife.Milliseconds(), to)
	return understood(r.grantOrLost(t, s.fencing), out, &r)
}

func (p *rw) giveBack(ctx context.Context, e redisexec.CallOptions, s *redisexec.Script, t *keys.Set, keys []any, field string, count int) (released, redisexec.Outcome) {
	r, out := p.run(ctx, e, s, keys, t.RW.Timeouts, field, count, p.publishCommand(), t.Channels[0])
	return understood(r.released(), out, &r)
}

// force ends those of the holds given that are still there.
func (p *rw) force(ctx context.Context, e redisexec.CallOptions, t *keys.Set, _ int, fields []string) (bool, redisexec.Outcome) {
	args := []any{t.RW.Timeouts, p.publishCommand(), t.Channels[0]}
	for _, field := range fields {
		args = append(args, field)
	}
	r, out := p.run(ctx, e, rwForceScript, t.Locks(), args...)
	return understood(r.flag(), out, &r)
}

// state reads all live holds, a writer's first.
func (p *rw) state(ctx context.Context, e redisexec.CallOptions, t *keys.Set, _ int) (keyState, redisexec.Outcome) {
	r, out := p.run(ctx, e, rwStateScript, t.LocksAndCounters(true), t.RW.Timeouts)
	return r.state(t, out)
}
