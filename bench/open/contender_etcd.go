package main

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/relock-go/relock/bench/contend"
)

// etcdClient keeps sessions, because two goroutines with one session are one owner.
type etcdClient struct {
	etcd *clientv3.Client
	ttl  int // seconds; 0: the default, 60

	mu   sync.Mutex
	idle []*concurrency.Session
}

func openEtcd(s contend.Setup) (contend.Client, error) {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	return &etcdClient{etcd: etcd, ttl: int(s.Lease.Seconds())}, err
}

func (c *etcdClient) Mutex(name string) contend.Mutex { return &etcdMutex{client: c, name: name} }

func (c *etcdClient) Close() error { return c.etcd.Close() }

// session returns one that nobody uses.
func (c *etcdClient) session() (*concurrency.Session, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		defer c.mu.Unlock()
		s := c.idle[n-1]
		c.idle = c.idle[:n-1]
		return s, nil
	}
	c.mu.Unlock()
	return concurrency.NewSession(c.etcd, concurrency.WithTTL(c.ttl)) // 0 is the default
}

func (c *etcdClient) keep(s *concurrency.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, s)
}

type etcdMutex struct {
	client  *etcdClient
	name    string
	session *concurrency.Session
	m       *concurrency.Mutex
}

func (m *etcdMutex) Lock(ctx context.Context) (err error) {
	if m.session, err = m.client.session(); err != nil {
		return err
	}
	m.m = concurrency.NewMutex(m.session, "/"+m.name)
	if err = m.m.Lock(ctx); err != nil {
		m.client.keep(m.session) // Lock has deleted its key
	}
	return err
}

func (m *etcdMutex) Unlock() error {
	err := m.m.Unlock(context.Background())
	select {
	case <-m.session.Done():
		return errors.Join(err, errors.New("etcd: the session has expired"))
	default:
	}
	m.client.keep(m.session)
	return err
}

// Context ends with the session.
func (m *etcdMutex) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancel(parent)
	go func() {
		<-m.session.Done()
		cancel()
	}()
	return ctx
}
