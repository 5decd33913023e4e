package goroutine

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestID_FastPathAgreesWithTheStackTrace(t *testing.T) {
	require.True(t, fast, "this Go release needs the slow parser: update petermattis/goid")
	require.Equal(t, parse(), ID())
}

func TestID_WrongFastPathIsNotTrusted(t *testing.T) {
	require.False(t, agrees(func() int64 { return 1 }))
}

func TestID_ParserReplacesAWrongFastPath(t *testing.T) {
	want := ID()
	fast = false
	defer func() { fast = true }()
	require.Equal(t, want, ID())
}

func TestID_EveryGoroutineHasItsOwn(t *testing.T) {
	const n = 1000
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[int64]bool{}
	for range n {
		wg.Go(func() {
			id := ID()
			mu.Lock()
			defer mu.Unlock()
			seen[id] = true
		})
	}
	wg.Wait()
	require.Len(t, seen, n)
}

func BenchmarkID(b *testing.B) {
	for b.Loop() {
		ID()
	}
}

func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		parse()
	}
}
