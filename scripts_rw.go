package relock

import (
	"context"
	_ "embed"
	"strings"
	"time"
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

	rwReadScript         = newScript(rwReadSource, rwPrelude)
	rwReadReenterScript  = newScript(rwReadReenterSource, rwPrelude)
	rwReadRenewScript    = newScript(rwReadRenewSource, rwPrelude)
	rwReadReleaseScript  = newScript(rwReadReleaseSource, rwPrelude)
	rwWriteScript        = newScript(rwWriteSource, rwPrelude)
	rwWriteReleaseScript = newScript(rwWriteReleaseSource, rwPrelude)
	rwHandoffScript      = newScript(rwHandoffSource, rwPrelude)
	rwForceScript        = newScript(rwForceSource, rwPrelude)
	rwStateScript        = newScript(rwStateSource, rwPrelude)
)

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

// rwKeys are the names of what a read-write lock has besides its key, which are Redisson's
// but for the claim.
type rwKeys struct {
	claim    string
	timeouts string // prefix of the timeout keys
	words    []any  // KEYS of a script that may mint a token
}

// writeSuffix ends the field of a write hold. An owner has no ':' in it.
const writeSuffix = ":write"

// readGrace is how long a writer's claim lets new readers in. The first reader after a
// writer takes all those with him who were woken together.
const readGrace = 25 * time.Millisecond

// readWrite makes t, of one key, that of a read-write lock.
func (t *target) readWrite() {
	key := t.keys[0]
	t.rw = &rwKeys{claim: derived(rwClaimPrefix, key), timeouts: key}
	if !strings.Contains(key, "{") {
		t.rw.timeouts = "{" + key + "}"
	}
	t.rw.words = boxed(key, t.rw.claim, t.counters[0])
	t.channels = []string{derived(rwPrefix, key)}
}

// rwKeys returns the KEYS of a script that may mint a token.
func (t *target) rwKeys(mint bool) []any {
	if !mint {
		return t.rw.words[:2:2]
	}
	return t.rw.words
}

func (p *readSide) acquire(ctx context.Context, e effort, t *target, field string, s *settings) (grant, outcome) {
	return p.take(ctx, e, t, field, s, "")
}

// take is acquire for an owner that writes under the name writes, if that is not empty.
func (p *readSide) take(ctx context.Context, e effort, t *target, field string, s *settings, writes string) (grant, outcome) {
	r, out := p.exec.run(ctx, e, rwReadScript, t.rwKeys(false), t.rw.timeouts, field, s.ttl.Milliseconds(), writes)
	return understood(r.grant(t, false), out, r)
}

func (p *readSide) reenter(ctx context.Context, e effort, t *target, field string, s *settings, _ bool, counts []int) (grant, outcome) {
	r, out := p.exec.run(ctx, e, rwReadReenterScript, t.rwKeys(false), t.rw.timeouts, field, s.ttl.Milliseconds(), counts[0])
	return understood(r.grantOrLost(t, false), out, r)
}

func (p *readSide) renew(ctx context.Context, e effort, t *target, field string, lease time.Duration) (bool, outcome) {
	r, out := p.exec.run(ctx, e, rwReadRenewScript, t.rwKeys(false), t.rw.timeouts, field, lease.Milliseconds())
	return understood(r.flag(), out, r)
}

func (p *readSide) release(ctx context.Context, e effort, t *target, field string, counts []int) (released, outcome) {
	return p.giveBack(ctx, e, rwReadReleaseScript, t, field, counts[0])
}

func (p *writeSide) acquire(ctx context.Context, e effort, t *target, field string, s *settings) (grant, outcome) {
	return p.take(ctx, e, t, field, s, 0)
}

// take is acquire for a writer who claims the lock for so long if he finds readers.
func (p *writeSide) take(ctx context.Context, e effort, t *target, field string, s *settings, claim time.Duration) (grant, outcome) {
	r, out := p.exec.run(ctx, e, rwWriteScript, t.rwKeys(s.fencing), t.rw.timeouts, field,
		s.ttl.Milliseconds(), s.counterLife.Milliseconds(), claim.Milliseconds(), readGrace.Milliseconds())
	return understood(r.grant(t, s.fencing), out, r)
}

func (p *writeSide) release(ctx context.Context, e effort, t *target, field string, counts []int) (released, outcome) {
	return p.giveBack(ctx, e, rwWriteReleaseScript, t, field, counts[0])
}

func (p *writeSide) handoff(ctx context.Context, e effort, t *target, from, to string, s *settings) (grant, outcome) {
	r, out := p.exec.run(ctx, e, rwHandoffScript, t.rwKeys(s.fencing),
		t.rw.timeouts, from, s.ttl.Milliseconds(), s.counterLife.Milliseconds(), to)
	return understood(r.grantOrLost(t, s.fencing), out, r)
}

func (p *rw) giveBack(ctx context.Context, e effort, s *script, t *target, field string, count int) (released, outcome) {
	r, out := p.exec.run(ctx, e, s, t.rwKeys(false), t.rw.timeouts, field, count, p.publishCommand(), t.channels[0])
	return understood(r.released(), out, r)
}

// force ends those of the holds given that are still there.
func (p *rw) force(ctx context.Context, e effort, t *target, _ int, fields []string) (bool, outcome) {
	args := []any{t.rw.timeouts, p.publishCommand(), t.channels[0]}
	for _, field := range fields {
		args = append(args, field)
	}
	r, out := p.exec.run(ctx, e, rwForceScript, t.rwKeys(false), args...)
	return understood(r.flag(), out, r)
}

// state reads all live holds, a writer's first.
func (p *rw) state(ctx context.Context, e effort, t *target, _ int) (keyState, outcome) {
	r, out := p.exec.run(ctx, e, rwStateScript, t.rwKeys(true), t.rw.timeouts)
	return r.state(t, out)
}
