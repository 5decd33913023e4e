package protocol

import (
	"context"
	_ "embed"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

// How a key stays reserved on Redis until the min hold of its last hold is over.

// The scripts: see [AcquireScript].
var (
	//go:embed lua/placeholder.lua
	placeholderSource string
	//go:embed lua/rw_placeholder.lua
	rwPlaceholderSource string

	PlaceholderScript   = withPrelude(placeholderSource)
	RWPlaceholderScript = newReadWriteScript(rwPlaceholderSource)
)

// ReleaseUntil is the Release of p, and leaves a placeholder on each key with the count 0 until the end of its min hold. The zero
// until has ended.
func ReleaseUntil(ctx context.Context, p Protocol, e redisexec.CallOptions, t *keys.Set, field string, counts []int, now clock.Clock, until clock.Instant) (Released, redisexec.Outcome) {
	if until == (clock.Instant{}) {
		return p.Release(ctx, e, t, field, counts)
	}
	// By the monotonic clock alone: a wall clock that is set forward must not end the min hold too early.
	rest, freed := now().UntilMono(until), t.Without(counts)
	// mutant: min-hold-ignored
	if rest <= 0 || freed == nil {
		return p.Release(ctx, e, t, field, counts)
	}
	return releaseReserved(ctx, p, e, t, freed, field, counts, until, rest)
}

// releaseReserved is ReleaseUntil while the min hold lasts, for rest. freed has the keys with the count 0.
func releaseReserved(ctx context.Context, p Protocol, e redisexec.CallOptions, t, freed *keys.Set, field string, counts []int, until clock.Instant, rest time.Duration) (Released, redisexec.Outcome) {
	answer, out := p.LeavePlaceholder(ctx, e, freed, field, until, rest)
	answer.Placeholder = true
	if out.Err != nil || len(freed.Keys) == len(t.Keys) {
		return answer, out
	}
	// If this fails, the caller leaves the placeholders again, which changes nothing.
	held := slices.DeleteFunc(slices.Clone(t.Keys), freed.Has)
	left := slices.DeleteFunc(slices.Clone(counts), func(n int) bool { return n == 0 })
	e.Replicas = redisexec.Replicas{} // they confirm placeholders
	others, outOthers := p.Release(ctx, e, t.Only(held), field, left)
	outOthers.Ambiguous, outOthers.Unconfirmed = outOthers.Ambiguous || out.Ambiguous, out.Unconfirmed
	answer.Ours = answer.Ours && others.Ours
	return answer, outOthers
}

// wholeMillis is d in milliseconds, rounded up.
func wholeMillis(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }

// LeavePlaceholder implements [Protocol].
func (p *Plain) LeavePlaceholder(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, until clock.Instant, rest time.Duration) (Released, redisexec.Outcome) {
	return p.leavePlaceholder(ctx, e, t, t.Freeing, field, keys.Placeholder(field, until), rest)
}

// LeavePlaceholder implements [Protocol]. Like a release it gives up the entry in the line.
func (l *Lined) LeavePlaceholder(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, until clock.Instant, rest time.Duration) (Released, redisexec.Outcome) {
	line := keys.LineOf(t.Keys[0])
	return l.leavePlaceholder(ctx, e, t, slices.Concat(t.Freeing, []any{line.Queue, line.Entries}), field, keys.Placeholder(field, until), rest)
}

// leavePlaceholder is LeavePlaceholder with all KEYS of the script: the locks, and then the keys that it also changes.
func (p *Plain) leavePlaceholder(ctx context.Context, e redisexec.CallOptions, t *keys.Set, all []any, from, to string, rest time.Duration) (Released, redisexec.Outcome) {
	args := []any{from, to, wholeMillis(rest), p.publishCommand()}
	for _, channel := range t.Channels {
		args = append(args, channel)
	}
	e.RequiredKeys = len(t.Keys)
	r := p.run(ctx, e, PlaceholderScript, all, args...)
	return understood(r.released(), &r)
}

// LeavePlaceholder implements [Protocol].
func (p *readWrite) LeavePlaceholder(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, until clock.Instant, rest time.Duration) (Released, redisexec.Outcome) {
	to := keys.Placeholder(field, until)
	r := p.run(ctx, e, RWPlaceholderScript, t.Locks(), t.RW.Timeouts, field, to, keys.AsReader(to),
		wholeMillis(rest), p.publishCommand(), t.Channels[0])
	return understood(r.released(), &r)
}
