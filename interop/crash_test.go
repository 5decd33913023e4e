package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// A crashed process does not report its end: the lease has to end.
const (
	crashTTL = 2 * time.Second
	overhead = 3 * time.Second // of noticing, on a loaded machine; what would not notice takes longer by far
)

func TestCrash_InJavaFreesGoroutinesWithinTheTTL(t *testing.T) {
	t.Parallel()
	d := single(t)
	doomed := newPeer(t)
	java, locks := doomed.opened(t, d, crashTTL), d.locks(t, onlyMessages(relock.Hooks{})...)
	name := redistest.Key(t)
	m := locks.Mutex(name)
	java.thread().locks(t, java.lock("plain", name))

	g := newActor(t)
	coming := g.waits(t, m)
	crashed := time.Now()
	doomed.die(t)
	require.NoError(t, outcomeOf(t, coming))
	took := time.Since(crashed)
	t.Logf("free %v after the crash, the TTL is %v", took.Round(time.Millisecond), crashTTL)
	require.Less(t, took, crashTTL+overhead)
	g.unlocks(t, m)
	d.requireFree(t, name)
}

func TestCrash_InGoFreesJavaThreadsWithinTheTTL(t *testing.T) {
	t.Parallel()
	d := single(t)
	java := d.redisson(t)
	thread := java.thread()
	name := redistest.Key(t)
	lock := java.lock("plain", name)
	kill := startHolder(t, holderOrder{Addr: d.java.Addresses[0], Name: name, TTL: crashTTL})

	returned := thread.waits(t, lock)
	crashed := time.Now()
	kill()
	took := thread.comes(t, returned).ended().Sub(crashed)
	t.Logf("free %v after the crash, the TTL is %v", took.Round(time.Millisecond), crashTTL)
	require.Less(t, took, crashTTL+overhead)
	thread.unlocks(t, lock)
	d.requireFree(t, name)
}

func TestCrash_OfJavaWaitersDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	d := single(t)
	doomed := newPeer(t)
	java, locks, rdb := doomed.opened(t, d, 0), d.locks(t, onlyMessages(relock.Hooks{})...), d.client(t)
	name := redistest.Key(t)
	lock, m := java.lock("plain", name), locks.Mutex(name)
	holder, waiter := newActor(t), newActor(t)
	holder.locks(t, m)
	for range 4 {
		java.thread().begin("lock", lock)
	}
	coming := waiter.waits(t, m)
	eventually(t, "both listen", func() bool { return d.listeners(t, rdb, name) == 2 })
	doomed.die(t)
	holder.unlocks(t, m)
	require.NoError(t, outcomeOf(t, coming))
	waiter.unlocks(t, m)
	d.requireFree(t, name)
}

// holderEnv makes a run of the test program a process that holds a lock until it is killed.
const holderEnv = "RELOCK_INTEROP_HOLDER"

type holderOrder struct {
	Addr, Name string
	Kind       string // read, write, or neither
	TTL        time.Duration
}

// startHolder starts a Go process that holds a lock, and returns what kills it.
func startHolder(t *testing.T, o holderOrder) (kill func()) {
	t.Helper()
	order, err := json.Marshal(o)
	require.NoError(t, err)
	holder := exec.CommandContext(t.Context(), os.Args[0])
	holder.Env = append(os.Environ(), holderEnv+"="+string(order))
	holder.Stderr = os.Stderr
	output, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	kill = func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(output).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "held\n", line)
	return kill
}

// holdUntilKilled is what such a process does.
func holdUntilKilled(order string) {
	var o holderOrder
	if err := json.Unmarshal([]byte(order), &o); err != nil {
		panic(err)
	}
	locks, err := relock.New(redis.NewClient(&redis.Options{Addr: o.Addr}), relock.WithTTL(o.TTL))
	if err != nil {
		panic(err)
	}
	var lock goLock = locks.Mutex(o.Name)
	switch o.Kind {
	case "read":
		lock = reader{locks.RWMutex(o.Name)}
	case "write":
		lock = locks.RWMutex(o.Name)
	}
	if err := lock.Lock(context.Background()); err != nil {
		panic(err)
	}
	fmt.Println("held")
	<-make(chan struct{})
}
