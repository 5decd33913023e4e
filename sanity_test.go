package relock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestSanity(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		rdb := b.Client(t)
		var wg sync.WaitGroup
		key := redistest.Key(t)
		n := 0
		start := time.Now()
		var cs []*Client
		for range 2 {
			c, err := New(rdb)
			require.NoError(t, err)
			cs = append(cs, c)
			for range 16 {
				wg.Go(func() {
					for range 50 {
						m := c.Mutex(key)
						if err := m.Lock(context.Background()); err != nil {
							t.Error(err)
							return
						}
						if err := m.Lock(context.Background()); err != nil {
							t.Error(err)
							return
						}
						n++
						if m.HoldCount() != 2 {
							t.Error("count")
						}
						if err := m.Unlock(); err != nil {
							t.Error(err)
						}
						if err := m.Unlock(); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		require.Equal(t, 1600, n)
		t.Log(time.Since(start))
		require.Zero(t, rdb.Exists(t.Context(), key).Val())
		for _, c := range cs {
			require.NoError(t, c.Close())
		}
	})
}
