package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// soakTime is how long the soak runs; `go test -run TestSoak -soak 60s ./tests` runs a long one.
var soakTime = flag.Duration("soak", 2*time.Second, "duration of the soak test")

const (
	soakProcesses  = 4
	soakGoroutines = 64
	soakChildEnv   = "RELOCK_SOAK_CHILD"
)

// soakOrder is what a child process is to do, soakReport what it did.
type soakOrder struct {
	Addr, Key string
	Duration  time.Duration
}

type soakReport struct {
	Served  []int // by goroutine
	Longest time.Duration
	Errors  []string
}

func TestSoak_ManyProcessesShareOneName(t *testing.T) {
	redistest.Slow(t)
	b := redistest.Redis(t)
	rdb := b.Client(t)
	key := redistest.Key(t)
	order, err := json.Marshal(soakOrder{Addr: b.Addr, Key: key, Duration: *soakTime})
	require.NoError(t, err)

	var wg sync.WaitGroup
	outputs := make([]bytes.Buffer, soakProcesses)
	errs := make([]error, soakProcesses)
	ctx, cancel := context.WithTimeout(t.Context(), *soakTime+time.Minute)
	defer cancel()
	for i := range soakProcesses {
		child := exec.CommandContext(ctx, os.Args[0])
		child.Env = append(os.Environ(), soakChildEnv+"="+string(order))
		child.Stdout, child.Stderr = &outputs[i], os.Stderr
		wg.Go(func() { errs[i] = child.Run() })
	}
	wg.Wait()

	total, squares, longest := 0, 0.0, time.Duration(0)
	for i := range outputs {
		require.NoError(t, errs[i], outputs[i].String())
		var report soakReport
		require.NoError(t, json.Unmarshal(outputs[i].Bytes(), &report), outputs[i].String())
		require.Empty(t, report.Errors)
		require.Len(t, report.Served, soakGoroutines)
		process := 0
		for _, n := range report.Served {
			require.Positive(t, n, "a waiter was not served")
			process += n
			squares += float64(n) * float64(n)
		}
		t.Logf("process %d: %d holds", i, process)
		total += process
		longest = max(longest, report.Longest)
	}
	fairness := float64(total) * float64(total) / (soakProcesses * soakGoroutines * squares)
	t.Logf("%d holds in %v, longest wait %v, Jain's index %.3f", total, *soakTime, longest.Round(time.Millisecond), fairness)

	require.Equal(t, fmt.Sprint(total), rdb.Get(t.Context(), key+":total").Val(), "an update under the lock was lost")
	require.Zero(t, rdb.Exists(t.Context(), key).Val(), "the key was left")
	require.Empty(t, rdb.PubSubChannels(t.Context(), locktest.ChannelOf(key)).Val(), "a subscription was left")
	rdb.Del(t.Context(), key+":total", key+":inside")
}

// A child process does not run tests: it contends, reports, and exits.
func init() {
	order := os.Getenv(soakChildEnv)
	if order == "" {
		return
	}
	var o soakOrder
	if err := json.Unmarshal([]byte(order), &o); err != nil {
		panic(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(soakChild(o)); err != nil {
		panic(err)
	}
	os.Exit(0)
}

func soakChild(o soakOrder) soakReport {
	rdb := redis.NewClient(redistest.Options(o.Addr))
	defer rdb.Close()
	locks, err := relock.New(rdb)
	if err != nil {
		panic(err)
	}
	r := &soakRun{soakOrder: o, rdb: rdb, locks: locks, end: time.Now().Add(o.Duration)}
	r.report.Served = make([]int, soakGoroutines)
	var wg sync.WaitGroup
	for i := range soakGoroutines {
		wg.Go(func() { r.contend(i) })
	}
	wg.Wait()
	if err := locks.Close(); err != nil {
		r.fail(err)
	}
	return r.report
}

type soakRun struct {
	soakOrder
	rdb   *redis.Client
	locks *relock.Client
	end   time.Time

	mu     sync.Mutex
	report soakReport
}

func (r *soakRun) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Errors = append(r.report.Errors, err.Error())
}

// contend locks again and again until the end. Under the lock it checks that it is alone,
// and does what loses updates if it is not.
func (r *soakRun) contend(i int) {
	m := r.locks.Mutex(r.Key)
	for time.Now().Before(r.end) {
		began := time.Now()
		if err := m.Lock(context.Background()); err != nil {
			r.fail(err)
			return
		}
		waited := time.Since(began)
		if err := r.inside(); err != nil {
			r.fail(err)
		}
		if err := m.Unlock(); err != nil {
			r.fail(err)
			return
		}
		r.mu.Lock()
		r.report.Served[i]++
		r.report.Longest = max(r.report.Longest, waited)
		r.mu.Unlock()
	}
}

func (r *soakRun) inside() error {
	ctx := context.Background()
	if n, err := r.rdb.Incr(ctx, r.Key+":inside").Result(); err != nil {
		return err
	} else if n != 1 {
		return fmt.Errorf("%d holders at once", n)
	}
	total, err := r.rdb.Get(ctx, r.Key+":total").Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	if err := r.rdb.Set(ctx, r.Key+":total", total+1, 0).Err(); err != nil {
		return err
	}
	return r.rdb.Decr(ctx, r.Key+":inside").Err()
}
