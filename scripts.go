package relock

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"
	"time"
)

// The scripts. Their headers say what they take and reply; the functions below are the
// only ones that know it.
var (
	//go:embed lua/prelude.lua
	prelude string
	//go:embed lua/acquire.lua
	acquireSource string
	//go:embed lua/reenter.lua
	reenterSource string
	//go:embed lua/renew.lua
	renewSource string
	//go:embed lua/release.lua
	releaseSource string
	//go:embed lua/handoff.lua
	handoffSource string
	//go:embed lua/force.lua
	forceSource string
	//go:embed lua/state.lua
	stateSource string

	acquireScript = newScript(acquireSource)
	reenterScript = newScript(reenterSource)
	renewScript   = newScript(renewSource)
	releaseScript = newScript(releaseSource)
	handoffScript = newScript(handoffSource)
	forceScript   = newScript(forceSource)
	stateScript   = newScript(stateSource)
)

// script is a Lua script and the name Redis knows it by.
type script struct {
	source string
	digest any // SHA-1, in a box as go-redis takes it
}

// newScript puts the prelude, and more of the kind, before source, or where that has the line
// "-- prelude": then what comes before it is the usual case, which does without.
func newScript(source string, more ...string) *script {
	before, after, found := strings.Cut(source, "-- prelude\n")
	if !found {
		before, after = "", source
	}
	source = before + prelude + strings.Join(more, "") + after
	sum := sha1.Sum([]byte(source))
	return &script{source: source, digest: hex.EncodeToString(sum[:])}
}

// plain is the protocol of Mutex and MultiMutex: one hash at each key, whose only field is
// the owner's and counts its levels.
type plain struct {
	exec    *executor
	sharded bool // wake-ups stay within the shard of the key
}

// publishCommand wakes the waiters of a lock. A sharded channel is on the key's node,
// because it carries the key's hash tag.
func (p *plain) publishCommand() any { // which costs no allocation
	if p.sharded {
		return "spublish"
	}
	return "publish"
}

func (p *plain) acquire(ctx context.Context, e effort, t *target, field string, s *settings) (grant, outcome) {
	r, out := p.exec.run(ctx, e, acquireScript, t.locksAndCounters(s.fencing),
		field, s.ttl.Milliseconds(), len(t.keys), s.counterLife.Milliseconds())
	return understood(r.grant(t, s.fencing), out, r)
}

func (p *plain) reenter(ctx context.Context, e effort, t *target, field string, s *settings, mint bool, counts []int) (grant, outcome) {
	args := []any{field, s.ttl.Milliseconds(), len(t.keys), s.counterLife.Milliseconds()}
	for _, count := range counts {
		args = append(args, count)
	}
	r, out := p.exec.run(ctx, e, reenterScript, t.locksAndCounters(mint), args...)
	return understood(r.grantOrLost(t, mint), out, r)
}

func (p *plain) renew(ctx context.Context, e effort, t *target, field string, lease time.Duration) (bool, outcome) {
	r, out := p.exec.run(ctx, e, renewScript, t.locks(), field, lease.Milliseconds())
	return understood(r.flag(), out, r)
}

func (p *plain) release(ctx context.Context, e effort, t *target, field string, counts []int) (released, outcome) {
	args := make([]any, 0, 2+2*len(t.keys))
	args = append(args, field, p.publishCommand())
	for i := range t.keys {
		args = append(args, counts[i], t.channels[i])
	}
	r, out := p.exec.run(ctx, e, releaseScript, t.locks(), args...)
	return understood(r.released(), out, r)
}

func (p *plain) handoff(ctx context.Context, e effort, t *target, from, to string, s *settings) (grant, outcome) {
	r, out := p.exec.run(ctx, e, handoffScript, t.locksAndCounters(s.fencing),
		from, s.ttl.Milliseconds(), len(t.keys), s.counterLife.Milliseconds(), to)
	return understood(r.grantOrLost(t, s.fencing), out, r)
}

func (p *plain) force(ctx context.Context, e effort, t *target, i int, fields []string) (bool, outcome) {
	args := []any{p.publishCommand(), t.channels[i]}
	for _, field := range fields {
		args = append(args, field)
	}
	r, out := p.exec.run(ctx, e, forceScript, t.words[i:i+1:i+1], args...)
	return understood(r.flag(), out, r)
}

func (p *plain) state(ctx context.Context, e effort, t *target, i int) (keyState, outcome) {
	t = t.only(t.keys[i : i+1])
	r, out := p.exec.run(ctx, e, stateScript, t.words)
	return r.state(t, out)
}

// state returns what a script says of the lock t, and how its call ended.
func (r *reply) state(t *target, out outcome) (keyState, outcome) {
	if status := r.integer(0); status != 1 {
		r.refuse(status, t)
		return understood(keyState{}, out, r)
	}
	s := keyState{ttl: r.life(1), token: r.number(2)}
	for i := 3; i < len(r.values); i += 2 {
		s.fields, s.counts = append(s.fields, r.text(i)), append(s.counts, int(r.number(i+1)))
	}
	return understood(s, out, r)
}

// locksAndCounters returns the KEYS of a script that may mint a token.
func (t *target) locksAndCounters(mint bool) []any {
	if !mint {
		return t.locks()
	}
	return t.words
}

// locks returns the KEYS of a script that mints none.
func (t *target) locks() []any { return t.words[:len(t.keys):len(t.keys)] }
