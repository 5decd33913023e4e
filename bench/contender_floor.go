package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/bench/contend"
)

// The floor is the least cost of any reentrant lock with a message on release: one round trip to acquire, and one to release, each
// with a minimal script. It is no lock library: it renews nothing, survives no lost reply, and all waiters race.
var (
	floorAcquire = redis.NewScript(`
if redis.call('exists', KEYS[1]) == 1 then return 0 end
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], ARGV[2])
return 1`)

	floorAsk = redis.NewScript(`
if redis.call('exists', KEYS[1]) == 1 then
  redis.call('publish', ARGV[3], '0')
  return 0
end
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], ARGV[2])
return 1`)

	floorEnter = redis.NewScript(`
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('hset', KEYS[1], ARGV[1], ARGV[3])
redis.call('pexpire', KEYS[1], ARGV[2])
return 1`)

	floorLeave = redis.NewScript(`
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
return 1`)

	floorRelease = redis.NewScript(`
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('del', KEYS[1])
redis.call('publish', ARGV[2], '0')
return 1`)
)

const floorLease = 30_000 // ms

// floor is the floor on one client, plain or pipelined.
type floor struct {
	rdb  *redis.Client
	pipe *redis.AutoPipeliner // nil: plain
	id   string

	mu    sync.Mutex
	owner int
}

func openFloor(s setup) (client, error) {
	f := &floor{rdb: contend.GoRedis(s)}
	ctx := context.Background()
	for _, script := range []*redis.Script{floorAcquire, floorAsk, floorEnter, floorLeave, floorRelease} {
		if err := script.Load(ctx, f.rdb).Err(); err != nil {
			return nil, errors.Join(err, f.rdb.Close())
		}
	}
	id, err := f.rdb.Incr(ctx, "bench:floor:ids").Result()
	f.id = fmt.Sprint(id)
	return f, err
}

func openPipelinedFloor(s setup) (client, error) {
	c, err := openFloor(s)
	if err != nil {
		return nil, err
	}
	f := c.(*floor)
	f.pipe, err = f.rdb.AsyncAutoPipelineWithOptions(&redis.AutoPipelineOptions{FullDuplex: true})
	return f, err
}

func (f *floor) Mutex(name string) mutex {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owner++
	return &floorMutex{floor: f, keys: []string{name}, channel: "channel:{" + name + "}",
		field: fmt.Sprintf("%s:%d", f.id, f.owner)}
}

func (f *floor) Close() error {
	var err error
	if f.pipe != nil {
		err = f.pipe.Close()
	}
	return errors.Join(err, f.rdb.Close())
}

// run executes a script and returns whether it replied 1.
func (f *floor) run(ctx context.Context, s *redis.Script, keys []string, args ...any) (bool, error) {
	if f.pipe == nil {
		n, err := f.rdb.EvalSha(ctx, s.Hash(), keys, args...).Int()
		return n == 1, err
	}
	line := make([]any, 0, 4+len(args))
	line = append(line, "evalsha", s.Hash(), len(keys), keys[0])
	cmd := redis.NewCmd(ctx, append(line, args...)...)
	cmd.SetFirstKeyPos(3)
	if err := f.pipe.Submit(ctx, cmd).WaitContext(ctx); err != nil {
		return false, err
	}
	n, err := cmd.Int()
	return n == 1, err
}

type floorMutex struct {
	*floor
	keys    []string
	channel string
	field   string
	count   int
	sub     *redis.PubSub // made when it has to wait for the first time
}

func (m *floorMutex) Lock(ctx context.Context) error {
	if m.count > 0 {
		ok, err := m.run(ctx, floorEnter, m.keys, m.field, floorLease, m.count+1)
		return m.counted(1, ok, err)
	}
	for {
		ok, err := m.run(ctx, floorAcquire, m.keys, m.field, floorLease)
		if ok || err != nil {
			return m.counted(1, ok, err)
		}
		if err := m.wait(ctx); err != nil {
			return err
		}
	}
}

func (m *floorMutex) Unlock() error {
	ctx := context.Background()
	if m.count > 1 {
		ok, err := m.run(ctx, floorLeave, m.keys, m.field, m.count-1)
		return m.counted(-1, ok, err)
	}
	ok, err := m.run(ctx, floorRelease, m.keys, m.field, m.channel)
	return m.counted(-1, ok, err)
}

func (m *floorMutex) counted(step int, ok bool, err error) error {
	m.count += step
	if err == nil && !ok {
		err = errors.New("floor: the lock was lost")
	}
	return err
}

// wait returns with the next message or, the first time, once it is subscribed.
func (m *floorMutex) wait(ctx context.Context) error {
	if m.sub == nil {
		m.sub = m.rdb.Subscribe(context.Background(), m.channel)
	}
	sub := m.sub
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() }) // all that ends a Receive
	_, err := sub.Receive(context.Background())
	if !stop() {
		m.sub = nil // it is closed
		return ctx.Err()
	}
	return err
}

// message is the least cost of a wake-up by a message: the waiter counts the message as the lock, and writes nothing to Redis.
type message struct{ *floor }

func openMessage(s setup) (client, error) {
	c, err := openFloor(s)
	if err != nil {
		return nil, err
	}
	return message{c.(*floor)}, nil
}

func (f message) Mutex(name string) mutex {
	return &messageMutex{floorMutex: f.floor.Mutex(name).(*floorMutex)}
}

type messageMutex struct {
	*floorMutex
	notified bool // this hold is a message
}

func (m *messageMutex) Lock(ctx context.Context) error {
	free, err := m.run(ctx, floorAcquire, m.keys, m.field, floorLease)
	m.notified = !free
	if free || err != nil {
		return m.counted(1, free, err)
	}
	if m.sub == nil {
		if err := m.wait(ctx); err != nil {
			return err
		}
	}
	return m.wait(ctx)
}

func (m *messageMutex) Unlock() error {
	if m.notified {
		return nil
	}
	return m.floorMutex.Unlock()
}

// asked is the least cost of a lock that lingers: a waiter asks by a message, the process that keeps the lock releases it then, and
// the waiter counts the message of that as the lock.
type asked struct {
	*floor
	demands []*redis.PubSub
}

func openAsked(s setup) (client, error) {
	c, err := openFloor(s)
	if err != nil {
		return nil, err
	}
	return &asked{floor: c.(*floor)}, nil
}

func (f *asked) Mutex(name string) mutex {
	return &askedMutex{messageMutex: message{f.floor}.Mutex(name).(*messageMutex), asked: f, demand: "asked:{" + name + "}"}
}

func (f *asked) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, demand := range f.demands {
		_ = demand.Close() // and so ends its goroutine
	}
	return f.floor.Close()
}

type askedMutex struct {
	*messageMutex
	asked  *asked
	demand string
	lasts  bool // it lingers after each Unlock, until it is asked for
}

func (m *askedMutex) Lock(ctx context.Context) error {
	if m.sub == nil { // before it asks, or it misses the answer
		if err := m.wait(ctx); err != nil {
			return err
		}
	}
	free, err := m.run(ctx, floorAsk, m.keys, m.field, floorLease, m.demand)
	m.notified = !free
	if free || err != nil {
		return m.counted(1, free, err)
	}
	return m.wait(ctx)
}

// Unlock keeps the lock until a message asks for it.
func (m *askedMutex) Unlock() error {
	if m.notified {
		return nil
	}
	m.count--
	if m.lasts {
		return nil
	}
	m.lasts = true
	demand := m.rdb.Subscribe(context.Background(), m.demand)
	m.asked.mu.Lock()
	m.asked.demands = append(m.asked.demands, demand)
	m.asked.mu.Unlock()
	if _, err := demand.Receive(context.Background()); err != nil {
		return err
	}
	go func() {
		for range demand.Channel() {
			// If it fails, the waiter waits for ever, and the cell is void.
			_, _ = m.run(context.Background(), floorRelease, m.keys, m.field, m.channel)
		}
	}()
	return nil
}
