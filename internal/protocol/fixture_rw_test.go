package protocol

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redistest"
)

// rwBench is the protocol of a read-write lock on its own.
type rwBench struct {
	*bench
	reads  *ReadSide
	writes *WriteSide
	on     *keys.Set
	terms  *Terms
}

func newRWBench(t *testing.T, rdb *redis.Client) *rwBench {
	t.Helper()
	b := &rwBench{bench: newBench(t, rdb), terms: termsOf()}
	b.on = b.target(1)
	b.on.ReadWrite()
	b.reads, b.writes = NewReadWrite(b.Plain)
	return b
}

// eachRWBench runs fn against both backends, and requires that nothing is left after it.
func eachRWBench(t *testing.T, fn func(b *rwBench)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		b := newRWBench(t, backend.Client(t))
		fn(b)
		b.requireFree()
	})
}

// requireFree requires that nothing is left of the lock.
func (b *rwBench) requireFree() {
	b.t.Helper()
	left, err := b.rdb.Keys(b.t.Context(), "*"+b.on.Keys[0]+"*").Result()
	require.NoError(b.t, err)
	require.Empty(b.t, left)
}

// read has field read, which may hold the write side as writes.
func (b *rwBench) read(field, writes string) {
	b.t.Helper()
	g, out := b.reads.Take(b.t.Context(), options, b.on, field, b.terms, writes, false)
	mustDo(b.t, out)
	require.True(b.t, g.Held)
}

// write has field write.
func (b *rwBench) write(field string) {
	b.t.Helper()
	g, out := b.writes.Acquire(b.t.Context(), options, b.on, field, b.terms)
	mustDo(b.t, out)
	require.True(b.t, g.Held)
}

// release has field give its hold of a side up.
func (b *rwBench) release(side Protocol, field string) {
	b.t.Helper()
	r, out := side.Release(b.t.Context(), options, b.on, field, []int{0})
	mustDo(b.t, out)
	require.True(b.t, r.Ours)
}

// readers are the fields of those who read.
func (b *rwBench) readers() []string {
	b.t.Helper()
	s, out := b.writes.State(b.t.Context(), options, b.on, 0)
	mustDo(b.t, out)
	return s.Fields
}

// spreads are the leases of many readers, as what they have left of them.
var spreads = map[string]func(i int) time.Duration{
	"alike":  func(int) time.Duration { return 300 * time.Second },
	"spread": func(i int) time.Duration { return 200*time.Second + time.Duration(i*7919%10000)*10*time.Millisecond },
	"mixed":  func(i int) time.Duration { return 100*time.Second + time.Duration(i%97)*100*time.Second },
}

// manyRead has n owners of no process read.
func manyRead(tb testing.TB, rdb *redis.Client, on *keys.Set, n int, left func(i int) time.Duration) {
	tb.Helper()
	redistest.ManyRead(tb, rdb, on.Keys[0], on.RW.Timeouts, n, left)
}
