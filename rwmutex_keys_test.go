package relock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
)

func TestRWMutex_ForeignHashIsAnErrorAndStays(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		for _, fields := range []map[string]string{
			{"mode": "both", "uuid:1": "1"},
			{"name": "somebody else's"},
			{"uuid:1": "1"},
			{"mode": "read", "path": "/dev/sda"},
			{"mode": "read", "path": "/dev/sda", "size": "7", "serial": "a:b"},
			{"mode": "write", "path": "/dev/sda"},
			{"mode": "write"},
			{"mode": "write", "uuid:1:write": "1", "path": "7"},
			{"mode": "read", "uuid:1": "many"},
			{"mode": "read", "uuid:1": "-1"},
			{"mode": "read", "uuid:1": "1e18"},
			{"mode": "read", "uuid:1": "nan", "uuid:2": ""},
		} {
			require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.key, fields).Err())
			for _, side := range []*relock.Mutex{b.mutex().Read(), b.mutex().Write()} {
				_, err := side.TryLock(b.t.Context())
				require.ErrorIs(b.t, err, relock.ErrInvalidName)
				require.ErrorContains(b.t, err, b.key)
			}
			_, err := b.mutex().ForceUnlock(b.t.Context())
			require.ErrorIs(b.t, err, relock.ErrInvalidName)
			_, err = b.mutex().State(b.t.Context())
			require.ErrorIs(b.t, err, relock.ErrInvalidName)
			require.Negative(b.t, locktest.TTLOf(b.rdb, b.key))
			require.Equal(b.t, fields, locktest.OnRedis(b.t, b.rdb, b.key))
			require.NoError(b.t, b.rdb.Del(b.t.Context(), b.key).Err())
		}
	})
}

func TestRWMutex_UnheldIsFree(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		for _, fields := range []map[string]string{
			{"mode": "read"},
			{"mode": "read", "uuid:1": "1"},
			{"mode": "read", "uuid:1": "99999999999999999999"},
			{"mode": "read", "uuid:1": "1", "uuid:2": "12"},
		} {
			for _, side := range []*relock.Mutex{b.mutex().Read(), b.mutex().Write()} {
				require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.key, fields).Err())
				require.True(b.t, b.me.Tries(b.t, side), "%v", fields)
				require.Positive(b.t, locktest.TTLOf(b.rdb, b.key))
				b.me.Unlocks(b.t, side)
				require.Empty(b.t, keysAbout(b.t, b.rdb, b.key))
			}
		}
	})
}

// Java leaves a dead reader in a hash that outlives all who read.
func TestRWMutex_LastReaderFreesALockThatOutlivesADeadOne(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.key, "mode", "read", "uuid:1", "1").Err())
		require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.key, time.Hour).Err())
		m := b.mutex(relock.WithTTL(10 * time.Second))
		b.me.Locks(b.t, m.Read())
		b.me.Unlocks(b.t, m.Read())
		require.Empty(b.t, keysAbout(b.t, b.rdb, b.key))
	})
}

func TestRWMutex_InvalidClaimKeepsNobodyOut(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex()
		claim := m.Write().Keys().RW.Claim
		for _, text := range []string{"", "soon", "now uuid:1:write", "99999999999999 uuid:1:write"} {
			require.NoError(b.t, b.rdb.Set(b.t.Context(), claim, text, time.Hour).Err())
			require.True(b.t, b.me.Tries(b.t, m.Read()), text)
			b.me.Unlocks(b.t, m.Read())
			require.True(b.t, b.me.Tries(b.t, m.Write()), text)
			b.me.Unlocks(b.t, m.Write())
		}
		require.NoError(b.t, b.rdb.LPush(b.t.Context(), claim, "x").Err())
		b.me.Locks(b.t, m.Read())
		b.me.Unlocks(b.t, m.Read())
		b.me.Locks(b.t, m.Write())
		b.me.Unlocks(b.t, m.Write())
	})
}

// A client gets a new identity when a request was left in doubt.
func TestRWMutex_WriterMayReadAfterItsClientsIdentityChanged(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex()
		b.me.Locks(b.t, m.Write())
		relock.Retire(b.c)
		require.True(b.t, b.me.Tries(b.t, m.Read()))
		b.me.Locks(b.t, m.Read())
		require.False(b.t, b.you.Tries(b.t, m.Read()))
		b.me.Unlocks(b.t, m.Write())
		require.True(b.t, b.you.Tries(b.t, m.Read()))
		require.Len(b.t, stateOf(b.t, m).Readers, 2)
		b.you.Unlocks(b.t, m.Read())
		b.me.Unlocks(b.t, m.Read())
		b.me.Unlocks(b.t, m.Read())
	})
}

// What a lost write hold has left is taken away for as long as the key may live.
func TestRWMutex_WriterThatReadsIsUndoneForTheKeysLife(t *testing.T) {
	eachRW(t, func(b *rwBench) {
		m := b.mutex(relock.WithTTL(time.Minute))
		b.me.Locks(b.t, m.Write())
		for _, life := range []time.Duration{time.Hour, 2 * time.Hour} { // the second is a re-entry
			b.me.Locks(b.t, b.mutex(relock.WithTTL(life)).Read())
			b.requireLife(life)
			holds := relock.HoldsOn(b.c, b.key)
			require.Len(b.t, holds, 2)
			for _, h := range holds {
				require.Equal(b.t, life, h.Longest, "%v", h.Keys.Side)
			}
		}
		b.me.Unlocks(b.t, m.Read())
		b.me.Unlocks(b.t, m.Read())
		b.me.Unlocks(b.t, m.Write())
	})
}
