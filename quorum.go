package relock

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/quorum"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/wake"
)

// chorusWindow is how far apart the messages of the nodes about one release may be.
const chorusWindow = 5 * time.Millisecond

// NewQuorum returns a client whose locks live on several independent Redis masters, the nodes,
// and are held by the owner that has them on most: the algorithm known as Redlock. It keeps working
// as long as a majority of the nodes does, len(rdbs)/2+1, at the speed of the fastest majority. Use 3
// or 5. The clients of all processes must be given the same nodes, in any order, and each is to lead
// to one server: behind Sentinel, or a Cluster, a failover can lose a vote. NewQuorum sends nothing.
// The rdbs stay the caller's, to be closed after the Client.
//
// No failover can lose a lock, since nothing is replicated. Exclusion holds while each node that
// granted a lock keeps its data and counts time at about the rate of the client. A node that crashes
// and comes back without its data within a TTL breaks that: run nodes with appendfsync always, or
// start them again when a TTL is over. Where two holders at once would do harm, use WithFencing as
// well, and have the resource refuse a lower token.
//
// Mutex and MultiMutex are what they are on one Redis. Every request is sent to all nodes at once, and
// each round trip in the docs of the methods is one to the fastest majority; WithFencing a Lock takes
// one more. A lease counts when a majority has confirmed it, from before the first of them was asked. A
// try that got no majority is undone on every node, and TryLock may then return false to all who try
// together. An Unlock waits for slow nodes for half a second at most, and so do State and ForceUnlock.
// What single nodes say shows only in a failure, as *QuorumError.
//
// Errors: ErrInvalidOption for no rdbs, a nil one, one that is there twice, or a bad option (that two
// clients lead to different servers is not checked); ErrUnsupported for a *redis.Ring and for what a
// quorum cannot do: WithShardedPubSub, WithReplicas, WithSharedFencing. The two last are errors of a
// handle, too, and so are FairMutex and RWMutex.
func NewQuorum(rdbs []redis.UniversalClient, opts ...ClientOption) (*Client, error) {
	if len(rdbs) == 0 {
		return nil, fmt.Errorf("%w: a quorum of no Redis clients", ErrInvalidOption)
	}
	for i, rdb := range rdbs {
		if err := usableRedis(rdb); err != nil {
			return nil, fmt.Errorf("%w: number %d of %d", err, i+1, len(rdbs))
		}
		same := func(other redis.UniversalClient) bool { return reflect.ValueOf(rdb).Comparable() && other == rdb }
		if slices.ContainsFunc(rdbs[:i], same) {
			return nil, fmt.Errorf("%w: number %d of %d, the Redis client of %s, is there twice: it would have two votes",
				ErrInvalidOption, i+1, len(rdbs), cmp.Or(redisexec.AddressOf(rdb), "an unknown address"))
		}
	}
	s, err := newClientSettings(opts)
	if err != nil {
		return nil, err
	}
	if s.sharded {
		return nil, fmt.Errorf("%w: WithShardedPubSub on a quorum: it is for one *redis.ClusterClient", ErrUnsupported)
	}
	if err := supportedByQuorum(&s.settings); err != nil {
		return nil, err
	}
	return newQuorumClient(rdbs, s, clock.System), nil
}

// newQuorumClient returns a client on several deployments.
func newQuorumClient(rdbs []redis.UniversalClient, s clientSettings, now clock.Clock) *Client {
	var hubs []*wake.Hub
	for _, rdb := range rdbs {
		hubs = append(hubs, wake.NewHub(rdb, hubConfig))
	}
	c := newClientOn(rdbs, wake.NewMajority(hubs, chorusWindow), s, now)
	c.supports = supportedByQuorum
	env := c.session
	q := quorum.New(quorum.Env{
		Now:        env.now,
		Patience:   env.patience,
		Background: env.background,
		Go:         env.goroutines.Go,
		Closed:     env.isClosed,
		Retire:     env.retireField,
		Failure:    quorumError,
	}, env.execs, namesOf(rdbs))
	env.undos = q.Backlog()
	c.plain = &kind{protocol: q, newTurn: newPlainTurn, stand: atGate}
	return c
}

// supportedByQuorum says what of s cannot be had on a quorum.
func supportedByQuorum(s *settings) error {
	switch {
	case s.replicas.N > 0:
		return fmt.Errorf("%w: WithReplicas on a quorum: its nodes are to have none, a failover would forget their votes", ErrUnsupported)
	case s.Fencing && s.CounterLife == 0:
		return fmt.Errorf("%w: WithSharedFencing on a quorum: Java counts on one Redis; use WithFencing", ErrUnsupported)
	}
	return nil
}

// errNoSuchKind is the error of a handle of a kind of lock that its client has not.
var errNoSuchKind = fmt.Errorf("%w: a quorum has Mutex and MultiMutex only: nodes that vote for an owner do not agree on an order of waiters, or a number of readers",
	ErrUnsupported)

// namesOf returns what people know each of rdbs by.
func namesOf(rdbs []redis.UniversalClient) []string {
	names := make([]string, len(rdbs))
	for i := range rdbs {
		names[i] = nameOf(rdbs, i)
	}
	return names
}

// nameOf returns what people know the ith of rdbs by: its address, and its number if that is not
// known, as behind Sentinel, or not its alone.
func nameOf(rdbs []redis.UniversalClient, i int) string {
	number := fmt.Sprintf("number %d of %d", i+1, len(rdbs))
	addr := redisexec.AddressOf(rdbs[i])
	if addr == "" {
		return number
	}
	for j, other := range rdbs {
		if j != i && redisexec.AddressOf(other) == addr {
			return fmt.Sprintf("%s (%s)", addr, number)
		}
	}
	return addr
}

// QuorumError says that too few nodes of a quorum could do what was asked, and what each of
// those said that did not. errors.Is and errors.As look into all of them.
type QuorumError struct {
	Nodes  int // of the quorum
	Needed int // of them, to agree
	Agreed int

	// Errors are those of the nodes, in the order in which NewQuorum was given them. A node
	// that need not be waited for has none.
	Errors []*NodeError
}

// NodeError is what one node of a quorum said.
type NodeError struct {
	Node string // its address; or its number, "number 2 of 3", where that does not tell, as behind Sentinel
	Err  error
}

// quorumError returns a failure of a quorum as people get to see it.
func quorumError(f quorum.Failure) error {
	e := &QuorumError{Nodes: f.Nodes, Needed: f.Needed, Agreed: f.Agreed}
	for _, s := range f.Said {
		e.Errors = append(e.Errors, &NodeError{Node: s.Node, Err: s.Err})
	}
	return e
}

func (e *QuorumError) Error() string {
	said := make([]string, len(e.Errors))
	for i, node := range e.Errors {
		said[i] = node.Error()
	}
	return fmt.Sprintf("%d of %d nodes are needed, %d did it; %s", e.Needed, e.Nodes, e.Agreed, strings.Join(said, "; "))
}

// Unwrap returns what the nodes said.
func (e *QuorumError) Unwrap() []error {
	errs := make([]error, len(e.Errors))
	for i, node := range e.Errors {
		errs[i] = node
	}
	return errs
}

func (e *NodeError) Error() string {
	said := strings.TrimPrefix(e.Err.Error(), "relock: ")
	return e.Node + ": " + strings.TrimPrefix(said, e.Node+": ") // it may say so itself
}

// Unwrap returns what the node said, without its address.
func (e *NodeError) Unwrap() error { return e.Err }
