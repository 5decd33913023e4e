package protocol

import (
	"context"
	_ "embed"
	"fmt"

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

// Lined is the protocol of Mutex and FairMutex on one Redis: a plain lock with a line of waiters. Acquire, Release and
// LeavePlaceholder use the line. The other calls are those of a plain lock.
type Lined struct {
	*Plain
	// strict: no owner acquires the lock without a grant of the line.
	strict bool
	// process is the suffix of the channels for grants to this client.
	process string
}

// NewLined returns the protocol of a process whose channels for grants end in process.
func NewLined(plain *Plain, process string) *Lined { return &Lined{Plain: plain, process: process} }

// Strict returns l for locks that are granted only in the order of the line. Other locks are acquired without it
// if it is not available: while the slot moves, or without permissions.
func (l *Lined) Strict() *Lined {
	strict := *l
	strict.strict = true
	return &strict
}

// GrantsFor returns the channel for grants of key to this process.
func (l *Lined) GrantsFor(key string) string {
	return keys.GrantsPrefix(key) + l.process
}

// keepFor returns the life of the token's counter for the scripts, in milliseconds; -1: s wants no token. An entry
// contains it, because the release of another process may create the token.
func keepFor(s *Terms) any {
	if !s.Fencing {
		return "-1" // which costs no allocation
	}
	return s.CounterLife.Milliseconds()
}

// Acquire acquires the lock if it is free and its line is empty. Usually it is, or it is held: then a
// script with fewer words is enough. Only if the lock is free and has a line, the script for the line follows.
func (l *Lined) Acquire(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms) (g Grant, out redisexec.Outcome) {
	if l.strict || s.Fencing {
		return l.take(ctx, e, t, field, s)
	}
	e.RequiredKeys = 1 // the line says only whether the lock is free
	r := l.run(ctx, e, AcquireScript, t.Lined, field, s.ttl())
	g, out = understood(r.grant(t, false), &r)
	// If there is no grant, and the holder is the empty string, the lock is free, and has a line. Its entries may belong to
	// dead processes, or wait during a turn of foreign waiters. Only the other script can find out.
	if out.Err != nil || g.Held || g.Holder != "" {
		return g, out
	}
	// The answer to the second command does not cover the first: a copy of the first may still acquire the lock.
	doubted := out.Ambiguous
	g, out = l.take(ctx, e, t, field, s)
	out.Ambiguous = out.Ambiguous || doubted
	return g, out
}

// Enqueue implements [Queued].
func (l *Lined) Enqueue(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, ticket uint64) (Grant, redisexec.Outcome) {
	return l.take(ctx, e, t, field, s, s.EntryLease().Milliseconds(), ticket, l.GrantsFor(t.Keys[0]))
}

// take sends the request of Acquire to the script for the line, or, with the parts of an entry, the request of Enqueue.
func (l *Lined) take(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, entry ...any) (Grant, redisexec.Outcome) {
	strict := 0
	// While a slot moves, or if a permission is missing, keys may be left out. A strict lock needs all of them, because
	// the line determines its order. Other locks need the lock, and the counter if a token is wanted.
	switch {
	case l.strict:
		strict = 1
	case s.Fencing:
		e.RequiredKeys = 2
	default:
		e.RequiredKeys = 1
	}
	args := append([]any{field, s.ttl(), keepFor(s), l.publishCommand(), l.countCommand(), strict}, entry...)
	r := l.run(ctx, e, LineAcquireScript, t.Line, args...)
	g := r.grant(t, s.Fencing)
	if g.Waits {
		g.Token = r.integer(4)
	}
	return understood(g, &r)
}

// Waiter is a waiter in the line of a lock, in a poll.
type Waiter struct {
	Field string
	Terms *Terms
	Last  int64 // token that it received while it waits; 0: none
}

// Poll implements [Queued].
func (l *Lined) Poll(ctx context.Context, e redisexec.CallOptions, t *keys.Set, waiters []Waiter) ([]EntryStatus, Grant, redisexec.Outcome) {
	args := make([]any, 0, 2+3*len(waiters))
	args = append(args, l.publishCommand(), l.countCommand())
	for _, w := range waiters {
		keep := keepFor(w.Terms)
		if w.Last > 0 {
			keep = fmt.Sprint(keep, " ", w.Last)
		}
		args = append(args, w.Field, w.Terms.EntryLease().Milliseconds(), keep)
	}
	r := l.run(ctx, e, LinePollScript, t.Line, args...)
	return r.polled(t, len(waiters))
}

// polled returns the states of n waiters for the lock t in the reply to a poll, and the outcome of the call.
func (r *reply) polled(t *keys.Set, n int) ([]EntryStatus, Grant, redisexec.Outcome) {
	if status := r.integer(0); status != 0 {
		r.refuse(status, t)
		return nil, Grant{}, r.out
	}
	g := Grant{TTL: r.ttl(1), Holder: r.text(2)}
	all := make([]EntryStatus, n)
	for i := range all {
		all[i] = r.entryStatus(3+2*i, t)
	}
	g, out := understood(g, r)
	if out.Err != nil { // no part is returned: half a reply must not decide about any entry
		all = nil
	}
	return all, g, out
}

// entryStatus returns the state, in elements i and i+1, of a waiter for the lock t.
func (r *reply) entryStatus(i int, t *keys.Set) EntryStatus {
	token := r.integer(i + 1)
	switch status := r.integer(i); status {
	case 0:
		return EntryStatus{State: EntryWaiting, Token: token}
	case 1, 2: // 1 was granted before this poll: its message has arrived, or was lost
		return EntryStatus{State: EntryGranted, Token: token, Late: status == 1}
	case -1: // its lease has ended, or Redis has lost the line: it holds nothing, and has no entry
		return EntryStatus{State: EntryGone}
	case -3:
		return EntryStatus{State: EntryFailed, Err: whyRefused(-3, t, 0)}
	default:
		r.surprise("status %d at %d", status, i)
		return EntryStatus{}
	}
}

// Release gives up the lock and the entry in the line. A count that is not 0 is a plain
// lock's matter.
func (l *Lined) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (Released, redisexec.Outcome) {
	if counts[0] > 0 {
		return l.Plain.Release(ctx, e, t, field, counts)
	}
	e.RequiredKeys = 1 // a line that cannot be had must not keep the lock held
	args := []any{field, &t.Channels[0]}
	if !l.usual() {
		args = append(args, l.publishCommand(), l.countCommand())
	}
	r := l.run(ctx, e, LineReleaseScript, t.Line, args...)
	return understood(r.releasedInLine(), &r)
}
