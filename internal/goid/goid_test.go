package goid

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGoid_FastPathAgreesWithTheStackTrace(t *testing.T) {
	require.True(t, fast, "this Go release needs the slow parser: update petermattis/goid")
	require.Equal(t, parse(), Get())
}

func TestGoid_WrongFastPathIsNotTrusted(t *testing.T) {
	require.False(t, agrees(func() int64 { return 1 }))
}

func TestGoid_ParserReplacesAWrongFastPath(t *testing.T) {
	want := Get()
	fast = false
	defer func() { fast = true }()
	require.Equal(t, want, Get())
}

func TestGoid_EveryGoroutineHasItsOwn(t *testing.T) {
	const n = 1000
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[int64]bool{}
	for range n {
		wg.Go(func() {
			id := Get()
			mu.Lock()
			defer mu.Unlock()
			seen[id] = true
		})
	}
	wg.Wait()
	require.Len(t, seen, n)
}

func BenchmarkGet(b *testing.B) {
	for b.Loop() {
		Get()
	}
}

func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		parse()
	}
}
