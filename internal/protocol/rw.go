package protocol

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// The scripts of a read-write lock: see [AcquireScript].
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
	//go:embed lua/rw_force.lua
	rwForceSource string
	//go:embed lua/rw_state.lua
	rwStateSource string

	RWReadScript         = newReadWriteScript(rwReadSource)
	RWReadReenterScript  = newReadWriteScript(rwReadReenterSource)
	RWReadRenewScript    = newReadWriteScript(rwReadRenewSource)
	RWReadReleaseScript  = newReadWriteScript(rwReadReleaseSource)
	RWWriteScript        = newReadWriteScript(rwWriteSource)
	RWWriteReleaseScript = newReadWriteScript(rwWriteReleaseSource)
	RWForceScript        = newReadWriteScript(rwForceSource)
	RWStateScript        = newReadWriteScript(rwStateSource)
)

// undeclared is the line that lets a script use keys that are not in KEYS, on Dragonfly. The names of readers' keys follow
// from the lock. It has to be the first line. For Redis it is a comment.
const undeclared = "--!df flags=allow-undeclared-keys\n"

func newReadWriteScript(source string) *redisexec.Script {
	s := redisexec.NewScript(slices.Insert(partsOf(source, rwPrelude), 0, undeclared)...)
	s.LooksFirst = true
	return s
}

// readWrite has the calls that are the same for both sides of a read-write lock, and differ from a plain lock.
type readWrite struct{ *Plain }

// ReadSide is the protocol of readers. They do not hand over: a reader that can be notified of a release may have read
// all along.
type ReadSide struct{ readWrite }

// WriteSide is the protocol of writers. Reenter and Renew are those of a plain lock, with a field of its own.
type WriteSide struct{ readWrite }

// NewReadWrite returns the protocols of the two sides of a read-write lock.
func NewReadWrite(plain *Plain) (*ReadSide, *WriteSide) {
	return &ReadSide{readWrite{plain}}, &WriteSide{readWrite{plain}}
}

// readGrace is how long a new claim of a writer lets new readers in. So all readers that are woken together after a writer
// can read.
const readGrace = 25 * time.Millisecond

// Acquire implements [Protocol].
func (p *ReadSide) Acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms) (Grant, redisexec.Outcome) {
	return p.Take(ctx, e, t, field, s, "", false)
}

// Take is Acquire for an owner that holds the write side under the name writes, unless that is empty. waits: if the lock is
// taken, the process of the holder is to know.
func (p *ReadSide) Take(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, writes string, waits bool) (Grant, redisexec.Outcome) {
	args := p.announcing(t, waits, t.RW.Timeouts, field, s.ttl(), writes)
	r := p.run(ctx, e, RWReadScript, t.WithClaim(false), args...)
	return r.reads(t, s.TTL, r.grant)
}

// Reenter implements [Protocol].
func (p *ReadSide) Reenter(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, _ bool, counts []int) (Grant, redisexec.Outcome) {
	r := p.run(ctx, e, RWReadReenterScript, t.Locks(), t.RW.Timeouts, field, s.ttl(), counts[0])
	return r.reads(t, s.TTL, r.grantOrLost)
}

// Renew implements [Protocol].
func (p *ReadSide) Renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	r := p.run(ctx, e, RWReadRenewScript, t.Locks(), t.RW.Timeouts, field, lease.Milliseconds())
	g, out := r.reads(t, lease, r.grantOrLost)
	return g.Held, out
}

// Release implements [Protocol].
func (p *ReadSide) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (Released, redisexec.Outcome) {
	return p.release(ctx, e, RWReadReleaseScript, t, t.Locks(), field, counts[0])
}

// Acquire implements [Protocol].
func (p *WriteSide) Acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms) (Grant, redisexec.Outcome) {
	return p.Take(ctx, e, t, field, s, 0, false)
}

// Take is Acquire for a writer. If it finds readers, it claims the lock for the time claim. waits is as for ReadSide.Take.
func (p *WriteSide) Take(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, claim time.Duration, waits bool) (Grant, redisexec.Outcome) {
	args := p.announcing(t, waits, t.RW.Timeouts, field, s.ttl(), s.CounterLife.Milliseconds(), claim.Milliseconds(), readGrace.Milliseconds())
	r := p.run(ctx, e, RWWriteScript, t.WithClaim(s.Fencing), args...)
	return understood(r.grant(t, s.Fencing), &r)
}

// Release implements [Protocol].
func (p *WriteSide) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (Released, redisexec.Outcome) {
	keys := t.Locks()
	if e.Undoes { // there may be only a claim to give up
		keys = t.WithClaim(false)
	}
	answer, out := p.release(ctx, e, RWWriteReleaseScript, t, keys, field, counts[0])
	answer.Extra = 1 // one for writers, and one for readers
	return answer, out
}

// Handoff implements [Protocol].
func (p *WriteSide) Handoff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, s *Terms) (Grant, redisexec.Outcome) {
	return p.handOff(ctx, e, t, "rw", from, to, s)
}

// announcing returns args, and what a script needs to announce that the owner waits.
func (p *readWrite) announcing(t *keys.Set, waits bool, args ...any) []any {
	if waits {
		args = append(args, p.publishCommand(), keys.WantedOf(t.Keys[0]))
	}
	return args
}

// release sets the count of field, and releases the lock if the count is 0.
func (p *readWrite) release(ctx context.Context, e redisexec.CallOptions, s *redisexec.Script, t *keys.Set, keys []any, field string, count int) (Released, redisexec.Outcome) {
	r := p.run(ctx, e, s, keys, t.RW.Timeouts, field, count, p.publishCommand(), t.Channels[0])
	return understood(r.released(), &r)
}

// Force implements [Protocol]: it ends the given holds that still exist.
func (p *readWrite) Force(ctx context.Context, e redisexec.CallOptions, t *keys.Set, _ int, fields []string) (bool, redisexec.Outcome) {
	args := []any{t.RW.Timeouts, p.publishCommand(), t.Channels[0]}
	for _, field := range fields {
		args = append(args, field)
	}
	r := p.run(ctx, e, RWForceScript, t.Locks(), args...)
	return understood(r.flag(), &r)
}

// State implements [Protocol]: it reads all live holds, a writer's first.
func (p *readWrite) State(ctx context.Context, e redisexec.CallOptions, t *keys.Set, _ int) (KeyState, redisexec.Outcome) {
	r := p.run(ctx, e, RWStateScript, t.LocksAndCounters(true), t.RW.Timeouts)
	return r.state(t)
}

// Handoff is never called: a reader that can be notified of a release may have read all along.
func (p *ReadSide) Handoff(context.Context, redisexec.CallOptions, *keys.Set, string, string, *Terms) (Grant, redisexec.Outcome) {
	return Grant{}, redisexec.Outcome{Err: errNoHandoff, Permanent: true}
}

var errNoHandoff = errors.New("the read side has no hand-over")
