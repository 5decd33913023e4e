package protocol

import (
	"context"
	_ "embed"
	"time"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
)

//go:embed lua/register.lua
var registerSource string

// RegisterScript registers a client, or removes it.
var RegisterScript = redisexec.NewScript(registerSource)

// Register registers a client by a name for the time of lease, with info: host, process id, program, and since when. If
// lease is 0, it removes the name. Nothing depends on the outcome.
func Register(ctx context.Context, x *redisexec.Executor, e redisexec.CallOptions, name string, lease time.Duration, info ...any) {
	_, _ = x.Run(ctx, e, RegisterScript, []any{keys.OfClient(name)}, append([]any{lease.Milliseconds()}, info...)...)
}
