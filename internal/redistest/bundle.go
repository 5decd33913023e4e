package redistest

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Reply is sent by a relay in place of the server's.
type Reply struct {
	Text  string // as Redis sends it
	Doubt bool   // the outcome is unknown
}

// BundleReplies are replies to a bundle of four renewals that is not executed completely, by name.
var BundleReplies = map[string]Reply{
	"a key that the user may not use": {Text: "-NOPERM No permissions to access a key\r\n"},
	"a slot that moves":               {Text: "-TRYAGAIN Multiple keys request during rehashing of slot\r\n"},
	"keys of several slots":           {Text: "-CROSSSLOT Keys in request don't hash to the same slot\r\n"},
	"an error half-way":               {Text: "-ERR something in the script\r\n", Doubt: true},
	"another script's reply":          {Text: ":77\r\n", Doubt: true},
	"a hold that there is not":        {Text: "*1\r\n:4\r\n", Doubt: true},
}

// Takings are ways to take a lock away from its holder, by name. If another value replaces it, that expires after ttl.
var Takings = map[string]func(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration) error{
	"gone": func(ctx context.Context, rdb *redis.Client, key string, _ time.Duration) error {
		return rdb.Del(ctx, key).Err()
	},
	"another owner's": func(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration) error {
		return errors.Join(rdb.Del(ctx, key).Err(), rdb.HSet(ctx, key, "another:1", 1).Err(), rdb.PExpire(ctx, key, ttl).Err())
	},
	"of another type": func(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration) error {
		return rdb.Set(ctx, key, "x", ttl).Err()
	},
}
