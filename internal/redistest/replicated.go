package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
)

// Replicated is a master with replicas, without automatic failover.
type Replicated struct {
	Master   *Server
	Replicas []*Server
}

// StartReplicated starts a master with n replicas and waits until they are in sync.
func StartReplicated(n int) (*Replicated, error) {
	nodes, err := startServers(1+n, "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
	r := &Replicated{Master: nodes[0], Replicas: nodes[1:]}
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
		defer cancel()
		err = r.assemble(ctx)
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("redistest: replicated: %w", err)
	}
	return r, nil
}

// NewReplicated is StartReplicated for the length of a test, a [Timed] one, which is skipped when no
// redis-server is installed.
func NewReplicated(tb testing.TB, n int) *Replicated {
	tb.Helper()
	Timed(tb)
	RequireServer(tb)
	r, err := StartReplicated(n)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.Close)
	return r
}

// Close stops all servers.
func (r *Replicated) Close() { closeServers(append([]*Server{r.Master}, r.Replicas...)) }

func (r *Replicated) assemble(ctx context.Context) (err error) {
	host, port, _ := net.SplitHostPort(r.Master.Addr)
	for _, replica := range r.Replicas {
		err = errors.Join(err, replica.do(ctx, "replicaof", host, port).Err())
	}
	if err != nil {
		return err
	}
	return eventually("the replicas to be in sync", func() (bool, error) {
		if strings.Count(r.Master.replicationInfo(ctx), "state=online") != len(r.Replicas) {
			return false, ctx.Err()
		}
		for _, replica := range r.Replicas { // each may still be loading its copy
			if !strings.Contains(replica.replicationInfo(ctx), "master_link_status:up") {
				return false, ctx.Err()
			}
		}
		return true, nil
	})
}

// Promote makes a replica a master of its own. The old master is not notified, and continues without it.
func (r *Replicated) Promote(ctx context.Context, replica *Server) error {
	return replica.do(ctx, "replicaof", "no", "one").Err()
}
