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

// The scripts. Their headers define arguments and replies, which only the functions below use. All scripts of this
// package are exported for tests, whose fixtures recognise by them what a client sends. A client calls the functions.
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
	RenameScript    = withPrelude(renameSource)
	ForceScript     = withPrelude(forceSource)
	StateScript     = withPrelude(stateSource)
)

// withPrelude returns the script of source, with the prelude and more of the kind.
func withPrelude(source string, more ...string) *redisexec.Script {
	return redisexec.NewScript(partsOf(source, more...)...)
}

// partsOf returns the parts of that script. The prelude comes first, or where source has the line "-- prelude". The part
// of source before that line is the usual case, which needs no prelude.
func partsOf(source string, more ...string) []string {
	before, after, found := strings.Cut(source, "-- prelude\n")
	if !found {
		before, after = "", source
	}
	return slices.Concat([]string{before, prelude}, more, []string{after})
}

// Plain is the protocol of Mutex and MultiMutex: a hash at each key, with one field, which contains the owner's hold
// count.
type Plain struct {
	// These never change.
	Exec     *redisexec.Executor
	sharded  bool      // wake-ups stay within the shard of the key
	lined    bool      // keys may have a line of waiters, which newcomers do not overtake
	renewals *renewals // sends renewals together; nil: each is sent alone
}

// NewPlain returns the protocol on one deployment. It sends each renewal alone.
func NewPlain(exec *redisexec.Executor, sharded bool) *Plain {
	return &Plain{Exec: exec, sharded: sharded}
}

// NewBundlingPlain is NewPlain for locks with a line of waiters. Renewals that are due together are sent together. The
// nodes of a quorum have neither.
func NewBundlingPlain(exec *redisexec.Executor, sharded bool) *Plain {
	p := NewPlain(exec, sharded)
	p.lined = true
	p.renewals = newRenewals(exec, p.renewAlone, p.renewMany)
	return p
}

// run executes a script. Scripts answer with integers, texts and lists of those. Anything else, such as a map of RESP3, is
// unexpected for the method that reads it.
func (p *Plain) run(ctx context.Context, e redisexec.CallOptions, s *redisexec.Script, keys []any, args ...any) (r reply) {
	r.value, r.out = p.Exec.Run(ctx, e, s, keys, args...)
	values, list := r.value.([]any)
	r.values, r.bare = values, !list
	return r
}

// publishCommand returns the command that wakes the waiters of a lock. A sharded channel is on the key's node, because it
// contains the key's hash tag.
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
	// While the slot moves, or if the user has no permission for the lines, the lines are left out: to overtake waiters is
	// better than to fail. The counters are not left out: a token without its counter would be worse than none.
	e.RequiredKeys = len(t.Keys) + counters
	if p.lined {
		keys = slices.Concat(keys, t.Lines)
	}
	args := []any{field, s.ttl(), len(t.Keys), s.CounterLife.Milliseconds(), counters}
	if len(t.Keys) == 1 && !s.Fencing { // the usual case, which the script recognizes by the missing arguments
		args = args[:2]
	}
	r := p.run(ctx, e, AcquireScript, keys, args...)
	return understood(r.grant(t, s.Fencing), &r)
}

// Reenter implements [Protocol].
func (p *Plain) Reenter(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, mint bool, counts []int) (Grant, redisexec.Outcome) {
	// The counts are absolute. So a repeated copy changes nothing.
	args := []any{field, s.ttl(), len(t.Keys), s.CounterLife.Milliseconds()}
	for _, count := range counts {
		args = append(args, count)
	}
	r := p.run(ctx, e, ReenterScript, t.LocksAndCounters(mint), args...)
	return understood(r.grantOrLost(t, mint), &r)
}

// Renew implements [Protocol].
func (p *Plain) Renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	if e.Bundled && p.renewals != nil {
		return p.renewals.renew(ctx, e, t, field, lease)
	}
	return p.renewAlone(ctx, e, t, field, lease)
}

// renewAlone is Renew as a command of its own. It creates no key: a lost hold stays lost.
func (p *Plain) renewAlone(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	r := p.run(ctx, e, RenewScript, t.Locks(), field, lease.Milliseconds())
	return understood(r.flag(), &r)
}

// renewMany is renewAlone for several holds, one for each field. All have the same number of keys, and keys lists them
// hold by hold. It returns the positions, from 1, of the lost holds. The others are renewed. After an error, the outcome
// of all of them is unknown.
func (p *Plain) renewMany(ctx context.Context, e redisexec.CallOptions, keys, fields []any, lease time.Duration) (lost []int, out redisexec.Outcome) {
	args := append([]any{lease.Milliseconds(), len(keys) / len(fields)}, fields...)
	r := p.run(ctx, e, RenewManyScript, keys, args...)
	return understood(r.lost(len(fields)), &r)
}

// Release implements [Protocol].
func (p *Plain) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (Released, redisexec.Outcome) {
	var buf [4]any // for one key
	args := append(buf[:0], field)
	keys := t.Locks()
	for i := range t.Keys {
		// A released key may have waiters of Java's fair lock, which subscribe to other channels. A key whose count stays
		// above 0 wakes no one, so the script does not need those queues.
		args = append(args, &t.Channels[i], counts[i]) // a pointer, which costs no allocation
		if counts[i] == 0 {
			keys = t.Freeing
		}
	}
	args = append(args, p.publishCommand())
	if len(counts) == 1 && counts[0] == 0 && !p.sharded {
		args = args[:2]
	}
	e.RequiredKeys = len(t.Keys) // a lock is released even if the queue of Java's fair lock cannot be read
	r := p.run(ctx, e, ReleaseScript, keys, args...)
	return understood(r.released(), &r)
}

// Handoff implements [Protocol]. The same script sets the new owner's lease and token. So no other owner can come between
// the two, and the new owner begins with its whole TTL.
func (p *Plain) Handoff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, s *Terms) (Grant, redisexec.Outcome) {
	return p.handOff(ctx, e, t, "lock", from, to, s)
}

// handOff is Handoff for a kind of rename.lua.
func (p *Plain) handOff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, kind, from, to string, s *Terms) (Grant, redisexec.Outcome) {
	args := []any{from, to, s.ttl(), kind, len(t.Keys), s.CounterLife.Milliseconds()}
	if len(t.Keys) == 1 && !s.Fencing {
		args = args[:4]
	}
	r := p.run(ctx, e, RenameScript, t.LocksAndCounters(s.Fencing), args...)
	return understood(r.grantOrLost(t, s.Fencing), &r)
}

// Rename is Handoff within a batch, for a lock of one key, which also returns the number of entries in the line; -1: it is
// unknown.
func (p *Plain) Rename(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, lease time.Duration) (ours bool, waiters int, out redisexec.Outcome) {
	e.RequiredKeys = 1 // the line is only counted, and the rename succeeds without it
	r := p.run(ctx, e, RenameScript, t.Lined, from, to, lease.Milliseconds())
	ours, waiters = r.flag(), r.receivers(1)
	ours, out = understood(ours, &r)
	return ours, waiters, out
}

// usual reports whether the scripts' default commands for publishing and for counting subscribers apply. Then a release
// has two arguments less.
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

// Force implements [Protocol]. The script compares the fields: if the lock has another owner by now, nothing changes.
func (p *Plain) Force(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int, fields []string) (bool, redisexec.Outcome) {
	args := []any{p.publishCommand(), t.Channels[i]}
	for _, field := range fields {
		args = append(args, field)
	}
	e.RequiredKeys = 1
	// The key, and the queue of Java's fair lock of that key: in Freeing the queues follow the locks.
	r := p.run(ctx, e, ForceScript, []any{t.Freeing[i], t.Freeing[len(t.Keys)+i]}, args...)
	return understood(r.flag(), &r)
}

// State implements [Protocol].
func (p *Plain) State(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int) (KeyState, redisexec.Outcome) {
	t = t.Only(t.Keys[i : i+1]) // so that a refusal names this key, and only its counter is read
	r := p.run(ctx, e, StateScript, t.LocksAndCounters(true))
	return r.state(t)
}

// state returns the state of the lock t in a reply, and the outcome of the call.
func (r *reply) state(t *keys.Set) (KeyState, redisexec.Outcome) {
	if status := r.integer(0); status != 1 {
		r.refuse(status, t)
		return understood(KeyState{}, r)
	}
	s := KeyState{TTL: r.ttl(1), Token: r.number(2)}
	for i := 3; i < len(r.values); i += 2 { // field, count; an odd end is a surprise
		s.Fields, s.Counts = append(s.Fields, r.text(i)), append(s.Counts, int(r.number(i+1)))
	}
	return understood(s, r)
}
