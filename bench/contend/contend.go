// Package contend has the lock libraries that bench and bench/open measure on one Redis. Each is used as its own
// documentation recommends, with its own defaults where that says nothing.
package contend

import (
	"context"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// Setup says how a client is to be made.
type Setup struct {
	Addr string
	// Addrs are the addresses of independent servers, for locks on a majority of them.
	Addrs []string
	// Sentinels, if any, know which server is the master called Master, and Addr is not used.
	Sentinels []string
	Master    string
	// Lease, if not 0, is the time to live of locks, renewed after every third of it. By
	// default it is the library's.
	Lease time.Duration
	// Limit is how many may have a name at a time, for contenders that are semaphores. 0 is one.
	Limit int
}

// Places is how many may have a name at a time.
func (s Setup) Places() int { return max(1, s.Limit) }

// Client is one library in one process.
type Client interface {
	// Mutex returns a handle for the use of one goroutine.
	Mutex(name string) Mutex
	Close() error
}

// Mutex is one goroutine's handle of one lock.
type Mutex interface {
	// Lock waits until it holds the lock, or ctx is done.
	Lock(ctx context.Context) error
	// Unlock releases it. If the lock was lost meanwhile, it returns an error.
	Unlock() error
}

// Informed is a Mutex that reports a loss: the context of a hold ends with it.
type Informed interface {
	Context(parent context.Context) context.Context
}

// GoRedis returns the client for every contender that uses go-redis, with the default options, and a count of the commands.
func GoRedis(s Setup) *redis.Client {
	if len(s.Sentinels) > 0 {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: s.Master, SentinelAddrs: s.Sentinels})
	}
	o := &redis.Options{Addr: s.Addr, DialTimeout: 5 * time.Second} // the default, which NewDialer needs explicitly
	dial := redis.NewDialer(o)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return counted(dial(ctx, network, addr))
	}
	return redis.NewClient(o)
}
