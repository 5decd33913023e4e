package locktest

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/deadlock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// AllScripts returns the scripts that clients send.
var AllScripts = []*redisexec.Script{
	protocol.AcquireScript, protocol.ReenterScript, protocol.RenewScript, protocol.RenewManyScript, protocol.ReleaseScript, protocol.RenameScript, protocol.ForceScript, protocol.StateScript, protocol.PlaceholderScript,
	protocol.LineAcquireScript, protocol.LinePollScript, protocol.LineReleaseScript, protocol.RaiseScript, protocol.ServerScript,
	protocol.RWReadScript, protocol.RWReadReenterScript, protocol.RWReadRenewScript, protocol.RWReadReleaseScript,
	protocol.RWWriteScript, protocol.RWWriteReleaseScript, protocol.RWForceScript, protocol.RWStateScript, protocol.RWPlaceholderScript,
	protocol.PermitAcquireScript, protocol.PermitPollScript, protocol.PermitReleaseScript, protocol.PermitRenewScript, protocol.PermitStateScript,
	protocol.RegisterScript, deadlock.PublishScript, deadlock.HoldersScript,
}

// InLine has the scripts for locks with a line, by the scripts that they replace.
var InLine = map[*redisexec.Script][]*redisexec.Script{
	protocol.AcquireScript: {protocol.AcquireScript, protocol.LineAcquireScript},
	protocol.ReleaseScript: {protocol.LineReleaseScript, protocol.ReleaseScript},
}

// RunsOf matches the runs of s, or of the script that replaces s for a lock with a line.
func RunsOf(s *redisexec.Script) redistest.Match { return RunsAmong(InLine, s) }

// RunsAmong is RunsOf with the given replacements.
func RunsAmong(scripts map[*redisexec.Script][]*redisexec.Script, s *redisexec.Script) redistest.Match {
	if scripts[s] == nil {
		return redistest.Script(s.Source())
	}
	return func(command redistest.Command) bool {
		return slices.ContainsFunc(scripts[s], func(s *redisexec.Script) bool { return redistest.Script(s.Source())(command) })
	}
}

// HandsOver matches those runs of [protocol.RenameScript] that hand a lock over. All others are renames of batches, which have
// three arguments.
func HandsOver(command redistest.Command) bool { return len(command.ScriptArgs()) > 3 }

// Relay returns a relay to the server at addr that loads every script there.
func Relay(t *testing.T, addr string) *redistest.Relay {
	t.Helper()
	relay := redistest.NewRelay(t, addr)
	scripts := make(map[string]string)
	for _, s := range AllScripts {
		scripts[s.Digest().(string)] = s.Source()
	}
	relay.Teach(scripts)
	return relay
}

// LoadScripts loads every script.
func LoadScripts(t *testing.T, rdb *redis.Client) {
	t.Helper()
	var digests []string
	for _, s := range AllScripts {
		digests = append(digests, s.Digest().(string))
	}
	known, err := rdb.ScriptExists(t.Context(), digests...).Result()
	require.NoError(t, err)
	for i, s := range AllScripts {
		if !known[i] {
			require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
		}
	}
}

// RelayedTo returns a relay to b, and a Redis client that uses it. Every script is loaded on the server, so that a rule
// for a script applies to a run of it.
func RelayedTo(t *testing.T, b *redistest.Backend) (*redistest.Relay, *redis.Client) {
	t.Helper()
	relay := Relay(t, b.Addr)
	return relay, redistest.NewClient(t, relay.Addr)
}

// Answered counts the answers to commands that match.
func Answered(relay *redistest.Relay, match redistest.Match) int {
	n := 0
	for _, e := range relay.Log() {
		if e.Reply != "" && match(e.Command) {
			n++
		}
	}
	return n
}

// AwaitAsleep waits until a waiter for key has asked twice, and sleeps.
func AwaitAsleep(t *testing.T, relay *redistest.Relay, key string) {
	t.Helper()
	asks := redistest.Scripts.And(redistest.With(key))
	redistest.Eventually(t, "asleep", func() bool { return Answered(relay, asks) >= 2 })
	AwaitStillness(t, relay)
}

// AwaitStillness waits until no script is sent.
func AwaitStillness(t *testing.T, relay *redistest.Relay) {
	t.Helper()
	last, since := -1, time.Now()
	redistest.Eventually(t, "stillness", func() bool {
		if n := relay.Count(redistest.Scripts); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 30*time.Millisecond
	})
}

// ComesBack ends what keeps Redis from answering: clients close sooner then.
func ComesBack(relay *redistest.Relay) {
	relay.BlackHole(false)
	_ = relay.Refuse(false)
	relay.Cut()
}
