package fence

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/lockerr"
)

// ErrStale is returned for a write whose token is lower than an earlier one: a later holder of the lock
// has written. The write changed nothing. Match with [errors.Is].
var ErrStale = errors.New("fence: stale token")

// Life is how long the highest token of a key is stored after the last write that was not rejected. It
// is as long as the counter of relock.WithFencing lives.
const Life = 24 * time.Hour

// maxToken is the highest number up to which Lua can count.
const maxToken = 1 << 53

// Set sets key to value, as SET does, if no write with a later token has come before. The key expires
// after expiration, rounded up to whole milliseconds. If expiration is 0, the key does not expire. If
// it is [redis.KeepTTL], the key keeps its expiry.
//
// Set blocks for the request, with the time-outs of rdb. The request is sent once, whatever
// Options.MaxRetries is, because a second copy could be rejected after a later write. After a network
// error the write may have been done. To call Set again with the same token is safe.
//
// Errors: [ErrStale]; relock.ErrInvalidOption for a nil argument, a negative expiration, or an invalid
// token (a hold without relock.WithFencing has token 0); relock.ErrInvalidName (see the package); and
// errors from Redis. Any number of goroutines may call Set. One round trip, and one more if Redis does
// not have the script in its cache.
func Set(ctx context.Context, rdb redis.UniversalClient, token int64, key string, value any, expiration time.Duration) error {
	args := []any{value}
	switch {
	case expiration == redis.KeepTTL:
		args = append(args, "keepttl")
	case expiration < 0:
		return failed("set", key, fmt.Errorf("%w: the expiration %v is negative: use 0 for none, or redis.KeepTTL", lockerr.ErrInvalidOption, expiration))
	case expiration > 0:
		args = append(args, "px", int64((expiration-1)/time.Millisecond)+1)
	}
	return set.run(ctx, "set", rdb, token, []string{key}, args).Err()
}

// HSet sets fields of the hash at key, as HSET does. The values are fields and their values, in turn.
// The expiry of the hash does not change.
//
// Otherwise HSet works like [Set]. If values is empty or has an odd length, the error is
// relock.ErrInvalidOption.
func HSet(ctx context.Context, rdb redis.UniversalClient, token int64, key string, values ...any) error {
	if len(values) == 0 || len(values)%2 != 0 {
		return failed("hset", key, fmt.Errorf("%w: %d values: HSet needs pairs of a field and a value", lockerr.ErrInvalidOption, len(values)))
	}
	return hset.run(ctx, "hset", rdb, token, []string{key}, values).Err()
}

// Script is a Lua script that runs only if the token of [Script.Run] is not stale. [NewScript] returns
// one. It is safe for concurrent use.
type Script struct {
	source, digest string
	err            error // of a source that cannot be one
}

// NewScript returns a script with this source. Its KEYS and ARGV are the arguments of [Script.Run].
// Flags are not supported: if the source begins with a line "#!lua", Run returns
// relock.ErrInvalidOption. No round trip.
func NewScript(source string) *Script {
	s := &Script{source: check + "return {(function() " + source + "\nend)()}"}
	s.digest = redis.NewScript(s.source).Hash()
	if strings.HasPrefix(source, "#!") {
		s.err = fmt.Errorf("%w: the script begins with #!lua, but flags are not supported: remove that line", lockerr.ErrInvalidOption)
	}
	return s
}

// Run runs the script if token is not stale. The fence belongs to the first of keys: the token is
// compared with the highest token that came with that key. So give all scripts that write the same data
// the same first key. On a Cluster all keys have to be in one slot.
//
// Run returns the result of go-redis' Script.Run. If the script returns nothing, the error is
// redis.Nil. If the token is stale, the script does not run, and the error is [ErrStale]. If the script
// itself fails, its token counts, and what it did before remains.
//
// Otherwise Run works like [Set]. It sends the script once. Whether you may run the script again after
// an error depends on the script.
func (s *Script) Run(ctx context.Context, rdb redis.UniversalClient, token int64, keys []string, args ...any) *redis.Cmd {
	return s.run(ctx, "run a script on", rdb, token, keys, args)
}

// check refuses a token that is lower than the highest seen; else that is the highest now. It takes
// its own words, which are the last ones, off KEYS and ARGV. It is one line, so that errors of the
// script after it name the script's own lines.
const check = `do ` +
	`local fence, life, token = table.remove(KEYS), table.remove(ARGV), table.remove(ARGV) ` +
	`local seen = redis.call('get', fence) ` +
	`if seen and not string.find(seen, '^%d+$') then return redis.error_reply('ERR ' .. fence .. ' holds something else than a token') end ` +
	`if seen and tonumber(seen) > tonumber(token) then return redis.error_reply('` + staleReply + `' .. seen) end ` +
	`redis.call('set', fence, token, 'px', life) ` +
	`end `

const staleReply = "STALETOKEN "

var (
	set = NewScript(`redis.call('set', KEYS[1], unpack(ARGV)) return 1`)
	// Lua's stack has room for some thousand arguments.
	hset = NewScript(`for i = 1, #ARGV, 1000 do redis.call('hset', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV))) end return 1`)
)

// run runs the script. An error names op.
func (s *Script) run(ctx context.Context, op string, rdb redis.UniversalClient, token int64, names []string, args []any) *redis.Cmd {
	fence, err := s.usable(ctx, rdb, token, names)
	if err != nil {
		cmd := redis.NewCmd(context.Background())
		cmd.SetErr(failed(op, strings.Join(names, ","), err))
		return cmd
	}
	words := []any{len(names) + 1}
	for _, name := range names {
		words = append(words, name)
	}
	words = append(append(append(words, fence), args...), token, Life.Milliseconds())
	cmd := send(ctx, rdb, "evalsha", s.digest, words)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = send(ctx, rdb, "eval", s.source, words)
	}
	switch err := cmd.Err(); {
	case err == nil:
		unwrap(cmd)
	case errors.Is(err, redis.Nil): // no script returns nil; %v, because callers would take redis.Nil for a reply
		cmd.SetErr(failed(op, names[0], fmt.Errorf("unexpected nil reply: the Redis client may have found no server: %v", err)))
	case redis.HasErrorPrefix(err, staleReply):
		_, seen, _ := strings.Cut(err.Error(), staleReply)
		cmd.SetErr(fmt.Errorf("%w: %s %q with token %d, but a later holder has already written with token %s", ErrStale, op, names[0], token, seen))
	default:
		cmd.SetErr(failed(op, names[0], err))
	}
	return cmd
}

// unwrap gives cmd the reply of the script, which comes in a list. The client itself may fail with redis.Nil, for example
// if Sentinel has no such master. Without the list, that would look like a script that was run and returned
// nothing.
func unwrap(cmd *redis.Cmd) {
	list, _ := cmd.Val().([]any)
	var reply any
	if len(list) > 0 {
		reply = list[0]
	}
	err, failed := reply.(error)
	switch {
	case failed:
		cmd.SetVal(nil)
		cmd.SetErr(err)
	case reply == nil:
		cmd.SetVal(nil)
		cmd.SetErr(redis.Nil)
	default:
		cmd.SetVal(reply)
	}
}

// once is a command that go-redis sends once.
type once struct{ *redis.Cmd }

// NoRetry switches go-redis' resending off.
func (once) NoRetry() bool { return true }

func send(ctx context.Context, rdb redis.UniversalClient, verb, script string, words []any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, append([]any{verb, script}, words...)...)
	cmd.SetFirstKeyPos(3)
	if err := rdb.Process(ctx, once{cmd}); err != nil {
		cmd.SetErr(err)
	}
	return cmd
}

// usable returns the key of the fence, or says why the script cannot run.
func (s *Script) usable(ctx context.Context, rdb redis.UniversalClient, token int64, names []string) (fence string, err error) {
	switch v := reflect.ValueOf(rdb); {
	case s == nil || s.source == "":
		return "", fmt.Errorf("%w: the Script is empty: make it with NewScript", lockerr.ErrInvalidOption)
	case s.err != nil:
		return "", s.err
	case ctx == nil:
		return "", fmt.Errorf("%w: the context is nil", lockerr.ErrInvalidOption)
	case rdb == nil || v.Kind() == reflect.Pointer && v.IsNil():
		return "", fmt.Errorf("%w: the Redis client is nil", lockerr.ErrInvalidOption)
	case token == 0:
		return "", fmt.Errorf("%w: the token is 0, because the lock is not held or was not made WithFencing", lockerr.ErrInvalidOption)
	case token < 0 || token > maxToken:
		return "", fmt.Errorf("%w: token %d: must be from 1 to 2^53", lockerr.ErrInvalidOption, token)
	case len(names) == 0:
		return "", fmt.Errorf("%w: no keys: pass the fenced key first", lockerr.ErrInvalidName)
	}
	return keys.FenceOf(names[0])
}

func failed(op, key string, err error) error { return fmt.Errorf("fence: %s %q: %w", op, key, err) }
