package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/relock-go/relock/bench/contend"
)

// etcdClient has sessions, each with a lease. Goroutines that want the same name need different sessions, because a session
// is one owner; other names can share one.
type etcdClient struct {
	etcd *clientv3.Client
	ttl  int // seconds; 0: the default, 60

	mu       sync.Mutex
	sessions []*concurrency.Session
	users    map[string][]bool // by name: which sessions are in use for it
}

func openEtcd(s contend.Setup) (contend.Client, error) {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	return &etcdClient{etcd: etcd, ttl: int(s.Lease.Seconds()), users: make(map[string][]bool)}, err
}

func (c *etcdClient) Mutex(name string) contend.Mutex { return &etcdMutex{client: c, name: name} }

func (c *etcdClient) Close() error { return c.etcd.Close() }

// session returns one that nobody uses for the name, and its number.
func (c *etcdClient) session(name string) (*concurrency.Session, int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	used := c.users[name]
	n := slices.Index(used, false)
	if n < 0 {
		n, used = len(used), append(used, false)
	}
	if n == len(c.sessions) {
		c.sessions = append(c.sessions, nil)
	}
	if s := c.sessions[n]; s == nil || over(s) {
		s, err := concurrency.NewSession(c.etcd, concurrency.WithTTL(c.ttl)) // 0 is the default
		if err != nil {
			return nil, 0, err
		}
		c.sessions[n] = s
	}
	used[n] = true
	c.users[name] = used
	return c.sessions[n], n, nil
}

// free ends the use of session n for the name.
func (c *etcdClient) free(name string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	used := c.users[name]
	used[n] = false
	if !slices.Contains(used, true) {
		delete(c.users, name)
	}
}

type etcdMutex struct {
	client  *etcdClient
	name    string
	session *concurrency.Session
	number  int // of the session
	m       *concurrency.Mutex
}

func (m *etcdMutex) Lock(ctx context.Context) (err error) {
	if m.session, m.number, err = m.client.session(m.name); err != nil {
		return err
	}
	m.m = concurrency.NewMutex(m.session, "/"+m.name)
	if err = m.m.Lock(ctx); err != nil {
		m.client.free(m.name, m.number) // Lock has deleted its key
	}
	return err
}

func (m *etcdMutex) Unlock() error {
	err := m.m.Unlock(context.Background())
	m.client.free(m.name, m.number)
	if over(m.session) {
		err = errors.Join(err, errors.New("etcd: the session has expired"))
	}
	return err
}

// over reports whether a session has ended.
func over(s *concurrency.Session) bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
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
