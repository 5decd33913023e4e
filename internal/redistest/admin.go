package redistest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// with calls fn with a client for a few administrative commands. The client gives up quickly, so that a node that is down
// or paused does not block a loop over all nodes.
func (s *Server) with(fn func(*redis.Client) error) error {
	rdb := redis.NewClient(&redis.Options{
		Addr:            s.Addr,
		Protocol:        2,
		DisableIdentity: true,
		MaxRetries:      -1,
		DialerRetries:   1,
		DialTimeout:     500 * time.Millisecond,
		ReadTimeout:     500 * time.Millisecond,
	})
	defer rdb.Close()
	return fn(rdb)
}

// do runs one administrative command.
func (s *Server) do(ctx context.Context, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	s.with(func(rdb *redis.Client) error { return rdb.Process(ctx, cmd) })
	return cmd
}

// clusterInfo and replicationInfo are "" when the server does not answer.
func (s *Server) clusterInfo(ctx context.Context) string {
	text, _ := s.do(ctx, "cluster", "info").Text()
	return text
}

func (s *Server) replicationInfo(ctx context.Context) string {
	text, _ := s.do(ctx, "info", "replication").Text()
	return text
}

// startServers starts n servers at once. The caller has to close the returned servers, even after an error.
func startServers(n int, args ...string) ([]*Server, error) {
	servers, errs := make([]*Server, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { servers[i], errs[i] = StartServer("", args...) })
	}
	wg.Wait()
	return servers, errors.Join(errs...)
}

func closeServers(servers []*Server) {
	for _, s := range servers {
		if s != nil {
			s.Close()
		}
	}
}

func addrsOf(servers []*Server) []string {
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr
	}
	return addrs
}
