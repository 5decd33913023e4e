package protocol

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

var allScripts = []*redisexec.Script{
	AcquireScript, ReenterScript, RenewScript, RenewManyScript, ReleaseScript, RenameScript, ForceScript, StateScript, PlaceholderScript,
	LineAcquireScript, LinePollScript, LineReleaseScript, RaiseScript, ServerScript,
	PermitAcquireScript, PermitPollScript, PermitReleaseScript, PermitRenewScript, PermitStateScript,
	RWReadScript, RWReadReenterScript, RWReadRenewScript, RWReadReleaseScript,
	RWWriteScript, RWWriteReleaseScript, RWForceScript, RWStateScript, RWPlaceholderScript, RegisterScript,
}

// Dragonfly refuses a script keys that it does not name, unless it says that it builds some, in its first line.
func TestScripts_DeclareBuiltKeysForDragonfly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		rdb := backend.Client(t)
		for _, s := range allScripts {
			require.Equal(t, s.LooksFirst, len(s.Source()) > len(undeclared) && strings.HasPrefix(s.Source(), undeclared))
			digest, err := rdb.ScriptLoad(t.Context(), s.Source()).Result()
			require.NoError(t, err)
			require.Equal(t, s.Digest(), any(digest))
		}
	})
}
