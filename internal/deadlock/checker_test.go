package deadlock

import (
	"context"
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/goroutine"
	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// What follows from two publications depends on the time between them, and on the answer to each.
func TestChecker_PublishesAWaitOnceInAnInterval(t *testing.T) {
	rdb := redistest.Mini(t).Client(t)
	exec := redisexec.New(rdb, clock.System, time.Minute)
	defer exec.Close(context.Background())
	var later time.Duration
	ctx, cancel := context.WithCancel(t.Context())
	c := NewChecker(goroutine.Life{Now: func() clock.Instant { return clock.System().After(later) }, Ctx: ctx}, nil, exec)
	w := &Waiter{
		ID: "7@1", Since: time.Now(), For: []string{"b"}, Owner: "goroutine 7", Holds: []Held{{"a", "u:7"}},
		Behind: func(string) {}, Found: func(string, bool) { t.Error("found") },
	}
	published := func() *Wait {
		require.Equal(t, interval, c.check([]*Waiter{w}, c.life.Now()))
		return Published(rdb.HGet(t.Context(), keys.WaitsOf("a"), "u:7").Val())
	}
	first := published()
	require.EqualValues(t, 1, first.Seq)
	require.Equal(t, []string{"b"}, first.For)
	require.EqualValues(t, 1, published().Seq, "at once")
	later = interval
	require.EqualValues(t, 2, published().Seq)
	require.Equal(t, first.ID, published().ID)
	cancel()
	later *= 2
	c.check([]*Waiter{w}, c.life.Now()) // without an answer
	c.life.Ctx = t.Context()
	later += interval
	require.NotEqual(t, first.ID, published().ID, "what was not answered may still arrive")
}

// The other owner may have got what it waited for: only a wait that was published again since goes on.
func TestChecker_WaitThatIsNotPublishedAgainIsInNoDeadlock(t *testing.T) {
	rdb := redistest.Mini(t).Client(t)
	exec := redisexec.New(rdb, clock.System, time.Minute)
	defer exec.Close(context.Background())
	var later time.Duration
	c := NewChecker(goroutine.Life{Now: func() clock.Instant { return clock.System().After(later) }, Ctx: t.Context()}, nil, exec)
	found := 0
	w := &Waiter{
		ID: "7@1", Since: time.Now(), For: []string{"b"}, Owner: "goroutine 7", Holds: []Held{{"a", "u:7"}},
		Behind: func(string) {}, Found: func(string, bool) { found++ },
	}
	require.NoError(t, rdb.HSet(t.Context(), "a", "u:7", 1).Err())
	require.NoError(t, rdb.HSet(t.Context(), "b", "v:8", 1).Err())
	publish := func(seq uint64) {
		text, err := json.Marshal(&Wait{ID: "v:8@1:0", Seq: seq, Since: time.Now().UnixMilli(), For: []string{"a"}, Owner: "goroutine 8"})
		require.NoError(t, err)
		_, out := exec.Run(t.Context(), redisexec.CallOptions{Attempts: 1}, PublishScript, []any{keys.WaitsOf("b")}, "v:8", time.Minute.Milliseconds(), string(text))
		require.NoError(t, out.Err)
	}
	publish(1)
	for range 5 {
		c.check([]*Waiter{w}, c.life.Now())
		later += interval
	}
	require.Zero(t, found)
	publish(3)
	c.check([]*Waiter{w}, c.life.Now())
	require.Equal(t, 1, found, "it was published twice since the first look")
}

// In JSON it would be another name, which another owner may hold.
func TestChecker_PublishesNoWaitForANameThatIsNoText(t *testing.T) {
	rdb := redistest.Mini(t).Client(t)
	exec := redisexec.New(rdb, clock.System, time.Minute)
	defer exec.Close(context.Background())
	c := NewChecker(goroutine.Life{Now: clock.System, Ctx: t.Context()}, nil, exec)
	w := &Waiter{ID: "7@1", Since: time.Now(), For: []string{"caf\xe9"}, Holds: []Held{{"a", "u:7"}}, Behind: func(string) {}, Found: func(string, bool) { t.Error("found") }}
	c.check([]*Waiter{w}, c.life.Now())
	require.Zero(t, rdb.Exists(t.Context(), keys.WaitsOf("a")).Val())
}

// Each publication reads all of them, and with so many holders nobody reads any.
func TestPublish_OfManyHoldersOfALockOnlySoManyWaitsAreKept(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		exec := redisexec.New(rdb, clock.System, time.Minute)
		defer exec.Close(context.Background())
		key := keys.WaitsOf(redistest.Key(t))
		publish := func(field, wait string) {
			_, out := exec.Run(t.Context(), redisexec.CallOptions{Attempts: 1}, PublishScript, []any{key}, field, life.Milliseconds(), wait)
			require.NoError(t, out.Err)
		}
		for i := range 100 {
			publish(strconv.Itoa(i), "{}")
		}
		publish("0", "again")
		require.EqualValues(t, 64, rdb.HLen(t.Context(), key).Val())
		require.Contains(t, rdb.HGet(t.Context(), key, "0").Val(), "again")
	})
}
