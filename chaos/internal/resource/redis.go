package resource

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/redistest"
)

// redisStore keeps a hash for each lock: the highest token, and the value that came with it.
type redisStore struct{ rdb *redis.Client }

// writeUnlessOlder compares numbers, which are exact in Lua up to 2^53; tokens are below
// that.
var writeUnlessOlder = redis.NewScript(`
local last = tonumber(redis.call('hget', KEYS[1], 'token') or '0')
if tonumber(ARGV[1]) < last then return 0 end
redis.call('hset', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])
return 1`)

func openRedis(url string) (Resource, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return &redisStore{rdb: redis.NewClient(options)}, nil
}

func (s *redisStore) Write(ctx context.Context, lock string, token int64, value string) (bool, error) {
	return writeUnlessOlder.Run(ctx, s.rdb, []string{"protected:" + lock}, token, value).Bool()
}

func (s *redisStore) Close() error { return s.rdb.Close() }

func startRedis() (*Server, error) {
	s, err := redistest.StartServer("")
	if err != nil {
		return nil, err
	}
	return &Server{Name: "Redis", URL: "redis://" + s.Addr, stop: s.Close}, nil
}
