package protocol

import (
	"context"
	_ "embed"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

//go:embed lua/raise.lua
var raiseSource string

//go:embed lua/server.lua
var serverSource string

// The scripts of a node of a quorum: see [AcquireScript].
var (
	RaiseScript  = withPrelude(raiseSource)
	ServerScript = redisexec.NewScript(serverSource)
)

// Raise raises the counters of locks that field holds to token; false: field does not hold them. Each node has
// created a token by its own clock, and the highest is the token of the lock. The other nodes have to store it, or a
// later majority could create a lower one.
func (p *Plain) Raise(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, token int64) (bool, redisexec.Outcome) {
	r := p.run(ctx, e, RaiseScript, t.LocksAndCounters(true),
		field, len(t.Keys), s.CounterLife.Milliseconds(), token)
	return understood(r.grantOrLost(t, true).Held, &r)
}

// ReleaseQuietly releases locks without a majority, and wakes no one, because no waiter waits for a message about them.
func (p *Plain) ReleaseQuietly(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string) (bool, redisexec.Outcome) {
	args := make([]any, 0, 2+2*len(t.Keys))
	args = append(args, field)
	for range t.Keys {
		args = append(args, "", 0) // no channel, and a count of 0
	}
	args = append(args, p.publishCommand())
	r := p.run(ctx, e, ReleaseScript, t.Locks(), args...)
	return understood(r.released().Ours, &r)
}

// Server returns the run id of the server that serves key now. It is unique, and changes when the server is started. "":
// it is not available, because the user may not use INFO, or the server is no Redis.
func (p *Plain) Server(ctx context.Context, e redisexec.CallOptions, key string) (string, redisexec.Outcome) {
	r := p.run(ctx, e, ServerScript, []any{key})
	if redisexec.Replied(r.out.Err) {
		return "", redisexec.Outcome{Sent: r.out.Sent}
	}
	return understood(r.text(0), &r)
}
