package redisexec

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// A buffer for all of a crowd would be made anew for each batch, or stay for ever.
func TestWire_BufferStaysSmallHoweverManyCommandsComeTogether(t *testing.T) {
	p := new(pipeline)
	batch := make([]*call, 2000)
	var all []byte
	for i := range batch {
		batch[i] = newCall(t.Context(), counting, true, []any{redistest.Key(t)}, nil)
		all = appendCommand(all, batch[i].Cmd.Args())
	}
	var written []byte
	for left := batch; len(left) > 0; written = append(written, p.bytes...) {
		left = p.encode(left)
	}
	require.Equal(t, string(all), string(written))
	require.Zero(t, testing.AllocsPerRun(10, func() {
		for left := batch; len(left) > 0; {
			left = p.encode(left)
		}
	}))
	large := newCall(t.Context(), counting, true, []any{strings.Repeat("k", 5*fullWrite)}, nil)
	require.Empty(t, p.encode([]*call{large}))
	p.encode(batch)
	require.LessOrEqual(t, cap(p.bytes), 2*fullWrite, "after a large command")
}

func TestWire_BrokenBatchEndsEachOfItsCommandsOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		const commands = 500 // in several writes
		rdb, key := b.Client(t), redistest.Key(t)
		x := executorOn(t, rdb)
		w := loneOn(t, x, rdb)
		f, writes := &faulty{Conn: w.Conn}, 0
		f.write = func() {
			writes++
			f.short.Store(writes == 2)
		}
		w.Conn = f
		failed := 0
		for _, cmd := range lineUp(t, w.pipe, counting, key, commands) {
			if a := cmd.answer(t.Context()); a.err != nil {
				failed++
				require.NotErrorIs(t, a.err, errNotSent, "it may have been executed")
				require.ErrorIs(t, a.err, io.ErrShortWrite, "why")
			}
		}
		require.Positive(t, failed)
		require.Equal(t, 2, writes)
		executed, _ := rdb.Get(t.Context(), key).Int()
		require.GreaterOrEqual(t, executed, commands-failed, "those that were answered")
		require.Less(t, executed, commands)
		_, out := x.Run(t.Context(), once, idle, []any{key})
		require.NoError(t, out.Err, "on another connection")
	})
}
