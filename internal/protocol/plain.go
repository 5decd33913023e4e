package protocol

import (
	"context"
	_ "embed"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// The scripts. Their headers say what they take and reply; the functions below are the only
// ones that know it. All scripts of this package are exported for tests, whose fixtures recognise
// by them what a client sends; a client calls the functions.
var (
	//go:embed lua/prelude.lua
	prelude string
	//go:embed lua/acquire.lua
	acquireSource string
	//go:embed lua/reenter.lua
	reenterSource string
	//go:embed lua/renew.lua
	renewSource string
	//go:embed lua/renew_many.lua
	renewManySource string
	//go:embed lua/release.lua
	releaseSource string
	//go:embed lua/handoff.lua
	handoffSource string
	//go:embed lua/rename.lua
	renameSource string
	//go:embed lua/force.lua
	forceSource string
	//go:embed lua/state.lua
	stateSource string

	AcquireScript   = withPrelude(acquireSource)
	ReenterScript   = withPrelude(reenterSource)
	RenewScript     = withPrelude(renewSource)
	RenewManyScript = withPrelude(renewManySource)
	ReleaseScript   = withPrelude(releaseSource)
	HandoffScript   = withPrelude(handoffSource)
	RenameScript    = withPrelude(renameSource)
	ForceScript     = withPrelude(forceSource)
	StateScript     = withPrelude(stateSource)
)

// withPrelude puts the prelude, and more of the kind, before source, or where that has the line
// "-- prelude": then what comes before it is the usual case, which does without.
func withPrelude(source string, more ...string) *redisexec.Script {
	before, after, found := strings.Cut(source, "-- prelude\n")
	if !found {
		before, after = "", source
	}
	return redisexec.NewScript(code(before + prelude + strings.Join(more, "") + after))
}

// code returns a script without the lines that are comments. Redis keeps what it is sent, and knows a script by its
// hash: so a comment that is added or reworded makes no script that Redis has yet to learn.
func code(source string) string {
	var b strings.Builder
	for line := range strings.Lines(source) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Plain is the protocol of Mutex and MultiMutex: one hash at each key, whose only field is
// the owner's and counts its levels.
type Plain struct {
	// All of them are set when it is made, and never changed.
	Exec     *redisexec.Executor
	sharded  bool      // wake-ups stay within the shard of the key
	lined    bool      // waiters stand in lines, which newcomers mind
	renewals *renewals // that are sent together; nil: each is sent alone
}

// NewPlain returns the protocol on one deployment. It sends each renewal alone.
func NewPlain(exec *redisexec.Executor, sharded bool) *Plain {
	return &Plain{Exec: exec, sharded: sharded}
}

// NewBatchingPlain is NewPlain with renewals that are sent together if they are due together, and for locks whose
// waiters stand in lines. The nodes of a quorum have neither.
func NewBatchingPlain(exec *redisexec.Executor, sharded bool) *Plain {
	p := NewPlain(exec, sharded)
	p.lined = true
	p.renewals = newRenewals(p)
	return p
}

// run executes a script. The reply of a call that failed is empty. To read it gives nonsense, which does no harm:
// the outcome has the error, and understood lets that win.
func (p *Plain) run(ctx context.Context, e redisexec.CallOptions, s *redisexec.Script, keys []any, args ...any) (reply, redisexec.Outcome) {
	value, out := p.Exec.Run(ctx, e, s, keys, args...)
	if out.Err != nil {
		return reply{}, out
	}
	return newReply(value), out
}

// publishCommand wakes the waiters of a lock. A sharded channel is on the key's node,
// because it carries the key's hash tag.
func (p *Plain) publishCommand() any { // which costs no allocation
	if p.sharded {
		return "spublish"
	}
	return "publish"
}

// Acquire implements [Protocol].
func (p *Plain) Acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms) (Grant, redisexec.Outcome) {
	keys, counters := t.LocksAndCounters(s.Fencing), 0
	if s.Fencing {
		counters = len(t.Counters)
	}
	// While the slot moves, or for a user that may not touch the lines, these are left out: to pass those in line is
	// better than no lock. The counters are not: a token that did not reach its counter would be worse than none.
	e.RequiredKeys = len(t.Keys) + counters
	if p.lined {
		keys = slices.Concat(keys, t.Lines)
	}
	args := []any{field, s.TTL.Milliseconds(), len(t.Keys), s.CounterLife.Milliseconds(), counters}
	if len(t.Keys) == 1 && !s.Fencing { // the usual case; the script knows it by the missing words
		args = args[:2]
	}
	r, out := p.run(ctx, e, AcquireScript, keys, args...)
	return understood(r.grant(t, s.Fencing), out, &r)
}

// Reenter implements [Protocol].
func (p *Plain) Reenter(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, mint bool, counts []int) (Grant, redisexec.Outcome) {
	// The counts are those that the hold is to have. So a copy that is sent again changes nothing.
	args := []any{field, s.TTL.Milliseconds(), len(t.Keys), s.CounterLife.Milliseconds()}
	for _, count := range counts {
		args = append(args, count)
	}
	r, out := p.run(ctx, e, ReenterScript, t.LocksAndCounters(mint), args...)
	return understood(r.grantOrLost(t, mint), out, &r)
}

// Renew implements [Protocol].
func (p *Plain) Renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	if e.Batchable && p.renewals != nil {
		return p.renewals.renew(ctx, e, t, field, lease)
	}
	return p.renewAlone(ctx, e, t, field, lease)
}

// renewAlone is Renew as a command of its own. It never makes a key: a hold that was lost stays lost.
func (p *Plain) renewAlone(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	r, out := p.run(ctx, e, RenewScript, t.Locks(), field, lease.Milliseconds())
	return understood(r.flag(), out, &r)
}

// renewMany is renewAlone for several holds, one of each field, with as many keys each, which
// stand hold by hold. It returns the positions, from 1, of those that are lost. The others are renewed all the
// same. After an error nothing is known of any of them.
func (p *Plain) renewMany(ctx context.Context, e redisexec.CallOptions, keys, fields []any, lease time.Duration) (lost []int, out redisexec.Outcome) {
	args := append([]any{lease.Milliseconds(), len(keys) / len(fields)}, fields...)
	r, out := p.run(ctx, e, RenewManyScript, keys, args...)
	return understood(r.lost(len(fields)), out, &r)
}

// Release implements [Protocol].
func (p *Plain) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (Released, redisexec.Outcome) {
	var buf [4]any // for one key
	args := append(buf[:0], field)
	keys := t.Locks()
	for i := range t.Keys {
		// A key that is given back may have waiters of Java's fair lock, which listen elsewhere. One that keeps a
		// level wakes no one, so those queues are no matter.
		args = append(args, &t.Channels[i], counts[i]) // a pointer, which costs no allocation
		if counts[i] == 0 {
			keys = t.Freeing
		}
	}
	args = append(args, p.publishCommand())
	if len(counts) == 1 && counts[0] == 0 && !p.sharded {
		args = args[:2]
	}
	e.RequiredKeys = len(t.Keys) // a queue of Java's that cannot be read must not keep a lock held
	r, out := p.run(ctx, e, ReleaseScript, keys, args...)
	return understood(r.released(), out, &r)
}

// Handoff implements [Protocol]. The same script sets the new owner's lease and token. So no one can get between
// the two owners, and the new one begins with its whole TTL.
func (p *Plain) Handoff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, s *Terms) (Grant, redisexec.Outcome) {
	r, out := p.run(ctx, e, HandoffScript, t.LocksAndCounters(s.Fencing),
		from, s.TTL.Milliseconds(), len(t.Keys), s.CounterLife.Milliseconds(), to)
	return understood(r.grantOrLost(t, s.Fencing), out, &r)
}

// Rename has the lock of t, which is one key, known as to. It is known as from, or was by an earlier copy
// as to; false: it is neither. waiters is how many there are in its line; -1: that is not known.
func (p *Plain) Rename(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, lease time.Duration) (ours bool, waiters int, out redisexec.Outcome) {
	e.RequiredKeys = 1 // the line is only counted: where it cannot be, the holds go on
	r, out := p.run(ctx, e, RenameScript, t.Lined, from, to, lease.Milliseconds())
	ours, waiters = r.flag(), r.receivers(1)
	ours, out = understood(ours, out, &r)
	return ours, waiters, out
}

// usual reports whether the default commands of the scripts are right for publishing and for counting subscribers. Then
// a release is shorter by two words.
func (p *Plain) usual() bool { return !p.sharded && p.Exec.OneNode() }

// countCommand returns the subcommand that counts the subscribers of a channel, or "" on a Cluster without sharded
// pub/sub, where no node can count them all.
func (p *Plain) countCommand() any { // which costs no allocation
	switch {
	case p.sharded:
		return "shardnumsub"
	case p.Exec.OneNode():
		return "numsub"
	default:
		return ""
	}
}

// Force implements [Protocol]. The script compares the fields: a lock that has got another owner since the caller
// looked is left alone.
func (p *Plain) Force(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int, fields []string) (bool, redisexec.Outcome) {
	args := []any{p.publishCommand(), t.Channels[i]}
	for _, field := range fields {
		args = append(args, field)
	}
	e.RequiredKeys = 1
	// The queue of Java's fair lock of that key, which stands behind all locks.
	r, out := p.run(ctx, e, ForceScript, []any{t.Freeing[i], t.Freeing[len(t.Keys)+i]}, args...)
	return understood(r.flag(), out, &r)
}

// State implements [Protocol].
func (p *Plain) State(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int) (KeyState, redisexec.Outcome) {
	t = t.Only(t.Keys[i : i+1]) // so a refusal names that key, and the counter is its own
	r, out := p.run(ctx, e, StateScript, t.LocksAndCounters(true))
	return r.state(t, out)
}

// state returns what a script says of the lock t, and how its call ended.
func (r *reply) state(t *keys.Set, out redisexec.Outcome) (KeyState, redisexec.Outcome) {
	if status := r.integer(0); status != 1 {
		r.refuse(status, t)
		return understood(KeyState{}, out, r)
	}
	s := KeyState{TTL: r.ttl(1), Token: r.number(2)}
	for i := 3; i < len(r.values); i += 2 { // field, count; an odd end is a surprise
		s.Fields, s.Counts = append(s.Fields, r.text(i)), append(s.Counts, int(r.number(i+1)))
	}
	return understood(s, out, r)
}
