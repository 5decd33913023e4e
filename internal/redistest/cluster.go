package redistest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterMasters = 3
	clusterSlots   = 16384
)

// Cluster is a Redis Cluster of 3 masters with a replica each. A master that does not
// answer is replaced by its replica after about two seconds.
type Cluster struct {
	Nodes []*Server // at the start nodes 0 to 2 are masters, and node i+3 replicates node i
}

// clusterArgs make a node fast at failure detection, election, and replication.
var clusterArgs = []string{
	"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
	"--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0",
	"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
}

// StartCluster starts a Cluster and waits until every master has its replica in sync and
// every node calls the Cluster ok, which takes two to three seconds.
func StartCluster() (*Cluster, error) {
	nodes, err := startServers(2*clusterMasters, clusterArgs...)
	c := &Cluster{Nodes: nodes}
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
		defer cancel()
		err = c.assemble(ctx)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("redistest: cluster: %w", err)
	}
	return c, nil
}

// NewCluster is StartCluster for the length of a test, a [Timed] one, which is skipped when no
// redis-server is installed.
func NewCluster(tb testing.TB) *Cluster {
	tb.Helper()
	Timed(tb)
	RequireServer(tb)
	c, err := StartCluster()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Close stops all nodes.
func (c *Cluster) Close() { closeServers(c.Nodes) }

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string { return addrsOf(c.Nodes) }

// Client returns a client with go-redis' default options, closed in tb's cleanup.
func (c *Cluster) Client(tb testing.TB) *redis.ClusterClient {
	tb.Helper()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// assemble makes one Cluster of the nodes.
func (c *Cluster) assemble(ctx context.Context) error {
	seed := c.Nodes[0]
	host, port, _ := net.SplitHostPort(seed.Addr)
	for i, node := range c.Nodes {
		commands := [][]any{{"cluster", "set-config-epoch", i + 1}, {"cluster", "meet", host, port}}
		if i < clusterMasters {
			slots := []any{"cluster", "addslots"} // one by one: there are ranges since version 7
			for slot := i * clusterSlots / clusterMasters; slot < (i+1)*clusterSlots/clusterMasters; slot++ {
				slots = append(slots, slot)
			}
			commands = append(commands, slots)
		}
		for _, command := range commands {
			if err := node.do(ctx, command...).Err(); err != nil {
				return err
			}
		}
	}
	known := "cluster_known_nodes:" + strconv.Itoa(len(c.Nodes))
	if err := c.awaitAll(ctx, known, (*Server).clusterInfo); err != nil {
		return err
	}
	for i, replica := range c.Nodes[clusterMasters:] {
		if err := replica.replicate(ctx, c.Nodes[i]); err != nil {
			return err
		}
	}
	return c.AwaitReady(ctx)
}

// replicate makes the node a replica of the master, as soon as the node has the master in its list.
func (s *Server) replicate(ctx context.Context, master *Server) error {
	id, err := master.do(ctx, "cluster", "myid").Text()
	if err != nil {
		return err
	}
	return eventually(s.Addr+" to replicate "+master.Addr, func() (bool, error) {
		return s.do(ctx, "cluster", "replicate", id).Err() == nil, ctx.Err()
	})
}

// AwaitReady waits until the nodes, which must all run, report the Cluster as ok, and each
// replica is in sync with its master: after a Restart or Resume, say.
func (c *Cluster) AwaitReady(ctx context.Context) error {
	if err := c.awaitAll(ctx, "cluster_state:ok", (*Server).clusterInfo); err != nil {
		return err
	}
	return eventually("every master to have its replica", func() (bool, error) {
		masters, replicas := 0, 0
		for _, node := range c.Nodes {
			switch info := node.replicationInfo(ctx); {
			case strings.Contains(info, "role:master") && strings.Contains(info, "connected_slaves:1") &&
				strings.Contains(info, "state=online"):
				masters++
			case strings.Contains(info, "master_link_status:up"):
				replicas++
			}
		}
		return masters == clusterMasters && replicas == clusterMasters, ctx.Err()
	})
}

func (c *Cluster) awaitAll(ctx context.Context, want string, info func(*Server, context.Context) string) error {
	return eventually("all nodes to say "+want, func() (bool, error) {
		for _, node := range c.Nodes {
			if !strings.Contains(info(node, ctx), want) {
				return false, ctx.Err()
			}
		}
		return true, nil
	})
}

// Master returns the node that serves the key now, according to the majority of the nodes that answer.
func (c *Cluster) Master(ctx context.Context, key string) (*Server, error) {
	votes := map[string]int{}
	for _, node := range c.Nodes {
		if addr, err := node.masterOf(ctx, key); err == nil {
			votes[addr]++
		}
	}
	best := (*Server)(nil)
	for _, node := range c.Nodes {
		if votes[node.Addr] > 0 && (best == nil || votes[node.Addr] > votes[best.Addr]) {
			best = node
		}
	}
	if best == nil {
		return nil, fmt.Errorf("redistest: no node of the cluster reports the master of %q", key)
	}
	return best, nil
}

// masterOf asks the node for the address of the key's master.
func (s *Server) masterOf(ctx context.Context, key string) (addr string, err error) {
	err = s.with(func(rdb *redis.Client) error {
		slot, err := rdb.ClusterKeySlot(ctx, key).Result()
		if err != nil {
			return err
		}
		nodes, err := rdb.ClusterNodes(ctx).Result()
		addr = slotOwner(nodes, int(slot))
		return err
	})
	return addr, err
}

// slotOwner finds the address of the slot's master in the output of CLUSTER NODES, whose
// lines are: id address@bus flags master-id ping pong epoch link slots...
func slotOwner(nodes string, slot int) string {
	for line := range strings.Lines(nodes) {
		words := strings.Fields(line)
		for _, slots := range words[min(8, len(words)):] {
			from, to, isRange := strings.Cut(slots, "-")
			if !isRange {
				to = from
			}
			first, err1 := strconv.Atoi(from) // fails for a slot on the move, "[7->-id]"
			last, err2 := strconv.Atoi(to)
			if err1 == nil && err2 == nil && first <= slot && slot <= last {
				addr, _, _ := strings.Cut(words[1], "@")
				return addr
			}
		}
	}
	return ""
}

// Replica returns a node that replicates the one that serves the key.
func (c *Cluster) Replica(ctx context.Context, key string) (*Server, error) {
	master, err := c.Master(ctx, key)
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(master.Addr)
	for _, node := range c.Nodes {
		if strings.Contains(node.replicationInfo(ctx), "master_port:"+port+"\r\n") {
			return node, nil
		}
	}
	return nil, fmt.Errorf("redistest: no replica of %s answers", master.Addr)
}

// manualFailover is the time after which Redis gives up a failover without enough votes.
const manualFailover = 5 * time.Second

// Failover makes the key's replica its master, in agreement with the old master, so that no write is lost. It waits until
// every node that answers has the new master, and returns that node.
func (c *Cluster) Failover(ctx context.Context, key string) (*Server, error) {
	replica, err := c.Replica(ctx, key)
	if err != nil {
		return nil, err
	}
	if err := replica.do(ctx, "cluster", "failover").Err(); err != nil {
		return nil, err
	}
	asked := time.Now()
	return replica, eventually(replica.Addr+" to be master", func() (bool, error) {
		if time.Since(asked) > manualFailover+time.Second {
			asked = time.Now()
			_ = replica.do(ctx, "cluster", "failover").Err() // it refuses if it is master by now
		}
		return c.agree(ctx, key, replica)
	})
}

// AwaitMaster waits until master is the key's master according to every node that answers.
func (c *Cluster) AwaitMaster(ctx context.Context, key string, master *Server) error {
	return eventually(master.Addr+" to be master", func() (bool, error) { return c.agree(ctx, key, master) })
}

// agree reports whether master is the key's master according to every node that answers.
func (c *Cluster) agree(ctx context.Context, key string, master *Server) (bool, error) {
	for _, node := range c.Nodes {
		if addr, err := node.masterOf(ctx, key); err == nil && addr != master.Addr {
			return false, ctx.Err()
		}
	}
	return true, nil
}

// haveOneMap reports whether the nodes that answer have the same slots and epoch for each master. If two masters claim a
// slot, the epoch decides.
func (c *Cluster) haveOneMap(ctx context.Context) bool {
	var first []string
	for _, node := range c.Nodes {
		var nodes string
		if node.with(func(rdb *redis.Client) (err error) { nodes, err = rdb.ClusterNodes(ctx).Result(); return err }) != nil {
			continue
		}
		masters := mastersOf(nodes)
		if first == nil {
			first = masters
		}
		if !slices.Equal(first, masters) {
			return false
		}
	}
	return first != nil
}

// mastersOf returns the id, the epoch and the slots of each master in the output of CLUSTER NODES. It leaves out slots
// that are being moved, which only the node itself lists.
func mastersOf(nodes string) (masters []string) {
	for line := range strings.Lines(nodes) {
		words := strings.Fields(line)
		if len(words) < 8 || !strings.Contains(words[2], "master") {
			continue
		}
		master := []string{words[0], words[6]}
		for _, slots := range words[8:] {
			if !strings.HasPrefix(slots, "[") {
				master = append(master, slots)
			}
		}
		masters = append(masters, strings.Join(master, " "))
	}
	slices.Sort(masters)
	return masters
}
