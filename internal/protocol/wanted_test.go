package protocol

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// announced returns how many waiters for the key were announced while fn ran.
func (b *bench) announced(key string, fn func()) int {
	b.t.Helper()
	messages := redistest.MessagesDuring(b.t, b.rdb, []string{keys.WantedOf(key)}, fn)[0]
	require.Empty(b.t, slices.DeleteFunc(slices.Clone(messages), func(m string) bool { return m == "" }))
	return len(messages)
}

func TestWanted_EachRequestOfAWaiterInLineIsAnnounced(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		key := b.on.Keys[0]
		requireAnnounced := func(want int, what string, fn func()) {
			t.Helper()
			require.Equal(b.t, want, b.announced(key, fn), what)
		}
		requireAnnounced(0, "it is free", func() { b.take(me) })
		requireAnnounced(0, "a try", func() {
			g, out := b.lined.Acquire(b.t.Context(), once, b.on, them, b.terms)
			require.NoError(b.t, out.Err)
			require.False(b.t, g.Held)
		})
		requireAnnounced(1, "the first entry", func() { b.enqueue(you) })
		requireAnnounced(1, "an entry behind another", func() { b.enqueue(them) })
		requireAnnounced(1, "a poll for both", func() { b.poll(you, them) })
		requireAnnounced(0, "a poll for nobody", func() { b.poll("gone") })
		requireAnnounced(0, "a release, which grants it", func() { b.release(me) })
		requireAnnounced(1, "a poll behind the one that was granted it", func() { b.poll(you, them) })
	})
}

func TestWanted_NameWithATagHasAChannelOfItsOwn(t *testing.T) {
	eachBench(t, func(t *testing.T, b *bench) {
		var on keys.Set
		key := "{tag}" + redistest.Key(t)
		require.NoError(t, on.Init("", []string{key}))
		l := &linedBench{bench: b, lined: NewLined(b.Plain, "p"), on: &on, terms: termsOf()}
		l.take(me)
		require.Equal(t, 1, b.announced(key, func() { l.enqueue(you) }))
		require.Equal(t, 1, b.announced(key, func() { l.enqueue(them) }))
	})
}

func TestWanted_WaiterForAReadWriteLockIsAnnounced(t *testing.T) {
	eachRWBench(t, func(b *rwBench) {
		key, reader, writer, other := b.on.Keys[0], me, keys.AsWriter(you), keys.AsWriter(them)
		writes := func(waits bool) func() {
			return func() {
				g, out := b.writes.Take(b.t.Context(), once, b.on, other, b.terms, time.Second, waits)
				require.NoError(b.t, out.Err)
				require.False(b.t, g.Held)
			}
		}
		reads := func(waits bool) func() {
			return func() {
				g, out := b.reads.Take(b.t.Context(), once, b.on, them, b.terms, "", waits)
				require.NoError(b.t, out.Err)
				require.False(b.t, g.Held)
			}
		}
		b.read(reader, "")
		require.Zero(b.t, b.announced(key, writes(false)))
		require.Equal(b.t, 1, b.announced(key, writes(true)), "a writer, to readers")
		b.release(b.reads, reader)
		b.rdb.Del(b.t.Context(), b.on.RW.Claim)
		b.write(writer)
		require.Zero(b.t, b.announced(key, writes(false)))
		require.Zero(b.t, b.announced(key, reads(false)))
		require.Equal(b.t, 1, b.announced(key, writes(true)), "a writer, to a writer")
		require.Equal(b.t, 1, b.announced(key, reads(true)), "a reader, to a writer")
		b.release(b.writes, writer)
	})
}
