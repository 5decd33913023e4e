package redisexec

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// pipelineWith returns a pipeline to backend, the commands that other callers have brought to it, and one
// more. Each says the how manyeth of them it was.
func pipelineWith(t *testing.T, backend *redistest.Backend, others int) (*pipeline, []*call, *call) {
	redistest.NeedsPipelining(t)
	rdb, key := backend.Client(t), []any{redistest.Key(t)}
	counts := func() *call { return newCall(t.Context(), counting, true, key, nil) }
	p := executorOn(t, rdb).engineAt(rdb).shared.pipe
	for range others {
		other := counts()
		other.ctx = t.Context()
		p.crowd.brought = append(p.crowd.brought, other)
	}
	return p, slices.Clone(p.crowd.brought), counts()
}

func TestCrowd_FirstToRunSubmitsForAllInOrder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		for _, callers := range []int64{fewest, most} {
			p, others, own := pipelineWith(t, backend, 2)
			require.NoError(t, p.submit(t.Context(), own, callers).answer(t.Context()).err)
			require.EqualValues(t, 3, own.Val())
			for i, other := range others {
				require.NoError(t, other.queued.answer(t.Context()).err)
				require.EqualValues(t, i+1, other.Val())
			}
			require.Empty(t, p.crowd.brought)
		}
	})
}

func TestCrowd_OutsiderSubmitsForItself(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		for _, callers := range []int64{fewest - 1, most + 1} {
			p, others, own := pipelineWith(t, backend, 1)
			require.NoError(t, p.submit(t.Context(), own, callers).answer(t.Context()).err)
			require.False(t, others[0].submitted)
		}
	})
}

func TestCrowd_EachGetsItsOwnAnswer(t *testing.T) {
	redistest.Slow(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, backend *redistest.Backend) {
		x, key := executorOn(t, backend.Client(t)), []any{redistest.Key(t)}
		echo := NewScript("return tonumber(ARGV[1])")
		var callers sync.WaitGroup
		for i := range 8 * fewest {
			callers.Go(func() {
				for n := range 50 {
					own := int64(1000*i + n)
					answer, out := x.Run(context.Background(), CallOptions{}, echo, key, own)
					assert.NoError(t, out.Err)
					assert.Equal(t, own, answer)
				}
			})
		}
		callers.Wait()
	})
}
