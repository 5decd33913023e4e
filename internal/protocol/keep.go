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

// How a lock is kept on Redis for a while after its hold has ended.

// The scripts: see [AcquireScript].
var (
	//go:embed lua/keep.lua
	keepSource string
	//go:embed lua/rw_keep.lua
	rwKeepSource string

	KeepScript   = withPrelude(keepSource)
	RWKeepScript = newReadWriteScript(rwKeepSource)
)

// KeepingUntil returns p, whose releases keep each key until then instead of giving it back. After that,
// or if until is zero, they give it back.
func KeepingUntil(p Protocol, now clock.Clock, until clock.Instant) Protocol {
	if until == (clock.Instant{}) {
		return p
	}
	return keeping{p, now, until}
}

// keeping is a protocol whose Release is a Keep while there is time left. All else goes through to the Protocol.
type keeping struct {
	Protocol
	now   clock.Clock
	until clock.Instant
}

// Release implements [Protocol]. The keys without a level are kept first. Then Redis is told the counts of the
// others.
func (k keeping) Release(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, counts []int) (Released, redisexec.Outcome) {
	// By the monotonic clock alone: a wall clock that was set forward must not let another owner in too early.
	rest, freed := k.now().UntilMono(k.until), t.Without(counts)
	// mutant: min-hold-not-kept
	if rest <= 0 || freed == nil {
		return k.Protocol.Release(ctx, e, t, field, counts)
	}
	answer, out := k.Keep(ctx, e, freed, field, k.until, rest)
	answer.Kept = true
	if out.Err != nil || len(freed.Keys) == len(t.Keys) {
		return answer, out
	}
	// If this fails, the caller keeps the freed keys again, which changes nothing.
	held := slices.DeleteFunc(slices.Clone(t.Keys), freed.Has)
	levels := slices.DeleteFunc(slices.Clone(counts), func(n int) bool { return n == 0 })
	others, told := k.Protocol.Release(ctx, e, t.Only(held), field, levels)
	told.Ambiguous = told.Ambiguous || out.Ambiguous
	answer.Ours = answer.Ours && others.Ours
	return answer, told
}

// wholeMillis is d in milliseconds, rounded up.
func wholeMillis(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }

// Keep implements [Protocol].
func (p *Plain) Keep(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, until clock.Instant, rest time.Duration) (Released, redisexec.Outcome) {
	return p.keep(ctx, e, t, t.Freeing, field, keys.Kept(field, until), rest)
}

// Keep implements [Protocol]. Like a release it gives up the place in the line.
func (l *Lined) Keep(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, until clock.Instant, rest time.Duration) (Released, redisexec.Outcome) {
	line := keys.LineOf(t.Keys[0])
	return l.keep(ctx, e, t, slices.Concat(t.Freeing, []any{line.Queue, line.Entries}), field, keys.Kept(field, until), rest)
}

// keep is Keep with the words that go to the script as KEYS: the locks, and then what else it looks after.
func (p *Plain) keep(ctx context.Context, e redisexec.CallOptions, t *keys.Set, words []any, from, to string, rest time.Duration) (Released, redisexec.Outcome) {
	args := []any{from, to, wholeMillis(rest), p.publishCommand()}
	for _, channel := range t.Channels {
		args = append(args, channel)
	}
	e.RequiredKeys = len(t.Keys)
	r, out := p.run(ctx, e, KeepScript, words, args...)
	return understood(r.released(), out, &r)
}

// Keep implements [Protocol].
func (p *readWrite) Keep(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, until clock.Instant, rest time.Duration) (Released, redisexec.Outcome) {
	to := keys.Kept(field, until)
	r, out := p.run(ctx, e, RWKeepScript, t.Locks(), t.RW.Timeouts, field, to, keys.AsReader(to),
		wholeMillis(rest), p.publishCommand(), t.Channels[0])
	return understood(r.released(), out, &r)
}
