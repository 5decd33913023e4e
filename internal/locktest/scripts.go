package locktest

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/presence"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// AllScripts returns the scripts that clients send.
var AllScripts = []*redisexec.Script{
	protocol.AcquireScript, protocol.ReenterScript, protocol.RenewScript, protocol.RenewManyScript, protocol.ReleaseScript, protocol.HandoffScript, protocol.RenameScript, protocol.ForceScript, protocol.StateScript, protocol.KeepScript,
	protocol.LineAcquireScript, protocol.LinePollScript, protocol.LineReleaseScript, protocol.RaiseScript, protocol.ServerScript,
	protocol.RWReadScript, protocol.RWReadReenterScript, protocol.RWReadRenewScript, protocol.RWReadReleaseScript,
	protocol.RWWriteScript, protocol.RWWriteReleaseScript, protocol.RWHandoffScript, protocol.RWForceScript, protocol.RWStateScript, protocol.RWKeepScript,
	presence.RegisterScript,
}

// InLine are the scripts of locks whose waiters stand in a line on Redis, by what they take the place of.
var InLine = map[*redisexec.Script][]*redisexec.Script{
	protocol.AcquireScript: {protocol.AcquireScript, protocol.LineAcquireScript},
	protocol.ReleaseScript: {protocol.LineReleaseScript, protocol.ReleaseScript},
}

// RunsOf chooses the runs of s, or of what has its place where there is a line.
func RunsOf(s *redisexec.Script) redistest.Match { return RunsAmong(InLine, s) }

// RunsAmong chooses the runs of s, or of what has its place among scripts.
func RunsAmong(scripts map[*redisexec.Script][]*redisexec.Script, s *redisexec.Script) redistest.Match {
	if scripts[s] == nil {
		return redistest.Script(s.Source)
	}
	return func(command redistest.Command) bool {
		return slices.ContainsFunc(scripts[s], func(s *redisexec.Script) bool { return redistest.Script(s.Source)(command) })
	}
}

// Relay returns a relay to the server at addr that teaches it every script.
func Relay(t *testing.T, addr string) *redistest.Relay {
	t.Helper()
	relay := redistest.NewRelay(t, addr)
	scripts := make(map[string]string)
	for _, s := range AllScripts {
		scripts[s.Digest.(string)] = s.Source
	}
	relay.Teach(scripts)
	return relay
}

// LoadScripts has the server know every script.
func LoadScripts(t *testing.T, rdb *redis.Client) {
	t.Helper()
	var digests []string
	for _, s := range AllScripts {
		digests = append(digests, s.Digest.(string))
	}
	known, err := rdb.ScriptExists(t.Context(), digests...).Result()
	require.NoError(t, err)
	for i, s := range AllScripts {
		if !known[i] {
			require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source).Err())
		}
	}
}

// RelayedTo returns a relay to b and a Redis client that goes through it. Every script is
// known to the server, so that a rule for one meets a run of it.
func RelayedTo(t *testing.T, b *redistest.Backend) (*redistest.Relay, *redis.Client) {
	t.Helper()
	relay := Relay(t, b.Addr)
	return relay, redistest.NewClient(t, relay.Addr)
}

// Answered counts the answers to what match chooses.
func Answered(relay *redistest.Relay, match redistest.Match) int {
	n := 0
	for _, e := range relay.Log() {
		if e.Reply != "" && match(e.Command) {
			n++
		}
	}
	return n
}

// AwaitAsleep waits until one who waits for key has asked twice, and asks no more.
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
