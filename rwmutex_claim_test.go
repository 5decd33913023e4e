package relock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// claims is the key of the claim, set to text for an hour unless that is empty.
func (b *rwBench) claims(text string) string {
	b.t.Helper()
	claim := b.mutex().Write().Keys().RW.Claim
	if text != "" {
		require.NoError(b.t, b.rdb.Set(b.t.Context(), claim, text, time.Hour).Err())
	}
	return claim
}

// atOnce runs the script of the write side, and reads the claim before the server does
// anything else.
func (b *rwBench) atOnce(s *redisexec.Script, args ...any) (text string, life time.Duration) {
	b.t.Helper()
	t := b.mutex().Write().Keys()
	var value *redis.StringCmd
	var left *redis.DurationCmd
	_, err := b.rdb.TxPipelined(b.t.Context(), func(tx redis.Pipeliner) error {
		tx.Eval(b.t.Context(), s.Source(), []string{t.Keys[0], t.RW.Claim}, append([]any{t.RW.Timeouts}, args...)...)
		value, left = tx.Get(b.t.Context(), t.RW.Claim), tx.PTTL(b.t.Context(), t.RW.Claim)
		return nil
	})
	require.NoError(b.t, err)
	return value.Val(), left.Val()
}

// Else a stream of writers, none of whom waits for long, keeps one who does from ever having an
// old claim, while readers come in all the time.
func TestRWMutex_ClaimOutlivesAWriterThatGivesUpBriefly(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		channel := b.mutex().Write().Keys().Channels[0]
		b.anotherReads("alive:1", time.Hour)
		b.claims("7 impatient:1:write")
		text, life := b.atOnce(protocol.RWWriteReleaseScript, "impatient:1:write", 0, "publish", channel)
		require.Equal(b.t, "7 ", text)
		require.Positive(b.t, life)
		require.LessOrEqual(b.t, life, 50*time.Millisecond)

		b.claims("7 ")
		require.False(b.t, b.me.Tries(b.t, b.mutex().Read()))
		text, _ = b.atOnce(protocol.RWWriteScript, "patient:2:write", 30000, 0, 5000, 25)
		require.Equal(b.t, "7 patient:2:write", text)
		text, _ = b.atOnce(protocol.RWWriteReleaseScript, "impatient:1:write", 0, "publish", channel)
		require.Equal(b.t, "7 patient:2:write", text, "it is not its own any more")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key, b.timeout("alive:1", 1), b.claims("")).Err())
	})
}

func TestRWMutex_WaitingWriterTakesOverAnAbandonedClaim(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		b.anotherReads("alive:1", time.Hour)
		claim := b.claims("7 ")
		c := relock.LocksOn(b.t, b.rdb)
		m := c.RWMutex(b.key)
		waiting := b.me.Lock(b.t.Context(), m.Write())
		redistest.Eventually(b.t, "its claim", func() bool {
			return strings.HasPrefix(b.rdb.Get(b.t.Context(), claim).Val(), "7 "+c.ID())
		})
		relock.AwaitListening(b.t, m.Write(), b.key)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key, b.timeout("alive:1", 1)).Err())
		require.NoError(b.t, b.rdb.Publish(b.t.Context(), m.Write().Keys().Channels[0], "0").Err())
		require.NoError(b.t, locktest.OutcomeOf(b.t, waiting))
		b.me.Unlocks(b.t, m.Write())
	})
}

// relayedRW runs fn on each backend, with a writer of the bench's client that waits for a reader,
// has claimed the lock, and gives up when leave is called. What the client sends goes through relay.
func relayedRW(t *testing.T, fn func(b *rwBench, relay *redistest.Relay, leave func())) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		relay, rdb := locktest.RelayedTo(t, backend)
		b := newRWBench(t, backend.Client(t))
		b.c = relock.LocksOn(t, rdb)
		b.anotherReads("alive:1", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		waiting := b.me.Lock(ctx, b.mutex().Write())
		redistest.Eventually(t, "a claim", func() bool { return b.rdb.Exists(t.Context(), b.claims("")).Val() == 1 })
		relock.AwaitListening(t, b.c, b.key)
		fn(b, relay, func() {
			cancel()
			require.ErrorIs(t, locktest.OutcomeOf(t, waiting), context.Canceled)
		})
		require.NoError(t, b.rdb.Del(t.Context(), b.key, b.timeout("alive:1", 1)).Err())
		b.free()
	})
}

// undoing is what is left of the shortest undo that is pending.
func (b *rwBench) undoing() time.Duration {
	b.t.Helper()
	pending := b.c.Undoing(0)
	require.NotEmpty(b.t, pending)
	shortest := time.Duration(1<<63 - 1)
	for _, name := range pending {
		shortest = min(shortest, clock.System().Until(name.Until))
	}
	return shortest
}

func TestRWMutex_WriterThatGivesUpIsUndoneAsLongAsARequestMaySucceed(t *testing.T) {
	relayedRW(t, func(b *rwBench, relay *redistest.Relay, leave func()) {
		require.NoError(b.t, relay.Refuse(true))
		relay.Cut()
		leave()
		require.Greater(b.t, b.undoing(), locktest.LongestPlace.EntryLease())
		m := b.mutex().Write()
		m.UndoFor("uuid:1:write", clock.System().After(time.Hour))
		m.UndoFor("uuid:1:write", clock.System().After(time.Millisecond))
		require.Greater(b.t, b.undoing(), locktest.LongestPlace.EntryLease(), "a later undo ends an earlier one")
		require.NoError(b.t, relay.Refuse(false))
	})
}

func TestRWMutex_WriterThatGivesUpHasWithdrawnItsClaimOnReturn(t *testing.T) {
	relayedRW(t, func(b *rwBench, relay *redistest.Relay, leave func()) {
		relay.Latency(3 * time.Millisecond)
		began := time.Now()
		leave()
		_, claimant, _ := strings.Cut(b.rdb.Get(b.t.Context(), b.claims("")).Val(), " ")
		if time.Since(began) < locktest.UndoGrace {
			require.Empty(b.t, claimant)
		}
		relay.Latency(0)
	})
}

func TestRWMutex_WriterWithdrawsAClaimUnderAnEarlierName(t *testing.T) {
	relayedRW(t, func(b *rwBench, relay *redistest.Relay, leave func()) {
		// That it claims the lock by its new name does not come about: Redis may have no memory.
		busy := relay.ReplyWith("*4\r\n:0\r\n:9000\r\n:1\r\n$7\r\nalive:1\r\n", locktest.RunsOf(protocol.RWWriteScript)).Always()
		relock.Retire(b.c)
		require.NoError(b.t, b.rdb.Publish(b.t.Context(), b.mutex().Write().Keys().Channels[0], "0").Err())
		busy.Wait(b.t)
		leave()
		began := time.Now()
		redistest.Eventually(b.t, "no claim", func() bool { return b.rdb.Exists(b.t.Context(), b.claims("")).Val() == 0 })
		require.Less(b.t, time.Since(began), locktest.LongestPlace.EntryLease()/3, "it has run out by itself")
		busy.Remove()
	})
}

func TestRWMutex_ClaimLivesAsLongAsEachWaiterWants(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		b.anotherReads("alive:1", time.Hour)
		_, life := b.atOnce(protocol.RWWriteScript, "long:1:write", 30000, 0, 10000, 25)
		require.InDelta(b.t, 10*time.Second, life, float64(5*time.Second))
		text, life := b.atOnce(protocol.RWWriteScript, "short:\x00:write", 30000, 0, 100, 25) // any owner will do
		require.True(b.t, strings.HasSuffix(text, " short:\x00:write"))
		require.Greater(b.t, life, time.Second, "the claim of the one is shortened by the other")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key, b.timeout("alive:1", 1), b.claims("")).Err())
	})
}

// The clock of the server may have been set back, or be another server's since a failover.
func TestRWMutex_LateClaimStartsAgain(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		b.anotherReads("alive:1", time.Hour)
		b.claims("99999999999999 waiting:1:write")
		text, _ := b.atOnce(protocol.RWWriteScript, "waiting:1:write", 30000, 0, 10000, 0)
		from, _, _ := strings.Cut(text, " ")
		require.Less(b.t, from, "99999999999999")
		require.Len(b.t, from, len("1700000000000"))
		require.False(b.t, b.me.Tries(b.t, b.mutex().Read()), "new readers come in for ever")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key, b.timeout("alive:1", 1), b.claims("")).Err())
	})
}
