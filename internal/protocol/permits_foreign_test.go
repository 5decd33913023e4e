package protocol

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
)

func TestSemaphore_ForeignKeyIsRefusedAndLeftAlone(t *testing.T) {
	zset := func(b *permitBench, members ...string) {
		for i, m := range members {
			require.NoError(b.t, b.rdb.ZAdd(b.t.Context(), b.on.Keys[0], redis.Z{Score: float64(i), Member: m}).Err())
		}
	}
	for name, paint := range map[string]func(b *permitBench){
		"a string":      func(b *permitBench) { b.paint(b.on.Keys[0], textOf(forever, "x")) },
		"a list":        func(b *permitBench) { b.paint(b.on.Keys[0], listOf(forever)) },
		"a lock":        func(b *permitBench) { b.paint(b.on.Keys[0], hashOf(short, me, "1")) },
		"a leaderboard": func(b *permitBench) { zset(b, "ann", "bob") },
		"almost permits": func(b *permitBench) {
			zset(b, permit(1, 1), aUUID+":2:0")
		},
		"too many": func(b *permitBench) {
			all := make([]redis.Z, MostPermits+1)
			for i := range all {
				all[i] = redis.Z{Score: 1, Member: permit(100+i, 1)}
			}
			require.NoError(b.t, b.rdb.ZAdd(b.t.Context(), b.on.Keys[0], all...).Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachPermitBench(t, func(b *permitBench) {
				paint(b)
				before := b.rdb.Dump(b.t.Context(), b.on.Keys[0]).Val()
				text := "is not a semaphore"
				_, out := b.permits.Acquire(b.t.Context(), once, b.on, permit(1, 1), limited(4))
				refusedAs(b.t, out, lockerr.ErrInvalidName, text)
				_, out = b.permits.Enqueue(b.t.Context(), once, b.on, permit(1, 1), limited(4), 1)
				refusedAs(b.t, out, lockerr.ErrInvalidName, text)
				_, _, out = b.permits.Poll(b.t.Context(), once, b.on, []Waiter{{Field: permit(9, 1), Terms: limited(4)}})
				refusedAs(b.t, out, lockerr.ErrInvalidName, text)
				_, out = b.permits.State(b.t.Context(), once, b.on, 0)
				refusedAs(b.t, out, lockerr.ErrInvalidName, text)
				require.Equal(b.t, []int{1}, b.renew(permit(9, 1)))
				require.False(b.t, b.release(permit(9, 1)).Ours)
				require.True(b.t, before == b.rdb.Dump(b.t.Context(), b.on.Keys[0]).Val(), "it is as it was")
				require.Zero(b.t, b.rdb.Exists(b.t.Context(), b.on.Line[2].(string), b.on.Line[3].(string)).Val())
			})
		})
	}
}

func TestSemaphore_ForeignKeyOfTheLineIsRefused(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.paint(b.on.Line[2].(string), textOf(short, "x"))
		_, out := b.permits.Enqueue(b.t.Context(), once, b.on, permit(1, 1), limited(4), 1)
		refusedAs(b.t, out, lockerr.ErrInvalidName, b.on.Line[2].(string))
	})
}

func TestSemaphore_LocksRefuseItAndWriteNothing(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		b.take(permit(1, 1), 2)
		before := b.rdb.Dump(b.t.Context(), b.on.Keys[0]).Val()
		lock := keysOf(b.t, b.on.Keys[0])
		rw := keysOf(b.t, b.on.Keys[0])
		rw.ReadWrite()
		lined := NewLined(b.Plain, "p")
		reads, writes := NewReadWrite(b.Plain)
		for name, p := range map[string]Protocol{"plain": b.Plain, "lined": lined, "fair": lined.Strict(), "read": reads, "write": writes} {
			on, field, text := lock, me, "as a semaphore has"
			switch name {
			case "read":
				on = rw
			case "write":
				on, field = rw, keys.AsWriter(me)
			}
			_, out := p.Acquire(b.t.Context(), once, on, field, termsOf())
			refusedAs(b.t, out, lockerr.ErrInvalidName, text)
			_, out = p.State(b.t.Context(), once, on, 0)
			refusedAs(b.t, out, lockerr.ErrInvalidName, text)
			ours, out := p.Renew(b.t.Context(), once, on, field, asked)
			mustDo(b.t, out)
			require.False(b.t, ours, name)
			r, out := p.Release(b.t.Context(), once, on, field, []int{0})
			mustDo(b.t, out)
			require.False(b.t, r.Ours, name)
		}
		_, out := lined.Enqueue(b.t.Context(), once, lock, me, termsOf(), 1)
		refusedAs(b.t, out, lockerr.ErrInvalidName, "as a semaphore has")
		require.True(b.t, before == b.rdb.Dump(b.t.Context(), b.on.Keys[0]).Val(), "it is as it was")
		require.Zero(b.t, b.rdb.Exists(b.t.Context(), keys.LineOf(b.on.Keys[0]).Queue, keys.LineOf(b.on.Keys[0]).Entries, rw.RW.Claim).Val())
	})
}

// A key that is free while waiters of another kind have a line: the first to ask gets it, and the others are notified.
func TestSemaphore_NoLockIsGrantedToItsWaiters(t *testing.T) {
	eachPermitBench(t, func(b *permitBench) {
		lock := keysOf(b.t, b.on.Keys[0])
		lined := NewLined(b.Plain, "p")
		b.take(permit(1, 1), 1)
		b.enqueue(permit(2, 1), 1)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.on.Keys[0]).Err())
		g, out := lined.Enqueue(b.t.Context(), once, lock, me, termsOf(), 7)
		mustDo(b.t, out)
		require.True(b.t, g.Held)
		require.Equal(b.t, hashOf(asked, me, "1"), b.look(b.on.Keys[0]))
		_, _, out = b.permits.Poll(b.t.Context(), once, b.on, []Waiter{{Field: permit(2, 1), Terms: limited(1)}})
		refusedAs(b.t, out, lockerr.ErrInvalidName, "is not a semaphore")
	})
}
