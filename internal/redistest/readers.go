package redistest

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// ManyRead adds n readers to the read-write lock key, whose timeout keys begin with timeouts. The readers belong to no
// process. left returns the rest of the lease of each.
func ManyRead(tb testing.TB, rdb *redis.Client, key, timeouts string, n int, left func(i int) time.Duration) {
	tb.Helper()
	ctx := tb.Context()
	var longest time.Duration
	pipe := rdb.Pipeline()
	for i := range n {
		field, lease := fmt.Sprintf("00000000-0000-4000-8000-%012d:%d", i, i), left(i)
		longest = max(longest, lease)
		pipe.HSet(ctx, key, "mode", "read", field, 1)
		pipe.Set(ctx, fmt.Sprintf("%s:%s:rwlock_timeout:1", timeouts, field), 1, lease)
	}
	pipe.PExpire(ctx, key, longest)
	_, err := pipe.Exec(ctx)
	must(tb, err)
}
