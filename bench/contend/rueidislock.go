package contend

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

type rueidislockClient struct{ locks rueidislock.Locker }

// Rueidislock opens a client for one key on one Redis.
func Rueidislock(s Setup) (Client, error) { return openRueidislock(1, s.Addr, s) }

// RueidislockQuorum has it vote on several keys: on one server, unless that is a Cluster.
func RueidislockQuorum(s Setup) (Client, error) { return openRueidislock(2, s.Addrs[0], s) }

func openRueidislock(majority int32, addr string, s Setup) (Client, error) {
	connect := rueidis.ClientOption{InitAddress: []string{addr},
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return counted(d.DialContext(ctx, "tcp", addr))
		}}
	if len(s.Sentinels) > 0 {
		connect.InitAddress, connect.Sentinel = s.Sentinels, rueidis.SentinelOption{MasterSet: s.Master}
	}
	locks, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   connect,
		KeyMajority:    majority,
		NoLoopTracking: true,
		// How long an attempt may take before the next key is tried; of one there is no next.
		// With the default of 20 ms, goroutines with a name each were left waiting for ever when
		// Redis was too busy to answer in that time.
		TryNextAfter:   time.Second,
		KeyValidity:    s.Lease,     // 0 is the default
		ExtendInterval: s.Lease / 3, // 0 is the default
	})
	if err != nil {
		return nil, err
	}
	return rueidislockClient{locks}, nil
}

func (c rueidislockClient) Mutex(name string) Mutex {
	return &rueidislockMutex{client: c.locks, name: name}
}

func (c rueidislockClient) Close() error {
	c.locks.Close()
	return nil
}

type rueidislockMutex struct {
	client rueidislock.Locker
	name   string
	held   context.Context
	cancel context.CancelFunc
}

// Lock waits until ctx ends. The hold does not end with ctx, as it would if ctx were passed on.
func (m *rueidislockMutex) Lock(ctx context.Context) (err error) {
	waiting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	m.held, m.cancel, err = m.client.WithContext(waiting, m.name)
	switch {
	case err != nil:
		cancel()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
	case !stop(): // ctx has ended just now
		m.cancel()
		return ctx.Err()
	}
	return err
}

// Context ends when the lock is lost.
func (m *rueidislockMutex) Context(context.Context) context.Context { return m.held }

func (m *rueidislockMutex) Unlock() error {
	err := m.held.Err()
	m.cancel()
	if err != nil {
		return fmt.Errorf("rueidislock: the lock was lost: %w", err)
	}
	return nil
}
