package protocol

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// The scripts of a lock with a line: see [AcquireScript].
var (
	//go:embed lua/line_prelude.lua
	linePrelude string
	//go:embed lua/line_acquire.lua
	lineAcquireSource string
	//go:embed lua/line_poll.lua
	linePollSource string
	//go:embed lua/line_release.lua
	lineReleaseSource string

	LineAcquireScript = withPrelude(lineAcquireSource, linePrelude)
	LinePollScript    = withPrelude(linePollSource, linePrelude)
	LineReleaseScript = withPrelude(lineReleaseSource, linePrelude)
)

// Lined is the protocol of Mutex and FairMutex on one Redis: that of a plain lock on the same hash, with
// a line of waiters beside it. Taking the lock and giving it back mind the line; all else is the same.
type Lined struct {
	plain *Plain
	// strict says that no one is to take the lock whom the line has not given it.
	strict bool
	// process is what the channels end in on which this client is told of grants.
	process string
}

// NewLined returns the protocol of a process that is told of grants on channels of its own, which
// end in process.
func NewLined(plain *Plain, process string) *Lined { return &Lined{plain: plain, process: process} }

// Strict returns l for locks that are given in the order of the line only. Others are taken without it
// where there is none to be had: while the slot moves, or for want of permissions.
func (l *Lined) Strict() *Lined {
	strict := *l
	strict.strict = true
	return &strict
}

// GrantsFor is the channel on which this process is told of grants of key.
func (l *Lined) GrantsFor(key string) string {
	return keys.GrantsPrefix(key) + l.process
}

// keepFor tells the scripts what token s wishes for: the life of its counter in
// milliseconds, -1 for none. An entry keeps it, because another process' release may mint the token.
func keepFor(s *Terms) any {
	if !s.Fencing {
		return "-1" // which costs no allocation
	}
	return s.CounterLife.Milliseconds()
}

// Acquire takes the lock if it is free and no one waits for it. Most of the time it is, or is held: that a
// script finds out which is told less. Only if it is free and there is a line, the line is looked at.
func (l *Lined) Acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms) (Grant, redisexec.Outcome) {
	if l.strict || s.Fencing {
		return l.take(ctx, e, t, field, s)
	}
	g, out := l.tryFree(ctx, e, t, field, s)
	// No holder, and not granted: it is free, and has a line. All entries may be of processes that have died, or
	// have the lock left to them: only the other script can tell.
	if out.Err != nil || g.Held || g.Holder != "" {
		return g, out
	}
	// The answer to the second command says nothing of the first: a copy of that may still take the lock.
	doubted := out.Ambiguous
	g, out = l.take(ctx, e, t, field, s)
	out.Ambiguous = out.Ambiguous || doubted
	return g, out
}

// tryFree is Acquire for a lock without a line, and without a token. Of one that is free and has a line it
// says that ” holds it.
func (l *Lined) tryFree(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms) (Grant, redisexec.Outcome) {
	e.RequiredKeys = 1
	r, out := l.plain.run(ctx, e, AcquireScript, t.Lined, field, s.TTL.Milliseconds())
	return understood(r.grant(t, false), out, &r)
}

// Enqueue is Acquire for an owner that waits if need be, and is told of the grant by ticket. The message of the
// grant may come before this returns.
func (l *Lined) Enqueue(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, ticket uint64) (Grant, redisexec.Outcome) {
	return l.take(ctx, e, t, field, s, s.EntryLease().Milliseconds(), ticket, keys.GrantsPrefix(t.Keys[0])+l.process)
}

// take is the request of Acquire that minds the line, and, with what describes an entry, that of Enqueue.
func (l *Lined) take(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, entry ...any) (Grant, redisexec.Outcome) {
	args := []any{field, s.TTL.Milliseconds(), keepFor(s), l.plain.publishCommand(), l.plain.countCommand(), 0}
	// What may be left out while a slot moves, or for want of a permission: nothing of a strict lock, which would not
	// be given in order without its line; of others the line, but never the counter of a token.
	switch {
	case l.strict:
		args[len(args)-1] = 1
	case s.Fencing:
		e.RequiredKeys = 2
	default:
		e.RequiredKeys = 1
	}
	r, out := l.plain.run(ctx, e, LineAcquireScript, t.Line, append(args, entry...)...)
	g := r.grant(t, s.Fencing)
	if g.Waits, g.Claimed = g.Claimed, false; g.Waits {
		g.Token = r.integer(4)
	}
	return understood(g, out, &r)
}

// Waiter is one that waits in the line of a lock, as a poll names it.
type Waiter struct {
	Field string
	Terms *Terms
	Last  int64 // token that it was told of while it waits; 0: none
}

// Poll keeps the places of waiters, and asks how they stand and who has the lock. If the lock is free, the script
// grants it to the first in line, which may be one of them. The answers are in the order of waiters. After an
// error there are none.
func (l *Lined) Poll(ctx context.Context, e redisexec.CallOptions, t *keys.Set, waiters []Waiter) ([]Standing, Grant, redisexec.Outcome) {
	args := make([]any, 0, 2+3*len(waiters))
	args = append(args, l.plain.publishCommand(), l.plain.countCommand())
	for _, w := range waiters {
		keep := keepFor(w.Terms)
		if w.Last > 0 {
			keep = fmt.Sprint(keep, " ", w.Last)
		}
		args = append(args, w.Field, w.Terms.EntryLease().Milliseconds(), keep)
	}
	r, out := l.plain.run(ctx, e, LinePollScript, t.Line, args...)
	if status := r.integer(0); status != 0 {
		r.refuse(status, t)
		_, out = understood(Grant{}, out, &r)
		return nil, Grant{}, out
	}
	g := Grant{TTL: r.ttl(1), Holder: r.text(2)}
	all := make([]Standing, len(waiters))
	for i := range all {
		all[i] = r.standing(3+2*i, t)
	}
	g, out = understood(g, out, &r)
	if out.Err != nil { // a part that was understood is not told either: no place is judged by half a reply
		all = nil
	}
	return all, g, out
}

// standing returns what elements i and i+1 say of a waiter for the lock t.
func (r *reply) standing(i int, t *keys.Set) Standing {
	token := r.integer(i + 1)
	switch status := r.integer(i); status {
	case 0:
		return Standing{State: EntryWaiting, Token: token}
	case 1, 2: // 1 was granted before this poll: a message has told of that, or was lost
		return Standing{State: EntryGranted, Token: token, Late: status == 1}
	case -1: // its lease is over, or Redis has lost the line: it holds nothing, and has no place
		return Standing{State: EntryGone}
	case -3:
		return Standing{State: EntryFailed, Err: whyRefused(-3, t, 0)}
	default:
		r.surprise("status %d at %d", status, i)
		return Standing{}
	}
}

// Release gives the lock and the place in the line up. A count that is not 0 is a plain
// lock's matter.
func (l *Lined) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (Released, redisexec.Outcome) {
	if counts[0] > 0 {
		return l.plain.Release(ctx, e, t, field, counts)
	}
	e.RequiredKeys = 1 // a line that cannot be had must not keep the lock held
	args := []any{field, &t.Channels[0]}
	if !l.plain.usual() {
		args = append(args, l.plain.publishCommand(), l.plain.countCommand())
	}
	r, out := l.plain.run(ctx, e, LineReleaseScript, t.Line, args...)
	return understood(r.releasedInLine(), out, &r)
}

// What a line makes no difference to is a plain lock's matter.

// Reenter implements [Protocol].
func (l *Lined) Reenter(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, mint bool, counts []int) (Grant, redisexec.Outcome) {
	return l.plain.Reenter(ctx, e, t, field, s, mint, counts)
}

// Renew implements [Protocol].
func (l *Lined) Renew(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, lease time.Duration) (bool, redisexec.Outcome) {
	return l.plain.Renew(ctx, e, t, field, lease)
}

// Handoff implements [Protocol].
func (l *Lined) Handoff(ctx context.Context, e redisexec.CallOptions, t *keys.Set, from, to string, s *Terms) (Grant, redisexec.Outcome) {
	return l.plain.Handoff(ctx, e, t, from, to, s)
}

// Force implements [Protocol].
func (l *Lined) Force(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int, fields []string) (bool, redisexec.Outcome) {
	return l.plain.Force(ctx, e, t, i, fields)
}

// State implements [Protocol].
func (l *Lined) State(ctx context.Context, e redisexec.CallOptions, t *keys.Set, i int) (KeyState, redisexec.Outcome) {
	return l.plain.State(ctx, e, t, i)
}
