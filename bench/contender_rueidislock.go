package main

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

func openRueidislock(s setup) (client, error) { return openRueidislockWith(1, s.Addr, s) }

// openRueidislockQuorum has it vote on several keys: on one server, unless that is a Cluster.
func openRueidislockQuorum(s setup) (client, error) { return openRueidislockWith(2, s.Addrs[0], s) }

func openRueidislockWith(majority int32, addr string, s setup) (client, error) {
	locks, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr},
			DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return counted(d.DialContext(ctx, "tcp", addr))
			}},
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

func (c rueidislockClient) mutex(name string) mutex {
	return &rueidislockMutex{client: c.locks, name: name}
}

func (c rueidislockClient) close() error {
	c.locks.Close()
	return nil
}

type rueidislockMutex struct {
	client rueidislock.Locker
	name   string
	held   context.Context
	cancel context.CancelFunc
}

func (m *rueidislockMutex) Lock(ctx context.Context) (err error) {
	m.held, m.cancel, err = m.client.WithContext(ctx, m.name)
	return err
}

func (m *rueidislockMutex) Unlock() error {
	err := m.held.Err()
	m.cancel()
	if err != nil {
		return fmt.Errorf("rueidislock: the lock was lost: %w", err)
	}
	return nil
}
