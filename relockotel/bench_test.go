package relockotel_test

import (
	"context"
	"testing"
	"time"

	"github.com/relock-go/relock"
)

// BenchmarkAHold is what the hooks of one hold that has not waited cost.
func BenchmarkAHold(b *testing.B) {
	hooks := observe(b).Hooks()
	e := relock.Event{
		Name: "orders:42", Kind: relock.KindMutex, OwnerID: "17", Owner: "3f0c4a4e-7a3c-4a55-9d2f-0d1b2c3d4e5f:17",
		Elapsed: time.Millisecond, Context: context.Background(),
	}
	got := e
	got.Outcome = relock.OutcomeAcquired
	b.ReportAllocs()
	for b.Loop() {
		hooks.Acquired(got)
		hooks.Released(e)
	}
}
