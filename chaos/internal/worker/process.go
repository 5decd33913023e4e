// Package worker is the client process: a program that uses locks as intensely as it can, with many players, and writes its
// calls and observations to its standard output, one event a line.
//
// It is independent of faults and of other processes, and judges nothing. A [Config] contains its Redis, its locks and its
// workload. It runs until its input ends. The files:
//
//   - protocol.go: the input of the process, line by line
//   - process.go: the process, from its configuration to its end
//   - dialer.go: its connections: all have to be closed at the end
//   - world.go: what its players need of it
package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/random"
	"github.com/relock-go/relock/chaos/internal/resource"
	"github.com/relock-go/relock/internal/redistest"
)

// client is a client process.
type client struct {
	Config
	record   func(history.Event)
	dialer   *dialer
	rdb      redis.UniversalClient
	others   []redis.UniversalClient // of the other masters of a quorum
	locks    *relock.Client
	resource resource.Resource
}

// Run is the whole life of a client process: it uses locks as the first line of in defines, and follows the orders in later
// lines, until in ends. It writes its events to out, including what it could not clean up. An error means that it could not
// begin.
func Run(in io.Reader, out io.Writer) error {
	before := goleak.IgnoreCurrent()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() {
		return fmt.Errorf("no configuration: %w", errors.Join(lines.Err(), io.ErrUnexpectedEOF))
	}
	var config Config
	if err := json.Unmarshal(lines.Bytes(), &config); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	c, err := newClient(config, history.NewRecorder(out, config.Process))
	if err != nil {
		return err
	}
	life, end := context.WithCancel(context.Background())
	defer end()
	stopping := make(chan struct{})
	players := c.players(life, stopping)

	var workers, orders, pulse sync.WaitGroup
	pulse.Go(func() { c.beat(life) })
	for i := range config.Work.Workers {
		workers.Go(func() { players.Play(i, config.Work.Habits, random.New(c.Seed, uint64(c.Process), uint64(i))) })
	}
	for lines.Scan() {
		var o Order
		if json.Unmarshal(lines.Bytes(), &o) == nil {
			orders.Go(func() { c.hog(life, o.Hog) })
		}
	}
	close(stopping)
	giveUp := time.AfterFunc(Drain, end)
	workers.Wait()
	orders.Wait()
	giveUp.Stop()
	end()
	pulse.Wait()
	c.close(before)
	return nil
}

func newClient(config Config, recorder *history.Recorder) (*client, error) {
	c := &client{
		Config: config,
		record: recorder.Record,
		dialer: &dialer{relays: config.Relays},
	}
	c.rdb = c.connect(config.Addrs)
	if config.Kind.Votes() {
		for i := range config.Addrs[1:] {
			c.others = append(c.others, c.connect(config.Addrs[1+i:]))
		}
	}
	var err error
	if c.locks, err = c.newLocks(); err != nil {
		return nil, err
	}
	if config.Resource != "" {
		c.resource, err = resource.Open(context.Background(), config.Resource)
	}
	return c, err
}

// newLocks returns a client of the library on the process' Redis client.
func (c *client) newLocks() (*relock.Client, error) {
	opts := []relock.ClientOption{relock.WithTTL(c.Work.TTL), relock.WithSafetyPoll(c.Work.Poll)}
	if !c.Work.Untokened {
		opts = append(opts, relock.WithFencing())
	}
	if c.Work.DeadlockCheck > 0 {
		opts = append(opts, relock.WithDeadlockCheck(c.Work.DeadlockCheck))
	}
	if c.Work.Replicas > 0 {
		opts = append(opts, relock.WithReplicas(c.Work.Replicas, c.Work.TTL/8))
	}
	if c.Work.Sharded {
		opts = append(opts, relock.WithShardedPubSub())
	}
	if c.Work.Unpipelined || os.Getenv("RELOCK_WITHOUT_PIPELINING") == "1" {
		opts = append(opts, relock.WithoutPipelining())
	}
	if c.Kind.Votes() {
		return relock.NewQuorum(append(c.others[:len(c.others):len(c.others)], c.rdb), opts...)
	}
	return relock.New(c.rdb, opts...)
}

// connect returns a client of the deployment; of a quorum, of its first address.
func (c *client) connect(addrs []string) redis.UniversalClient {
	return deployment.Connect(c.Kind, addrs, c.dialer.dial, c.Work.PoolSize)
}

// beat reports that the process runs, as long as it does.
func (c *client) beat(ctx context.Context) {
	ticker := time.NewTicker(history.Beat)
	defer ticker.Stop()
	for ctx.Err() == nil {
		c.record(history.Event{Kind: history.Alive})
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// hog blocks every connection of the pool, as a careless application does.
func (c *client) hog(life context.Context, d time.Duration) {
	var blocked sync.WaitGroup
	for range max(1, c.Work.PoolSize) {
		blocked.Go(func() {
			ctx, cancel := context.WithTimeout(life, d+time.Second)
			defer cancel()
			c.rdb.BLPop(ctx, d, c.Locks[0]+":nothing")
		})
	}
	blocked.Wait()
}

// close ends everything that the process has begun, and records what remains.
func (c *client) close(before goleak.Option) {
	// No Unlock has returned the failures of releases that were sent after it.
	if err := c.locks.Close(); err != nil && c.Work.Async == 0 && c.Work.Linger == 0 {
		c.left("after everything was unlocked, Close failed: %v", err)
	}
	if n, ok := settle(c.dialer.subscribers); !ok {
		c.left("%d subscribed connections after Close", n)
	}
	for _, rdb := range append(c.others, c.rdb) {
		_ = rdb.Close()
	}
	if c.resource != nil {
		_ = c.resource.Close()
	}
	if n, ok := settle(c.dialer.open); !ok {
		c.left("%d connections after everything was closed", n)
	}
	if err := redistest.FindLeaks(before); err != nil {
		c.left("goroutines: %v", err)
	}
	c.record(history.Event{Kind: history.Bye})
}

func (c *client) left(format string, args ...any) {
	c.record(history.Event{Kind: history.Left, Note: fmt.Sprintf(format, args...)})
}

// settle waits until count is 0, for as long as goroutines are waited for.
func settle(count func() int) (n int, ok bool) {
	for range 500 {
		if n = count(); n == 0 {
			return 0, true
		}
		time.Sleep(20 * time.Millisecond)
	}
	return n, false
}
