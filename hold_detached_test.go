package relock

import (
	"testing"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

func TestAsyncUnlock_WaitsForItsReleaseWhenTooManyArePending(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb, key := b.Client(t), redistest.Key(t)
		c := LocksOn(t, rdb)
		m := c.Mutex(key, WithAsyncUnlock())
		answered := make(chan struct{})
		defer close(answered)
		for range mostReleases {
			c.session.releases.Go(func() { <-answered })
		}
		locktest.RequireLocked(t, m)
		locktest.RequireUnlocked(t, m)
		locktest.RequireFree(t, rdb, key)
	})
}
