package tests

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// One acquisition has one token. State, and a getToken of Java, return the holder's token. After an
// unlock of Java the waiter's own poll grants the lock, and a message reports that, too.
func TestTokens_AfterAForeignUnlockTheCounterHasThatOfTheHolder(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, rdb *redis.Client) {
		key, waiter := redistest.Key(t), locktest.NewActor(t)
		c := locksOn(t, rdb, relock.WithFencing())
		for name, m := range map[string]*relock.Mutex{"mutex": c.Mutex(key), "fair": c.FairMutex(key)} {
			for range 3 {
				locktest.HeldByAnother(t, rdb, key, 0)
				waiting := waiter.Lock(t.Context(), m)
				locktest.AwaitSubscribed(t, rdb, key, c)
				require.NoError(t, rdb.Del(t.Context(), key).Err())
				locktest.Publishes(t, rdb, key)
				require.NoError(t, locktest.OutcomeOf(t, waiting))
				s, err := m.State(t.Context())
				require.NoError(t, err)
				require.Equal(t, waiter.TokenOf(m), s.FencingToken, name)
				waiter.Unlocks(t, m)
			}
		}
	})
}
