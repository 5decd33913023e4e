package fence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/fence"
	"github.com/relock-go/relock/internal/redistest"
)

var appendScript = fence.NewScript(`return redis.call('rpush', KEYS[1], ARGV[1])`)

// writes are the ways to write, and to read what was written.
var writes = map[string]struct {
	write func(ctx context.Context, rdb redis.UniversalClient, token int64, key, value string) error
	read  func(ctx context.Context, rdb redis.UniversalClient, key string) string
}{
	"Set": {
		func(ctx context.Context, rdb redis.UniversalClient, token int64, key, value string) error {
			return fence.Set(ctx, rdb, token, key, value, 0)
		},
		func(ctx context.Context, rdb redis.UniversalClient, key string) string {
			return rdb.Get(ctx, key).Val()
		},
	},
	"HSet": {
		func(ctx context.Context, rdb redis.UniversalClient, token int64, key, value string) error {
			return fence.HSet(ctx, rdb, token, key, "field", value)
		},
		func(ctx context.Context, rdb redis.UniversalClient, key string) string {
			return rdb.HGet(ctx, key, "field").Val()
		},
	},
	"Script": {
		func(ctx context.Context, rdb redis.UniversalClient, token int64, key, value string) error {
			return appendScript.Run(ctx, rdb, token, []string{key}, value).Err()
		},
		func(ctx context.Context, rdb redis.UniversalClient, key string) string {
			return rdb.LIndex(ctx, key, -1).Val()
		},
	},
}

// fenceOf is the key of the fence of a key without braces.
func fenceOf(key string) string { return "relock_fence:{" + key + "}" }

func TestFence_LowerTokenIsRefused(t *testing.T) {
	for name, w := range writes {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				ctx, rdb, key := t.Context(), b.Client(t), redistest.Key(t)
				require.NoError(t, w.write(ctx, rdb, 9, key, "first"))
				require.NoError(t, w.write(ctx, rdb, 9, key, "again"), "the same token may write again")
				require.NoError(t, w.write(ctx, rdb, 10, key, "second"), "tokens are compared as numbers")
				for range 2 {
					err := w.write(ctx, rdb, 9, key, "late")
					require.ErrorIs(t, err, fence.ErrStale)
					require.ErrorContains(t, err, key)
					require.ErrorContains(t, err, "with token 9, but a later holder has already written with token 10")
				}
				require.Equal(t, "second", w.read(ctx, rdb, key))
				require.NoError(t, w.write(ctx, rdb, 9, key+"-other", "x"), "each key has its own")
				require.NoError(t, w.write(ctx, rdb, 10, key, "third"))
				require.Equal(t, "third", w.read(ctx, rdb, key))
			})
		})
	}
}

// The whole way: the token is a lock's, and the data may be on another Redis.
func TestFence_HolderThatLostItsLockCannotWriteAfterTheNext(t *testing.T) {
	for name, w := range writes {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				for _, data := range b.Nodes(t, 2) {
					ctx, key, rdb := t.Context(), redistest.Key(t), data.Client(t)
					slow, next := locksOn(t, b.Client(t)).Mutex(key, relock.WithFencing()), locksOn(t, b.Client(t)).Mutex(key, relock.WithFencing())
					require.NoError(t, slow.Lock(ctx))
					_, err := next.ForceUnlock(ctx)
					require.NoError(t, err)
					require.NoError(t, next.Lock(ctx))
					require.NoError(t, w.write(ctx, rdb, slow.FencingToken(), key+"-data", "before the next one writes"))
					require.NoError(t, w.write(ctx, rdb, next.FencingToken(), key+"-data", "next"))
					require.ErrorIs(t, w.write(ctx, rdb, slow.FencingToken(), key+"-data", "slow"), fence.ErrStale)
					require.Equal(t, "next", w.read(ctx, rdb, key+"-data"))
				}
			})
		})
	}
}

func locksOn(t *testing.T, rdb redis.UniversalClient) *relock.Client {
	t.Helper()
	c, err := relock.New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestFence_NoWriteIsAcceptedAfterALaterOne(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		const writers, each = 8, 50
		rdb, key := b.Client(t), redistest.Key(t)
		done := make(chan error)
		for range writers {
			go func() {
				for range each {
					token := 1 + rand.Int64N(100)
					err := appendScript.Run(t.Context(), rdb, token, []string{key}, token).Err()
					if err != nil && !errors.Is(err, fence.ErrStale) {
						done <- err
						return
					}
				}
				done <- nil
			}()
		}
		for range writers {
			require.NoError(t, <-done)
		}
		last := 0
		for _, text := range rdb.LRange(t.Context(), key, 0, -1).Val() {
			token, err := strconv.Atoi(text)
			require.NoError(t, err)
			require.GreaterOrEqual(t, token, last)
			last = token
		}
		require.Positive(t, last)
	})
}

func TestFence_TokenIsKeptForADayAfterTheLastAcceptedWrite(t *testing.T) {
	for name, w := range writes {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
				ctx, rdb, key := t.Context(), b.Client(t), redistest.Key(t)
				left := func() time.Duration { return rdb.PTTL(ctx, fenceOf(key)).Val() }
				require.NoError(t, w.write(ctx, rdb, 5, key, "x"))
				require.InDelta(t, fence.Life, left(), float64(time.Minute))
				require.NoError(t, rdb.Expire(ctx, fenceOf(key), time.Minute).Err())
				require.ErrorIs(t, w.write(ctx, rdb, 4, key, "x"), fence.ErrStale)
				require.LessOrEqual(t, left(), time.Minute, "one that was refused does not count")
				require.NoError(t, w.write(ctx, rdb, 5, key, "x"))
				require.InDelta(t, fence.Life, left(), float64(time.Minute))
				require.Negative(t, rdb.PTTL(ctx, key).Val(), "the data has no expiry for that")
			})
		})
	}
}

func TestFence_SetExpiresTheDataAsRequested(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		ctx, rdb, key := t.Context(), b.Client(t), redistest.Key(t)
		left := func() time.Duration { return rdb.PTTL(ctx, key).Val() }
		require.NoError(t, fence.Set(ctx, rdb, 1, key, "x", time.Hour))
		require.InDelta(t, time.Hour, left(), float64(time.Minute))
		require.NoError(t, fence.Set(ctx, rdb, 1, key, "y", redis.KeepTTL))
		require.InDelta(t, time.Hour, left(), float64(time.Minute))
		require.Equal(t, "y", rdb.Get(ctx, key).Val())
		require.NoError(t, fence.Set(ctx, rdb, 1, key, "z", 0))
		require.Negative(t, left())
		require.NoError(t, fence.Set(ctx, rdb, 1, key, "z", time.Nanosecond), "rounded up, or SET would refuse it")
		require.NoError(t, fence.Set(ctx, rdb, 1, key, "z", math.MaxInt64), "for ever, to many")
	})
}

func TestFence_HSetWritesAllFieldsHoweverMany(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		ctx, rdb, key := t.Context(), b.Client(t), redistest.Key(t)
		require.NoError(t, rdb.HSet(ctx, key, "old", "stays").Err())
		require.NoError(t, rdb.Expire(ctx, key, time.Hour).Err())
		var values []any
		for i := range 10_001 {
			values = append(values, fmt.Sprint("field", i), i)
		}
		require.NoError(t, fence.HSet(ctx, rdb, 1, key, values...))
		require.EqualValues(t, 10_002, rdb.HLen(ctx, key).Val())
		require.Equal(t, "10000", rdb.HGet(ctx, key, "field10000").Val())
		require.InDelta(t, time.Hour, rdb.PTTL(ctx, key).Val(), float64(time.Minute))
	})
}

func TestFence_ScriptSeesItsOwnKeysAndArguments(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		ctx, rdb, key := t.Context(), b.Client(t), redistest.Key(t)
		count := fence.NewScript(`return {#KEYS, #ARGV, KEYS[#KEYS], ARGV[#ARGV]}`)
		two := []string{key, "{" + key + "}:two"}
		for range 2 { // known to Redis, and not yet
			result, err := count.Run(ctx, rdb, 7, two, "a", 2, "c").Slice()
			require.NoError(t, err)
			require.Equal(t, []any{int64(2), int64(3), two[1], "c"}, result)
			require.NoError(t, rdb.ScriptFlush(ctx).Err())
		}
		require.Len(t, two, 2)
		n, err := fence.NewScript(`return #KEYS * 10 + #ARGV`).Run(ctx, rdb, 7, []string{key}).Int()
		require.NoError(t, err)
		require.Equal(t, 10, n)
		require.Equal(t, redis.Nil, fence.NewScript(`return redis.call('get', KEYS[1])`).Run(ctx, rdb, 7, []string{key}).Err())
		require.Equal(t, redis.Nil, fence.NewScript(``).Run(ctx, rdb, 8, []string{key}).Err())
		require.ErrorIs(t, appendScript.Run(ctx, rdb, 7, []string{key}, "x").Err(), fence.ErrStale, "a script that does nothing counts, too")
	})
}

// A second copy could be refused for what came after the first, which was executed.
func TestFence_WriteWithALostReplyIsNotSentAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		ctx, key := t.Context(), redistest.Key(t)
		relay := redistest.NewRelay(t, b.Addr)
		rdb := redis.NewClient(redistest.Options(relay.Addr))
		t.Cleanup(func() { rdb.Close() })
		require.NoError(t, appendScript.Run(ctx, rdb, 1, []string{key}, "a").Err()) // known to Redis from now on
		lost := relay.DropReply(redistest.Scripts)
		err := appendScript.Run(ctx, rdb, 2, []string{key}, "b").Err()
		lost.Wait(t)
		require.Error(t, err)
		require.NotErrorIs(t, err, fence.ErrStale)
		require.Equal(t, []string{"a", "b"}, b.Client(t).LRange(ctx, key, 0, -1).Val())
		require.NoError(t, appendScript.Run(ctx, rdb, 2, []string{key}, "c").Err())
	})
}

// A holder that reads before it writes is safe from the earlier one from its read on.
func TestFence_ReadKeepsAnEarlierHolderFromWriting(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		ctx, rdb, key := t.Context(), b.Client(t), redistest.Key(t)
		require.NoError(t, fence.Set(ctx, rdb, 1, key, "one", 0))
		read := fence.NewScript(`return redis.call('get', KEYS[1])`)
		text, err := read.Run(ctx, rdb, 2, []string{key}).Text()
		require.NoError(t, err)
		require.Equal(t, "one", text)
		require.ErrorIs(t, fence.Set(ctx, rdb, 1, key, "late", 0), fence.ErrStale)
		_, err = read.Run(ctx, rdb, 1, []string{key}).Text()
		require.ErrorIs(t, err, fence.ErrStale)
	})
}

func TestFence_ScriptErrorNamesItsOwnLine(t *testing.T) {
	b := redistest.Redis(t)
	script := fence.NewScript("local a = 1\nlocal b = 2\nerror('no')\n")
	err := script.Run(t.Context(), b.Client(t), 1, []string{redistest.Key(t)}).Err()
	require.ErrorContains(t, err, "no")
	require.ErrorContains(t, err, ":3:")
	require.NotErrorIs(t, err, fence.ErrStale)
}

func TestFence_TokenIsInTheSlotOfTheDataOnACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewCluster(t).Client(t)
	for i := range 64 { // on all nodes
		for _, key := range []string{fmt.Sprint("key", i), fmt.Sprintf("{tag%d}:key", i), fmt.Sprintf("key:{tag%d}", i)} {
			for name, w := range writes {
				require.NoError(t, w.write(t.Context(), rdb, 2, key+name, "x"), key)
				require.ErrorIs(t, w.write(t.Context(), rdb, 1, key+name, "y"), fence.ErrStale)
				require.Equal(t, "x", w.read(t.Context(), rdb, key+name))
			}
		}
	}
}
