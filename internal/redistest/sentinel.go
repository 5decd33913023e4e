package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is the name of the master of a Sentinel.
const MasterName = "primary"

const (
	sentinelCount  = 3
	sentinelQuorum = 2
)

// Sentinel is a master with two replicas, watched by three sentinels. A master that does
// not answer is replaced after two to three seconds.
type Sentinel struct {
	Nodes     []*Server // at the start node 0 is the master
	Sentinels []*Server
}

// StartSentinel starts the servers, and waits until every sentinel lists all of them and the replicas are in sync, which
// takes two to three seconds.
func StartSentinel() (*Sentinel, error) {
	s := &Sentinel{}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	err := s.startNodes(ctx)
	if err == nil {
		err = s.startSentinels()
	}
	if err == nil {
		err = s.AwaitReady(ctx)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("redistest: sentinel: %w", err)
	}
	return s, nil
}

// NewSentinel is StartSentinel for the length of a test, a [Timed] one, which is skipped when no
// redis-server is installed.
func NewSentinel(tb testing.TB) *Sentinel {
	tb.Helper()
	Timed(tb)
	RequireServer(tb)
	s, err := StartSentinel()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// Close stops everything.
func (s *Sentinel) Close() {
	closeServers(s.Sentinels)
	closeServers(s.Nodes)
}

// Addrs are the addresses of the sentinels.
func (s *Sentinel) Addrs() []string { return addrsOf(s.Sentinels) }

// Client returns a failover client with go-redis' default options, closed in tb's cleanup.
func (s *Sentinel) Client(tb testing.TB) *redis.Client {
	tb.Helper()
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: s.Addrs()})
	tb.Cleanup(func() { rdb.Close() })
	return rdb
}

func (s *Sentinel) startNodes(ctx context.Context) (err error) {
	s.Nodes, err = startServers(3, "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
	if err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(s.Nodes[0].Addr)
	for _, replica := range s.Nodes[1:] {
		err = errors.Join(err, replica.do(ctx, "replicaof", host, port).Err())
	}
	return err
}

func (s *Sentinel) startSentinels() error {
	host, port, _ := net.SplitHostPort(s.Nodes[0].Addr)
	conf := fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]s %[4]d\n"+
		"sentinel down-after-milliseconds %[1]s 1000\n"+
		"sentinel failover-timeout %[1]s 5000\n", MasterName, host, port, sentinelQuorum)
	for range sentinelCount {
		sentinel, err := newServer("")
		if err != nil {
			return err
		}
		s.Sentinels = append(s.Sentinels, sentinel)
		file := filepath.Join(sentinel.Dir, "sentinel.conf") // the sentinel rewrites it
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			return err
		}
		if err := sentinel.startOnFreePort([]string{file, "--sentinel"}, nil); err != nil {
			return err
		}
	}
	return nil
}

// AwaitReady waits until all servers agree on their roles, for example after a Restart or Resume.
func (s *Sentinel) AwaitReady(ctx context.Context) error {
	replicas, others := len(s.Nodes)-1, sentinelCount-1
	return eventually("the sentinels to find all servers", func() (bool, error) {
		for _, sentinel := range s.Sentinels {
			info, err := sentinel.sentinelMaster(ctx)
			if err != nil || info["num-slaves"] != fmt.Sprint(replicas) ||
				info["num-other-sentinels"] != fmt.Sprint(others) || info["flags"] != "master" {
				return false, ctx.Err()
			}
		}
		online := 0
		for _, node := range s.Nodes {
			online += strings.Count(node.replicationInfo(ctx), "state=online")
		}
		return online == replicas, ctx.Err()
	})
}

// sentinelMaster returns the sentinel's record of the master.
func (s *Server) sentinelMaster(ctx context.Context) (map[string]string, error) {
	words, err := s.do(ctx, "sentinel", "master", MasterName).StringSlice()
	info := map[string]string{}
	for i := 0; i+1 < len(words); i += 2 {
		info[words[i]] = words[i+1]
	}
	return info, err
}

// Master returns the master, according to the first sentinel that answers.
func (s *Sentinel) Master(ctx context.Context) (*Server, error) {
	for _, sentinel := range s.Sentinels {
		info, err := sentinel.sentinelMaster(ctx)
		if err != nil {
			continue
		}
		for _, node := range s.Nodes {
			if node.Addr == net.JoinHostPort(info["ip"], info["port"]) {
				return node, nil
			}
		}
	}
	return nil, errors.New("redistest: no sentinel reports the master")
}

// Failover makes the sentinels promote a replica, even though the master is alive. It waits for that, and returns the new
// master. Sentinels give a failover up if no replica has answered them a moment ago, as on a busy machine, so it is requested
// until it succeeds.
func (s *Sentinel) Failover(ctx context.Context) (master *Server, err error) {
	old, err := s.Master(ctx)
	if err != nil {
		return nil, err
	}
	first := s.Sentinels[0]
	err = eventually("another master than "+old.Addr, func() (bool, error) {
		info, err := first.sentinelMaster(ctx)
		if err != nil {
			return false, err
		}
		if net.JoinHostPort(info["ip"], info["port"]) == old.Addr {
			if strings.Contains(info["flags"], "failover_in_progress") {
				return false, ctx.Err()
			}
			err := first.do(ctx, "sentinel", "failover", MasterName).Err()
			if redis.HasErrorPrefix(err, "INPROG") || redis.HasErrorPrefix(err, "NOGOODSLAVE") {
				err = ctx.Err()
			}
			return false, err
		}
		master = s.successor(ctx, old)
		return master != nil, ctx.Err()
	})
	return master, err
}

// AwaitFailover waits until there is a successor of old, and returns it.
func (s *Sentinel) AwaitFailover(ctx context.Context, old *Server) (master *Server, err error) {
	err = eventually("another master than "+old.Addr, func() (bool, error) {
		master = s.successor(ctx, old)
		return master != nil, ctx.Err()
	})
	return master, err
}

// successor returns the master of every sentinel that answers, if it is not old, and is in the role of a master; or nil.
func (s *Sentinel) successor(ctx context.Context, old *Server) *Server {
	master, err := s.Master(ctx)
	if err != nil || master == old || !strings.Contains(master.replicationInfo(ctx), "role:master") {
		return nil
	}
	for _, sentinel := range s.Sentinels {
		info, err := sentinel.sentinelMaster(ctx)
		if err == nil && net.JoinHostPort(info["ip"], info["port"]) != master.Addr {
			return nil
		}
	}
	return master
}
