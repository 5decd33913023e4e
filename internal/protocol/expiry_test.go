package protocol

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// No script may leave a key without expiry, whatever time passes between any two of its commands, and whatever
// lease it is given. On Redis itself little time passes within a script: but the clock may tick, and a PEXPIRE of
// one millisecond then deletes the key.

// leaping runs a script for which time leaps before one command. The leap is made by hand, so it is the same on
// every server: keys whose lease is over by then go, and the others have less left. Its reply is the script's, whether
// time leapt, and the keys that are left without expiry; then it deletes all keys. After the script's own words come
// the leap in milliseconds, before which command it is, and the keys' pattern.
const leaping = `
local pattern, at, leap = table.remove(ARGV), tonumber(table.remove(ARGV)), tonumber(table.remove(ARGV))
local real, command, ahead = redis, 0, 0
local function passes()
  command = command + 1
  if command ~= at then return end
  ahead = leap
  for _, key in ipairs(real.call('keys', pattern)) do
    local left = real.call('pttl', key)
    if left > leap then real.call('pexpire', key, left - leap) elseif left >= 0 then real.call('del', key) end
  end
end
local function timed(run)
  return function(name, ...)
    passes()
    local reply = run(name, ...)
    if name == 'time' then reply = {reply[1] + math.floor(ahead / 1000), reply[2]} end
    return reply
  end
end
local redis = {call = timed(real.call), pcall = timed(real.pcall)}
local function script()
  %s
end
local reply, endless = script(), {}
for _, key in ipairs(real.call('keys', pattern)) do
  if real.call('pttl', key) == -1 then endless[#endless + 1] = key end
  real.call('del', key)
end
return {command >= at and 1 or 0, endless, reply or 'nil'}
`

// expiring is a bench for one script after another.
type expiring struct {
	*rwBench
	lined *Lined
	two   *keys.Set // two plain locks

	permits *Permits
	sem     *keys.Set // the first of two, as a semaphore
}

func newExpiring(t *testing.T, backend *redistest.Backend, prefix string) *expiring {
	t.Helper()
	b := &expiring{rwBench: newRWBench(t, backend.Client(t))}
	b.on = keysOf(t, prefix+"-a")
	b.on.ReadWrite()
	b.two = keysOf(t, prefix+"-a", prefix+"-b")
	b.two.Mints()
	b.on.Mints()
	b.lined = NewLined(b.Plain, "p")
	b.permits, b.sem = NewPermits(b.Plain, "p"), keysOf(t, prefix+"-a")
	b.sem.Semaphore()
	return b
}

// evaluated is a script and its words, as a client sent them.
type evaluated struct {
	digest string
	words  []any // how many keys, the keys, and the rest
}

// sent returns the script that ask sends, on a miniredis.
func sent(b *expiring, mini *redistest.Backend, ask func()) (all []evaluated) {
	b.t.Helper()
	var mu sync.Mutex
	mini.Miniredis.Server().SetPreHook(func(_ *server.Peer, name string, args ...string) bool {
		if name == "EVALSHA" {
			e := evaluated{digest: args[0]}
			for _, word := range args[1:] {
				e.words = append(e.words, word)
			}
			mu.Lock()
			all = append(all, e)
			mu.Unlock()
		}
		return false
	})
	defer mini.Miniredis.Server().SetPreHook(nil)
	ask()
	mu.Lock()
	defer mu.Unlock()
	require.NotEmpty(b.t, all)
	return all
}

// readOnly are the scripts that write nothing.
var readOnly = []*redisexec.Script{StateScript, RWStateScript, PermitStateScript, ServerScript}

func TestScripts_LeaveNoKeyWithoutExpiry(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	sources, met := map[string]string{}, map[string]bool{}
	for _, s := range allScripts {
		sources[s.Digest().(string)] = s.Source()
	}
	for _, s := range readOnly {
		met[s.Digest().(string)] = true
	}
	backend := redistest.Redis(t) // a miniredis takes five times as long, and finds no more
	mini, prefix := redistest.Mini(t), redistest.Key(t)
	recorder, b := newExpiring(t, mini, prefix), newExpiring(t, backend, prefix)
	for _, s := range allScripts {
		require.NoError(t, recorder.rdb.ScriptLoad(t.Context(), s.Source()).Err())
	}
	for _, c := range expiryCases {
		t.Run(c.name, func(t *testing.T) {
			recorder, b := recorder.in(t), b.in(t)
			for _, times := range [][2]time.Duration{{time.Millisecond, time.Millisecond}, {long, short + time.Second}, {long, 2 * day}} {
				lease, leap := times[0], times[1]
				recorder.clear()
				c.before(recorder)
				for _, e := range sent(recorder, mini, func() { c.ask(recorder, lease) }) {
					met[e.digest] = true
					b.requireExpiry(c, sources[e.digest], e.words, leap)
				}
			}
		})
	}
	for _, s := range allScripts {
		require.True(t, met[s.Digest().(string)], "no case runs %s", s.Source())
	}
}

// confirmed are the scripts that replicas may have to confirm, each as its first copy and its second one meet Redis.
var confirmed = []string{
	"acquire", "acquire two with a token", "reenter", "reenter two with a token", "renew", "hand over", "hand two over with a token",
	"keep", "keep in the line", "acquire in the line", "acquire in the line with a token",
	"take a permit", "take one more", "keep a permit",
	"read", "read with another", "read while writing", "read a level more", "read on", "write", "write at once", "write a level more",
	"hand a write over", "hand a write over with a token",
	"keep a write", "keep a write while reading", "keep a read", "keep one read of several", "keep a read while writing",
}

// Else a WAIT behind the second copy, on a new connection, would count replicas that do not have what the first one wrote.
func TestScripts_SecondCopyOfWhatReplicasConfirmWritesToo(t *testing.T) {
	t.Parallel()
	s := redistest.NewServer(t)
	b := newExpiring(t, &redistest.Backend{Name: "redis", Addr: s.Addr, Real: true}, redistest.Key(t))
	at := b.Exec.Now()
	b.Exec.Now = func() clock.Instant { return at } // both copies name the same end
	met := 0
	for _, c := range expiryCases {
		if !slices.Contains(confirmed, c.name) {
			continue
		}
		met++
		t.Run(c.name, func(t *testing.T) {
			b := b.in(t)
			b.clear()
			c.before(b)
			c.ask(b, long)
			before := writesOn(t, b.rdb)
			require.Equal(t, before, writesOn(t, b.rdb), "nothing else writes")
			c.ask(b, long)
			require.Greater(t, writesOn(t, b.rdb), before)
		})
	}
	require.Len(t, confirmed, met)
}

// writesOn counts the writes on a server.
func writesOn(t *testing.T, rdb *redis.Client) (n int) {
	t.Helper()
	for line := range strings.Lines(rdb.Info(t.Context(), "persistence").Val()) {
		if _, err := fmt.Sscanf(line, "rdb_changes_since_last_save:%d", &n); err == nil {
			return n
		}
	}
	t.Fatal("the server does not count writes")
	return 0
}

// in returns b for a subtest.
func (b *expiring) in(t *testing.T) *expiring {
	t.Helper()
	of, rw := *b, *b.rwBench
	rw.bench = &bench{Plain: b.bench.Plain, t: t, rdb: b.bench.rdb}
	of.rwBench = &rw
	return &of
}

// pattern matches all keys of the locks.
func (b *expiring) pattern() string { return "*" + strings.TrimSuffix(b.on.Keys[0], "-a") + "*" }

// clear deletes all keys of the locks.
func (b *expiring) clear() {
	b.t.Helper()
	for _, key := range b.rdb.Keys(b.t.Context(), b.pattern()).Val() {
		require.NoError(b.t, b.rdb.Del(b.t.Context(), key).Err())
	}
}

// requireExpiry runs a script on the state of c, with a leap before each of its commands in turn, and requires
// that it is no error and leaves no key without expiry.
func (b *expiring) requireExpiry(c expiryCase, source string, words []any, leap time.Duration) {
	b.t.Helper()
	ctx := context.Background()
	leaps, err := b.rdb.ScriptLoad(ctx, undeclared+fmt.Sprintf(leaping, source)).Result()
	require.NoError(b.t, err)
	b.clear()
	for at, leapt := 1, true; leapt; at++ {
		c.before(b)
		all := slices.Concat([]any{"evalsha", leaps}, words, []any{leap.Milliseconds(), at, b.pattern()})
		reply, err := b.rdb.Do(ctx, all...).Slice()
		where := fmt.Sprintf("%v pass before command %d", leap, at)
		require.NoError(b.t, err, where)
		if refused, is := reply[2].(error); is {
			require.NoError(b.t, refused, where)
		}
		require.Empty(b.t, reply[1], "keys without expiry, when %s: reply %v", where, reply[2])
		leapt = reply[0] == int64(1)
	}
}
