package fence_test

import (
	"context"
	"math"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/fence"
	"github.com/relock-go/relock/internal/redistest"
)

func TestFence_BadInputIsRefusedBeforeAnythingIsSent(t *testing.T) {
	ctx := t.Context()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // no one answers there
	defer rdb.Close()
	var nilContext context.Context
	var nilScript *fence.Script
	for want, err := range map[string]error{
		`fence: set "k": relock: invalid option: the context is nil`:                           fence.Set(nilContext, rdb, 1, "k", "v", 0),
		`fence: hset "k": relock: invalid option: the Redis client is nil`:                     fence.HSet(ctx, nil, 1, "k", "f", "v"),
		`fence: set "k": relock: invalid option: the Redis client is nil`:                      fence.Set(ctx, (*redis.Client)(nil), 1, "k", "v", 0),
		`fence: set "k": relock: invalid option: the token is 0, because the lock is not held`: fence.Set(ctx, rdb, 0, "k", "v", 0),
		`fence: set "k": relock: invalid option: token -1`:                                     fence.Set(ctx, rdb, -1, "k", "v", 0),
		`fence: set "k": relock: invalid option: token 9223372036854775807`:                    fence.Set(ctx, rdb, math.MaxInt64, "k", "v", 0),
		`fence: set "k": relock: invalid option: the expiration -2ns is negative`:              fence.Set(ctx, rdb, 1, "k", "v", -2),
		`fence: hset "k": relock: invalid option: 0 values: HSet needs pairs`:                  fence.HSet(ctx, rdb, 1, "k"),
		`fence: hset "k": relock: invalid option: 3 values: HSet needs pairs`:                  fence.HSet(ctx, rdb, 1, "k", "f", "v", "g"),
		`fence: run a script on "k": relock: invalid option: the script begins with`:           fence.NewScript("#!lua flags=no-writes\nreturn 1").Run(ctx, rdb, 1, []string{"k"}).Err(),
		`fence: run a script on "k": relock: invalid option: the Script is empty`:              nilScript.Run(ctx, rdb, 1, []string{"k"}).Err(),
		`fence: run a script on "l": relock: invalid option: the Script is empty`:              new(fence.Script).Run(ctx, rdb, 1, []string{"l"}).Err(),
		`fence: run a script on "k": relock: invalid option: the Redis client is nil`:          appendScript.Run(ctx, nil, 1, []string{"k"}, "x").Err(),
	} {
		require.ErrorIs(t, err, relock.ErrInvalidOption, want)
		require.ErrorContains(t, err, want)
	}
	for want, err := range map[string]error{
		`fence: set "": relock: invalid name: the name is empty`:           fence.Set(ctx, rdb, 1, "", "v", 0),
		`fence: set "a{b": relock: invalid name: "a{b" has braces`:         fence.Set(ctx, rdb, 1, "a{b", "v", 0),
		`fence: hset "{t}": relock: invalid name: "{t}" would share`:       fence.HSet(ctx, rdb, 1, "{t}", "f", "v"),
		`fence: run a script on "": relock: invalid name: no keys`:         appendScript.Run(ctx, rdb, 1, nil, "x").Err(),
		`fence: run a script on "{}x": relock: invalid name: "{}x" has br`: appendScript.Run(ctx, rdb, 1, []string{"{}x"}, "x").Err(),
	} {
		require.ErrorIs(t, err, relock.ErrInvalidName, want)
		require.ErrorContains(t, err, want)
	}
}

func TestFence_RedisThatIsDownIsNoStaleToken(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1, MaxRetries: -1})
	defer rdb.Close()
	for name, w := range writes {
		err := w.write(t.Context(), rdb, 1, "key", "x")
		var network *net.OpError // Windows has another number for a refusal
		require.ErrorAs(t, err, &network, name)
		require.Equal(t, "dial", network.Op, name)
		require.NotErrorIs(t, err, fence.ErrStale, name)
		require.ErrorContains(t, err, `"key"`, name)
	}
}

func TestFence_EndedContextIsTheError(t *testing.T) {
	rdb := redistest.Mini(t).Client(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, w := range writes {
		require.ErrorIs(t, w.write(ctx, rdb, 1, "key", "x"), context.Canceled, name)
		require.Empty(t, w.read(t.Context(), rdb, "key"), name)
	}
}

func TestFence_InvalidTokenOrDataIsAnErrorThatChangesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		ctx, rdb, key := t.Context(), b.Client(t), redistest.Key(t)
		require.NoError(t, rdb.Set(ctx, fenceOf(key), "soon", 0).Err())
		err := fence.Set(ctx, rdb, 1, key, "x", 0)
		require.ErrorContains(t, err, "holds something else than a token")
		require.NotErrorIs(t, err, fence.ErrStale)
		require.NoError(t, rdb.Del(ctx, fenceOf(key)).Err())
		require.NoError(t, rdb.LPush(ctx, fenceOf(key), "x").Err())
		require.ErrorContains(t, fence.Set(ctx, rdb, 1, key, "x", 0), "WRONGTYPE")
		require.Zero(t, rdb.Exists(ctx, key).Val())

		require.NoError(t, rdb.Del(ctx, fenceOf(key)).Err())
		require.NoError(t, rdb.LPush(ctx, key, "x").Err())
		require.ErrorContains(t, fence.HSet(ctx, rdb, 1, key, "f", "v"), "WRONGTYPE")
		require.Equal(t, "list", rdb.Type(ctx, key).Val())
		require.Error(t, fence.Set(ctx, rdb, 1, key, []string{"cannot", "be", "sent"}, time.Second))
	})
}
