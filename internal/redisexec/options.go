package redisexec

import (
	"cmp"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ownOptions returns the options of a client of the library for the server of o, with the given number of connections and read
// time-out. The options that determine the server and its identity are the application's, and so are the time-outs of dials and
// writes. options_test.go covers each option. Hooks are no options, and go-redis does not pass them on, so a DialHook does not
// run. A tunnel belongs into Options.Dialer.
//
// o was normalized by go-redis, which reads a 0 as "the default". So "none" is written as -1 again.
func ownOptions(o *redis.Options, conns int, readTimeout time.Duration) *redis.Options {
	own := *o
	own.PoolSize, own.MaxConcurrentDials = conns, 0
	own.MinIdleConns, own.MaxIdleConns, own.MaxActiveConns = 0, 0, 0
	own.DialerRetries, own.MaxRetries = 1, -1 // the executor tries again by itself
	own.ReadTimeout, own.WriteTimeout = denormalized(readTimeout), denormalized(o.WriteTimeout)
	own.MinRetryBackoff, own.MaxRetryBackoff = cmp.Or(o.MinRetryBackoff, -1), cmp.Or(o.MaxRetryBackoff, -1)
	own.Limiter = marked(o.Limiter)
	own.Protocol = 2                    // see readReply; so there is no client-side cache either
	own.PushNotificationProcessor = nil // one cannot serve two clients
	own.MaintNotificationsConfig = &maintnotifications.Config{
		Mode: maintnotifications.ModeDisabled, EndpointType: maintnotifications.EndpointTypeNone, // else 9.22 looks the host up
	}
	return &own
}

// denormalized returns a time-out as the application writes it.
func denormalized(d time.Duration) time.Duration {
	if d <= 0 {
		return d - 1 // 0: none; -1: deadlines are not even set, as the connection has none
	}
	return d
}

// readTimeout returns how long a connection to node may be silent before it is given up: as long as the
// application says, but not before the last copy of a command is. A negative one, for connections without
// deadlines, and 0, for none, stay.
func (x *Executor) readTimeout(node *redis.Client) time.Duration {
	if d := node.Options().ReadTimeout; d <= 0 {
		return d
	}
	return max(x.longest(), node.Options().ReadTimeout)
}

// cloneOf returns a client that shares the pools of node, must not be closed, and has none of its process hooks.
func (x *Executor) cloneOf(node *redis.Client) *redis.Client {
	clone := node.WithTimeout(x.readTimeout(node))
	o := clone.Options() // a copy: nothing else has seen them
	o.WriteTimeout = node.Options().WriteTimeout
	o.Limiter = marked(o.Limiter)
	return clone
}

// limited marks the refusals of a Limiter, which come before a command is sent.
type limited struct{ redis.Limiter }

func marked(l redis.Limiter) redis.Limiter {
	if l == nil {
		return nil
	}
	return limited{l}
}

func (l limited) Allow() error {
	if err := l.Limiter.Allow(); err != nil {
		return fmt.Errorf("%w: refused by the Limiter of the Redis client: %w", errNotSent, err)
	}
	return nil
}
