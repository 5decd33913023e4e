package deployment

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/redistest"
)

// Do sends one command to a server, without a relay.
func (d *Deployment) Do(ctx context.Context, s *redistest.Server, args ...any) error {
	_, err := d.Ask(ctx, s, args...)
	return err
}

// Ask is Do with the answer.
func (d *Deployment) Ask(ctx context.Context, s *redistest.Server, args ...any) (answer any, err error) {
	err = d.Session(ctx, s, func(ask func(...any) (any, error)) error {
		answer, err = ask(args...)
		return err
	})
	return answer, err
}

// Session runs several commands on one connection, for a server that accepts no other.
func (d *Deployment) Session(ctx context.Context, s *redistest.Server, fn func(ask func(...any) (any, error)) error) error {
	rdb := redis.NewClient(&redis.Options{
		Addr: s.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, ReadTimeout: 10 * time.Second,
	})
	defer rdb.Close()
	conn := rdb.Conn()
	defer conn.Close()
	return fn(func(args ...any) (any, error) {
		answer, err := conn.Do(ctx, args...).Result()
		if err != nil && err != redis.Nil {
			return nil, fmt.Errorf("%s: %v: %w", s.Addr, args[:min(2, len(args))], err)
		}
		return answer, nil
	})
}

// LockKeys returns the keys of locks that exist, on any server that is a master. Counters of
// fencing tokens are left out: they live for a day.
func (d *Deployment) LockKeys(ctx context.Context) ([]string, error) {
	found, err := d.keysOnMasters(ctx, "keys", "*")
	return slices.DeleteFunc(found, func(name string) bool { return strings.HasPrefix(name, "redisson_lock_token:") }), err
}

// withoutExpiry is a script that returns the keys of a server that have no expiry.
const withoutExpiry = `
local found = {}
for _, key in ipairs(redis.call('keys', '*')) do
  if redis.call('pttl', key) == -1 then found[#found + 1] = key end
end
return found`

// EternalKeys returns the keys that have no expiry, on any server that is a master: a lock has none.
func (d *Deployment) EternalKeys(ctx context.Context) ([]string, error) {
	return d.keysOnMasters(ctx, "eval", withoutExpiry, "0")
}

// keysOnMasters returns the keys that a command lists, on any server that is a master.
func (d *Deployment) keysOnMasters(ctx context.Context, command ...any) ([]string, error) {
	var found []string
	for _, s := range d.Servers {
		role, err := d.Ask(ctx, s, "info", "replication")
		if err != nil {
			return nil, err
		}
		if !strings.Contains(fmt.Sprint(role), "role:master") {
			continue
		}
		keys, err := d.Ask(ctx, s, command...)
		if err != nil {
			return nil, err
		}
		for _, key := range keys.([]any) {
			found = append(found, fmt.Sprint(key))
		}
	}
	return found, nil
}
