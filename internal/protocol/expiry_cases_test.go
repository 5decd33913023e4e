package protocol

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
)

// with returns the terms of a lock with a token, for a lease.
func fencedFor(lease time.Duration) *Terms {
	return termsOf(fencing, func(s *Terms) { s.TTL = lease })
}

func unfencedFor(lease time.Duration) *Terms { return termsOf(func(s *Terms) { s.TTL = lease }) }

// expiryCase is a state on Redis and a script that meets it.
type expiryCase struct {
	name   string
	before func(b *expiring)
	ask    func(b *expiring, lease time.Duration)
}

// hashes has keys be locks of field, for short.
func hashes(fields ...string) func(b *expiring) {
	return func(b *expiring) {
		for _, key := range b.two.Keys {
			b.paint(key, hashOf(short, fields...))
		}
	}
}

// inLine has the lock be held, and some wait in the line.
func inLine(s *Terms, waiters ...string) func(b *expiring) {
	return func(b *expiring) {
		b.paint(b.on.Keys[0], hashOf(short, me, "1"))
		for i, field := range waiters {
			_, out := b.lined.Enqueue(b.t.Context(), once, b.on, field, s, uint64(i+1))
			mustDo(b.t, out)
		}
	}
}

// entries is the key of those who wait in the line.
func (b *expiring) entries() string { return keys.LineOf(b.on.Keys[0]).Entries }

// foreignTurnsAre notes when foreign waiters have their turn, behind the waiters of inLine.
func foreignTurnsAre(note func(now int64) string, waiters ...string) func(b *expiring) {
	return func(b *expiring) {
		inLine(unfencedFor(long), waiters...)(b)
		now := b.rdb.Time(b.t.Context()).Val().UnixMilli()
		require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.entries(), "", note(now)).Err())
	}
}

func first(steps ...func(b *expiring)) func(b *expiring) {
	return func(b *expiring) {
		for _, step := range steps {
			step(b)
		}
	}
}

func nothing(*expiring) {}

// free has no one hold the lock.
func free(b *expiring) { require.NoError(b.t, b.rdb.Del(b.t.Context(), b.on.Keys[0]).Err()) }

// asking has a field read or write in the way of the library, for short.
func reading(fields ...string) func(b *expiring) {
	return func(b *expiring) {
		for _, field := range fields {
			_, out := b.reads.Take(b.t.Context(), once, b.on, field, unfencedFor(short), keys.AsWriter(field), false)
			mustDo(b.t, out)
		}
	}
}

func writing(field string) func(b *expiring) {
	return func(b *expiring) {
		_, out := b.writes.Acquire(b.t.Context(), once, b.on, field+keys.WriteSuffix, unfencedFor(short))
		mustDo(b.t, out)
	}
}

func readingTwice(field string) func(b *expiring) {
	return first(reading(field), func(b *expiring) {
		_, out := b.reads.Reenter(b.t.Context(), once, b.on, field, unfencedFor(short), false, []int{2})
		mustDo(b.t, out)
	})
}

// unsubscribedSince has a waiter's process be one that listened when it polled last, and does not now.
func unsubscribedSince(field string) func(b *expiring) {
	return func(b *expiring) {
		entry := b.rdb.HGet(b.t.Context(), b.entries(), field).Val()
		entry = strings.Replace(entry, " 2 ", " 0 ", 1)
		require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.entries(), field, entry).Err())
	}
}

// release is the release of some keys, to these counts.
func releasing(p func(b *expiring) Protocol, t func(b *expiring) *keys.Set, field string, counts ...int) func(*expiring, time.Duration) {
	return func(b *expiring, _ time.Duration) { p(b).Release(b.t.Context(), once, t(b), field, counts) }
}

func keepingAs(p func(b *expiring) Protocol, t func(b *expiring) *keys.Set, field string) func(*expiring, time.Duration) {
	return func(b *expiring, lease time.Duration) {
		p(b).LeavePlaceholder(b.t.Context(), once, t(b), field, b.Exec.Now().After(lease), lease)
	}
}

func polling(s func(time.Duration) *Terms, fields ...string) func(*expiring, time.Duration) {
	return func(b *expiring, lease time.Duration) {
		var all []Waiter
		for _, field := range fields {
			all = append(all, Waiter{Field: field, Terms: s(lease)})
		}
		_, _, _ = b.lined.Poll(b.t.Context(), once, b.on, all)
	}
}

func enqueueing(s func(time.Duration) *Terms, field string) func(*expiring, time.Duration) {
	return func(b *expiring, lease time.Duration) {
		_, _ = b.lined.Enqueue(b.t.Context(), once, b.on, field, s(lease), 9)
	}
}

func plainSide(b *expiring) Protocol { return b.Plain }
func lineSide(b *expiring) Protocol  { return b.lined }
func readSide(b *expiring) Protocol  { return b.reads }
func writeSide(b *expiring) Protocol { return b.writes }

func single(b *expiring) *keys.Set { return b.on }
func both(b *expiring) *keys.Set   { return b.two }

var expiryCases = []expiryCase{
	{"acquire", nothing, func(b *expiring, lease time.Duration) {
		b.Acquire(b.t.Context(), once, b.on, me, unfencedFor(lease))
	}},
	{"acquire two with a token", nothing, func(b *expiring, lease time.Duration) {
		b.Acquire(b.t.Context(), once, b.two, me, fencedFor(lease))
	}},
	{"acquire again", hashes(me, "1"), func(b *expiring, lease time.Duration) {
		b.Acquire(b.t.Context(), once, b.two, me, fencedFor(lease))
	}},
	{"reenter", hashes(me, "1"), func(b *expiring, lease time.Duration) {
		b.Reenter(b.t.Context(), once, b.on, me, unfencedFor(lease), false, []int{2})
	}},
	{"reenter two with a token", hashes(me, "1"), func(b *expiring, lease time.Duration) {
		b.Reenter(b.t.Context(), once, b.two, me, fencedFor(lease), true, []int{2, 1})
	}},
	{"renew", hashes(me, "1"), func(b *expiring, lease time.Duration) {
		b.Renew(b.t.Context(), once, b.two, me, lease)
	}},
	{"register", nothing, func(b *expiring, lease time.Duration) {
		Register(b.t.Context(), b.Exec, once, b.on.Keys[0], lease, "host", "1", "program", "now")
	}},
	{"renew many", hashes(me, "1"), func(b *expiring, lease time.Duration) {
		b.renewMany(b.t.Context(), once, b.two.Locks(), []any{me, me}, lease)
	}},
	{"release", hashes(me, "1"), releasing(plainSide, both, me, 0, 0)},
	{"release a level", hashes(me, "2"), releasing(plainSide, single, me, 1)},
	{"release a level, and a key", hashes(me, "2"), releasing(plainSide, both, me, 1, 0)},
	{"hand over", hashes(me, "1"), func(b *expiring, lease time.Duration) {
		b.Handoff(b.t.Context(), once, b.on, me, you, unfencedFor(lease))
	}},
	{"hand two over with a token", hashes(me, "1"), func(b *expiring, lease time.Duration) {
		b.Handoff(b.t.Context(), once, b.two, me, you, fencedFor(lease))
	}},
	{"hand over again", hashes(you, "1"), func(b *expiring, lease time.Duration) {
		b.Handoff(b.t.Context(), once, b.two, me, you, fencedFor(lease))
	}},
	{"rename", hashes(me, "1"), func(b *expiring, lease time.Duration) {
		b.Rename(b.t.Context(), once, b.on, me, you, lease)
	}},
	{"rename to the same", hashes(me, "1"), func(b *expiring, lease time.Duration) {
		b.Rename(b.t.Context(), once, b.on, me, me, lease)
	}},
	{"rename again", hashes(you, "1"), func(b *expiring, lease time.Duration) {
		b.Rename(b.t.Context(), once, b.on, me, you, lease)
	}},
	{"force", hashes(me, "1"), func(b *expiring, _ time.Duration) {
		b.Force(b.t.Context(), once, b.on, 0, []string{me})
	}},
	{"keep", hashes(me, "1"), keepingAs(plainSide, both, me)},
	{"keep in the line", inLine(unfencedFor(long), you), keepingAs(lineSide, single, me)},
	{"keep what one has kept", hashes(you, "1"), keepingAs(plainSide, single, me)},
	{"raise the counters", first(hashes(me, "1"), func(b *expiring) {
		b.paint(b.two.Counters[0], textOf(short, "5"))
	}), func(b *expiring, _ time.Duration) {
		b.Raise(b.t.Context(), once, b.two, me, fencedFor(long), 9)
	}},

	{"acquire in the line", nothing, func(b *expiring, lease time.Duration) {
		b.lined.Strict().Acquire(b.t.Context(), once, b.on, me, unfencedFor(lease))
	}},
	{"acquire in the line with a token", nothing, func(b *expiring, lease time.Duration) {
		b.lined.Acquire(b.t.Context(), once, b.on, me, fencedFor(lease))
	}},
	{"acquire in the line again", hashes(me, "1"), func(b *expiring, lease time.Duration) {
		b.lined.Acquire(b.t.Context(), once, b.on, me, fencedFor(lease))
	}},
	{"be the first to wait", inLine(nil), enqueueing(unfencedFor, you)},
	{"wait behind another", inLine(unfencedFor(short), you), enqueueing(unfencedFor, them)},
	{"wait again", inLine(unfencedFor(short), you), enqueueing(unfencedFor, you)},
	{"find a line without a lock", first(inLine(fencedFor(long), you), free), enqueueing(fencedFor, them)},
	{"find the lock left to foreign waiters", first(foreignTurnsAre(func(now int64) string {
		return fmt.Sprintf("%d 100 %d 0 0", now, now+9000)
	}, you), free), enqueueing(unfencedFor, them)},
	{"poll", inLine(unfencedFor(short), you, them), polling(unfencedFor, you, them)},
	{"poll a free lock", first(inLine(unfencedFor(short), you, them), free), polling(unfencedFor, you, them)},
	{"poll a free lock for a token", first(inLine(fencedFor(short), you, them), free), polling(fencedFor, you, them)},
	{"poll what has been granted", hashes(you, "1"), polling(fencedFor, you)},
	{"poll while a foreign waiter holds", foreignTurnsAre(func(now int64) string {
		return fmt.Sprintf("%d 100 %d 2 0", now, now+9000)
	}, you), polling(unfencedFor, you)},
	{"poll in the turn of foreign waiters", first(foreignTurnsAre(func(now int64) string {
		return fmt.Sprintf("%d 100 %d 0 0", now, now+9000)
	}, you), free), polling(unfencedFor, you)},
	{"poll after the turn of foreign waiters", first(foreignTurnsAre(func(now int64) string {
		return fmt.Sprintf("%d 100 %d 0 0", now-9000, now-1000)
	}, you), free), polling(unfencedFor, you)},
	{"poll past one who does not listen", first(inLine(unfencedFor(short), you, them), unsubscribedSince(you), free), polling(unfencedFor, them)},

	{"release to no one", inLine(nil), releasing(lineSide, single, me, 0)},
	{"release a level in the line", inLine(unfencedFor(long), you), releasing(lineSide, single, me, 1)},
	{"release to the line", inLine(unfencedFor(long), you, them), releasing(lineSide, single, me, 0)},
	{"release to the line, known to have no foreign waiters", first(foreignTurnsAre(func(now int64) string {
		return fmt.Sprintf("%d 100 0 0 0", now+5000)
	}, you, them), func(b *expiring) { unsubscribedSince(you)(b) }), releasing(lineSide, single, me, 0)},
	{"release to one who wants a token", inLine(fencedFor(long), you), releasing(lineSide, single, me, 0)},
	{"release to foreign waiters", foreignTurnsAre(func(now int64) string { return fmt.Sprintf("%d 100 0 0 0", now-1) }, you), releasing(lineSide, single, me, 0)},
	{"release a grant before foreign waiters", foreignTurnsAre(func(now int64) string { return fmt.Sprintf("%d 10 0 0 5", now) }, you), releasing(lineSide, single, me, 0)},
	{"release to a line without entries", first(inLine(unfencedFor(long), you, them), func(b *expiring) {
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.entries()).Err())
	}), releasing(lineSide, single, me, 0)},
	{"release past one who does not listen", first(inLine(unfencedFor(long), you, them), unsubscribedSince(you)), releasing(lineSide, single, me, 0)},
	{"give a place up", first(inLine(unfencedFor(long), you, them), free), releasing(lineSide, single, you, 0)},

	{"take a permit", nothing, func(b *expiring, lease time.Duration) { b.asksFor(permit(1, 1), 2, lease) }},
	{"take one more", permitsInUse(1), func(b *expiring, lease time.Duration) { b.asksFor(permit(9, 1), 2, lease) }},
	{"take a permit again", permitsInUse(2), func(b *expiring, lease time.Duration) { b.asksFor(permit(1, 1), 2, lease) }},
	{"be the first to wait for a permit", permitsInUse(2), waitingForPermits(9)},
	{"wait for a permit behind others", first(permitsInUse(2), permitsAwaited(3, 4)), waitingForPermits(9)},
	{"poll for permits", first(permitsInUse(2), permitsAwaited(3, 4)), pollingForPermits(3, 4)},
	{"poll for permits that are free", first(permitsInUse(2), permitsAwaited(3, 4), (*expiring).dropPermits), pollingForPermits(3, 4)},
	{"poll for a permit that has been granted", permitsInUse(2), pollingForPermits(1, 9)},
	{"poll for permits past one that is set aside", first(permitsInUse(2), permitsAwaited(3, 4), func(b *expiring) {
		b.unsubscribedPermit(3)
		b.asksFor(permit(8, 1), 2, long) // sets it aside
	}, (*expiring).dropPermits), pollingForPermits(4)},
	{"release a permit", permitsInUse(2), releasing(permitSide, semaphore, permit(1, 1), 0)},
	{"release a permit to the line", first(permitsInUse(2), permitsAwaited(3, 4)), releasing(permitSide, semaphore, permit(1, 1), 0)},
	{"release a permit past one who does not listen", first(permitsInUse(2), permitsAwaited(3, 4), func(b *expiring) { b.unsubscribedPermit(3) }),
		releasing(permitSide, semaphore, permit(1, 1), 0)},
	{"keep a permit", first(permitsInUse(2), permitsAwaited(3, 4)), keepingAs(permitSide, semaphore, permit(1, 1))},
	{"renew permits", permitsInUse(2), func(b *expiring, lease time.Duration) {
		key := b.sem.Keys[0]
		b.permits.renewMany(b.t.Context(), once, []any{key, key, key}, []any{permit(1, 1), permit(9, 1), permit(2, 1)}, lease)
	}},

	{"read", nothing, func(b *expiring, lease time.Duration) {
		b.reads.Take(b.t.Context(), once, b.on, me, unfencedFor(lease), keys.AsWriter(me), false)
	}},
	{"read with another", reading(you), func(b *expiring, lease time.Duration) {
		b.reads.Take(b.t.Context(), once, b.on, me, unfencedFor(lease), keys.AsWriter(me), false)
	}},
	{"read while writing", writing(me), func(b *expiring, lease time.Duration) {
		b.reads.Take(b.t.Context(), once, b.on, me, unfencedFor(lease), keys.AsWriter(me), false)
	}},
	{"read again", reading(me), func(b *expiring, lease time.Duration) {
		b.reads.Take(b.t.Context(), once, b.on, me, unfencedFor(lease), keys.AsWriter(me), false)
	}},
	{"read a level more", reading(me), func(b *expiring, lease time.Duration) {
		b.reads.Reenter(b.t.Context(), once, b.on, me, unfencedFor(lease), false, []int{2})
	}},
	{"read on", reading(me, you), func(b *expiring, lease time.Duration) { b.reads.Renew(b.t.Context(), once, b.on, me, lease) }},
	{"end the last read", reading(me), releasing(readSide, single, me, 0)},
	{"end one read of several", reading(me, you, them), releasing(readSide, single, me, 0)},
	{"end a level of a read", readingTwice(me), releasing(readSide, single, me, 1)},
	{"end a read while writing", first(writing(me), reading(me)), releasing(readSide, single, me, 0)},
	{"write", nothing, func(b *expiring, lease time.Duration) {
		b.writes.Acquire(b.t.Context(), once, b.on, keys.AsWriter(me), fencedFor(lease))
	}},
	{"write at once", nothing, func(b *expiring, lease time.Duration) {
		b.writes.Acquire(b.t.Context(), once, b.on, keys.AsWriter(me), unfencedFor(lease))
	}},
	{"write again", writing(me), func(b *expiring, lease time.Duration) {
		b.writes.Acquire(b.t.Context(), once, b.on, keys.AsWriter(me), fencedFor(lease))
	}},
	{"claim", reading(you), func(b *expiring, lease time.Duration) {
		b.writes.Take(b.t.Context(), once, b.on, keys.AsWriter(me), unfencedFor(lease), long, false)
	}},
	{"withdraw a claim", first(reading(you), func(b *expiring) {
		b.writes.Take(b.t.Context(), once, b.on, keys.AsWriter(me), unfencedFor(long), long, false)
	}), func(b *expiring, _ time.Duration) {
		e := once
		e.Undoes = true
		b.writes.Release(b.t.Context(), e, b.on, keys.AsWriter(me), []int{0})
	}},
	{"write a level more", writing(me), func(b *expiring, lease time.Duration) {
		b.writes.Reenter(b.t.Context(), once, b.on, keys.AsWriter(me), unfencedFor(lease), false, []int{2})
	}},
	{"end a level of a write", writing(me), releasing(writeSide, single, me+keys.WriteSuffix, 1)},
	{"end a write", writing(me), releasing(writeSide, single, me+keys.WriteSuffix, 0)},
	{"end a write while reading", first(writing(me), readingTwice(me)), releasing(writeSide, single, me+keys.WriteSuffix, 0)},
	{"hand a write over", writing(me), func(b *expiring, lease time.Duration) {
		b.writes.Handoff(b.t.Context(), once, b.on, keys.AsWriter(me), keys.AsWriter(you), unfencedFor(lease))
	}},
	{"hand a write over with a token", writing(me), func(b *expiring, lease time.Duration) {
		b.writes.Handoff(b.t.Context(), once, b.on, keys.AsWriter(me), keys.AsWriter(you), fencedFor(lease))
	}},
	{"keep a write", writing(me), keepingAs(writeSide, single, me+keys.WriteSuffix)},
	{"keep a write while reading", first(writing(me), reading(me)), keepingAs(writeSide, single, me+keys.WriteSuffix)},
	{"keep a read", reading(me), keepingAs(readSide, single, me)},
	{"keep one read of several", reading(me, you, them), keepingAs(readSide, single, me)},
	{"keep a read while writing", first(writing(me), reading(me)), keepingAs(readSide, single, me)},
	{"force one reader of several", reading(me, you, them), func(b *expiring, _ time.Duration) {
		b.reads.Force(b.t.Context(), once, b.on, 0, []string{me})
	}},
	{"force a writer that reads", first(writing(me), reading(me)), func(b *expiring, _ time.Duration) {
		b.writes.Force(b.t.Context(), once, b.on, 0, []string{keys.AsWriter(me)})
	}},
}

// termsForPermits are those of a waiter for one of two permits.
func termsForPermits(lease time.Duration) *Terms {
	return termsOf(func(s *Terms) { s.TTL, s.Limit = lease, 2 })
}

// asksFor has field ask for a permit.
func (b *expiring) asksFor(field string, limit int, lease time.Duration) {
	s := termsOf(func(s *Terms) { s.TTL, s.Limit = lease, limit })
	b.permits.Acquire(b.t.Context(), once, b.sem, field, s)
}

// permitsInUse has the permits 1 to n be in use, for short.
func permitsInUse(n int) func(b *expiring) {
	return func(b *expiring) {
		for i := range n {
			b.asksFor(permit(i+1, 1), 2, short)
		}
		require.EqualValues(b.t, n, b.rdb.ZCard(b.t.Context(), b.sem.Keys[0]).Val())
	}
}

// permitsAwaited has some wait for one of two permits.
func permitsAwaited(waiters ...int) func(b *expiring) {
	return func(b *expiring) {
		for _, n := range waiters {
			g, out := b.permits.Enqueue(b.t.Context(), once, b.sem, permit(n, 1), termsForPermits(short), uint64(n))
			mustDo(b.t, out)
			require.True(b.t, g.Waits)
		}
	}
}

// dropPermits has no permit be in use.
func (b *expiring) dropPermits() { require.NoError(b.t, b.rdb.Del(b.t.Context(), b.sem.Keys[0]).Err()) }

// unsubscribedPermit has the process of a waiter be one that listened when it polled last, and does not now.
func (b *expiring) unsubscribedPermit(n int) {
	entries := b.sem.Line[3].(string)
	entry := b.rdb.HGet(b.t.Context(), entries, permit(n, 1)).Val()
	require.Contains(b.t, entry, " 2 relock")
	require.NoError(b.t, b.rdb.HSet(b.t.Context(), entries, permit(n, 1), strings.Replace(entry, " 2 relock", " 0 relock", 1)).Err())
}

func waitingForPermits(n int) func(*expiring, time.Duration) {
	return func(b *expiring, lease time.Duration) {
		_, _ = b.permits.Enqueue(b.t.Context(), once, b.sem, permit(n, 1), termsForPermits(lease), uint64(n))
	}
}

func pollingForPermits(waiters ...int) func(*expiring, time.Duration) {
	return func(b *expiring, lease time.Duration) {
		var all []Waiter
		for _, n := range waiters {
			all = append(all, Waiter{Field: permit(n, 1), Terms: termsForPermits(lease)})
		}
		_, _, _ = b.permits.Poll(b.t.Context(), once, b.sem, all)
	}
}

func permitSide(b *expiring) Protocol { return b.permits }

func semaphore(b *expiring) *keys.Set { return b.sem }
