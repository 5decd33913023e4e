package relock

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// claims is the key of the claim, set to text for an hour unless that is empty.
func (b *rwBench) claims(text string) string {
	b.t.Helper()
	claim := b.mutex().write.target.rw.claim
	if text != "" {
		require.NoError(b.t, b.rdb.Set(b.t.Context(), claim, text, time.Hour).Err())
	}
	return claim
}

// atOnce runs the script of the write side, and reads the claim before the server does
// anything else.
func (b *rwBench) atOnce(s *script, args ...any) (text string, life time.Duration) {
	b.t.Helper()
	t := b.mutex().write.target
	var value *redis.StringCmd
	var left *redis.DurationCmd
	_, err := b.rdb.TxPipelined(b.t.Context(), func(tx redis.Pipeliner) error {
		tx.Eval(b.t.Context(), s.source, t.rwKeys(false), append([]any{t.rw.timeouts}, args...)...)
		value, left = tx.Get(b.t.Context(), t.rw.claim), tx.PTTL(b.t.Context(), t.rw.claim)
		return nil
	})
	require.NoError(b.t, err)
	return value.Val(), left.Val()
}

// Else a stream of writers, none of whom waits for long, keeps one who does from ever having an
// old claim, while readers come in all the time.
func TestAClaimOutlivesTheWriterThatGivesItUpForAMoment(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		channel := b.mutex().write.target.channels[0]
		b.strangerReads("alive:1", time.Hour)
		b.claims("7 impatient:1:write")
		text, life := b.atOnce(rwWriteReleaseScript, "impatient:1:write", 0, "publish", channel)
		require.Equal(b.t, "7 ", text)
		require.Positive(b.t, life)
		require.LessOrEqual(b.t, life, 50*time.Millisecond)

		b.claims("7 ")
		require.False(b.t, b.me.tries(b.t, toRead(b.mutex())))
		text, _ = b.atOnce(rwWriteScript, "patient:2:write", 30000, 0, 5000, 25)
		require.Equal(b.t, "7 patient:2:write", text)
		text, _ = b.atOnce(rwWriteReleaseScript, "impatient:1:write", 0, "publish", channel)
		require.Equal(b.t, "7 patient:2:write", text, "it is not his any more")
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key, b.timeout("alive:1", 1), b.claims("")).Err())
	})
}

func TestAWriterThatWaitsTakesUpTheClaimOfOneThatGaveUp(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		b.strangerReads("alive:1", time.Hour)
		claim := b.claims("7 ")
		m := b.another()
		waiting := b.me.lock(b.t.Context(), toWrite(m))
		eventually(b.t, "its claim", func() bool {
			return strings.HasPrefix(b.rdb.Get(b.t.Context(), claim).Val(), "7 "+m.write.client.ID())
		})
		awaitListening(b.t, m.write.client, b.key)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key, b.timeout("alive:1", 1)).Err())
		require.NoError(b.t, b.rdb.Publish(b.t.Context(), m.write.target.channels[0], "0").Err())
		require.NoError(b.t, outcomeOf(b.t, waiting))
		b.me.unlocks(b.t, toWrite(m))
	})
}
