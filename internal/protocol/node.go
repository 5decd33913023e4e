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
	ServerScript = redisexec.NewScript(code(serverSource))
)

// Raise raises the counters of locks that field holds to token; false: it does not hold them. Each node has
// minted a token by its own clock, and the highest is the lock's. The other nodes have to know it, or a later
// majority could mint a lower one.
func (p *Plain) Raise(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string, s *Terms, token int64) (bool, redisexec.Outcome) {
	r, out := p.run(ctx, e, RaiseScript, t.LocksAndCounters(true),
		field, len(t.Keys), s.CounterLife.Milliseconds(), token)
	return understood(r.grantOrLost(t, true).Held, out, &r)
}

// ReleaseQuietly gives locks back that never counted, and wakes no one: without a majority no waiter was told that
// they are held, and waits for a message.
func (p *Plain) ReleaseQuietly(ctx context.Context, e redisexec.CallOptions, t *keys.Set, field string) (bool, redisexec.Outcome) {
	args := make([]any, 0, 2+2*len(t.Keys))
	args = append(args, field)
	for range t.Keys {
		args = append(args, "", 0) // no channel, and no level
	}
	args = append(args, p.publishCommand())
	r, out := p.run(ctx, e, ReleaseScript, t.Locks(), args...)
	return understood(r.released().Ours, out, &r)
}

// Server returns the run id of the server that serves key now: no two servers have the same, and a server gets another
// one when it is started. "": it does not say, because the user may not ask it, or it is no Redis.
func (p *Plain) Server(ctx context.Context, e redisexec.CallOptions, key string) (string, redisexec.Outcome) {
	r, out := p.run(ctx, e, ServerScript, []any{key})
	if redisexec.Replied(out.Err) {
		return "", redisexec.Outcome{Sent: out.Sent}
	}
	return understood(r.text(0), out, &r)
}
