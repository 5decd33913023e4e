package interop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

const (
	soakGoroutines = 64
	soakThreads    = 16

	// longestPause bounds how long one language may keep the other out, on a loaded machine.
	longestPause = 10 * time.Second
)

func TestSoak_GoroutinesAndJavaThreadsShareOneLock(t *testing.T) {
	t.Run("single server, with fencing", func(t *testing.T) { soak(t, single(t), "fenced", relock.WithSharedFencing()) })
	t.Run("Cluster with sharded pub-sub", func(t *testing.T) { soak(t, cluster(t, true), "plain") })
	t.Run("readers and writers", func(t *testing.T) { soak(t, single(t), "write", relock.WithFencing()) })
}

// soak has goroutines and Java threads lock one name for as long as -soak says.
func soak(t *testing.T, d *deployment, kind string, options ...relock.ClientOption) {
	java, locks, rdb := d.redisson(t), d.locks(t, options...), d.client(t)
	name := redistest.Key(t)
	defer func() {
		for _, extra := range []string{name + ":inside", name + ":total", name + ":token", counterOf(name)} {
			rdb.Del(context.Background(), extra)
		}
	}()

	began := time.Now()
	thread := java.thread()
	contending := thread.begin("contend", java.lock(kind, name), func(c *command) {
		c.Threads, c.Duration = soakThreads, soakTime.Milliseconds()
	})
	g := &contention{locks: locks, rdb: rdb, name: name, end: began.Add(*soakTime), rw: kind == "write"}
	inGo := g.run()
	a := java.peer.receive(t, contending, *soakTime+time.Minute)
	inJava := valueOf[report](t, a)
	took := time.Since(began)

	inGo.log(t, "Go")
	inJava.log(t, "Java")
	require.Len(t, inGo.Served, soakGoroutines)
	require.Len(t, inJava.Served, soakThreads)
	require.Empty(t, inGo.Errors)
	require.Empty(t, inJava.Errors)
	require.Positive(t, slices.Min(inGo.Served), "a goroutine starved")
	require.Positive(t, slices.Min(inJava.Served), "a Java thread starved")
	require.Less(t, inGo.PauseMicros, longestPause.Microseconds(), "Java kept Go out")
	require.Less(t, inJava.PauseMicros, longestPause.Microseconds(), "Go kept Java out")
	require.Less(t, took, *soakTime+20*time.Second, "the waiters were not served when the others had stopped")
	total, err := rdb.Get(t.Context(), name+":total").Int()
	require.NoError(t, err)
	require.Equal(t, inGo.Written+inJava.Written, total, "an update under the lock was lost")
	d.requireFree(t, name)
	eventually(t, "nobody listens any more", func() bool { return d.listeners(t, rdb, name) == 0 })
}

// A report is what the contenders of one language did.
type report struct {
	Served        []int    `json:"served"`        // holds of each contender
	Written       int      `json:"written"`       // holds of all contenders that were no reader's
	LongestMicros int64    `json:"longestMicros"` // wait of a contender
	PauseMicros   int64    `json:"pauseMicros"`   // in which none of them got the lock
	Errors        []string `json:"errors"`
}

func (r report) total() (n int) {
	for _, holds := range r.Served {
		n += holds
	}
	return n
}

func (r report) log(t *testing.T, language string) {
	if len(r.Served) > 0 {
		t.Logf("%s: %d holds, %d to %d for each contender, longest wait %v, longest pause %v", language, r.total(),
			slices.Min(r.Served), slices.Max(r.Served), inMillis(r.LongestMicros), inMillis(r.PauseMicros))
	}
}

func inMillis(micros int64) time.Duration {
	return (time.Duration(micros) * time.Microsecond).Round(time.Millisecond)
}

// A contention is goroutines that lock again and again until the end.
type contention struct {
	locks *relock.Client
	rdb   redis.UniversalClient
	name  string
	end   time.Time
	rw    bool // an RWMutex, written to in every fourth turn

	mu   sync.Mutex // guards the rest
	last time.Time  // when one of them had got the lock
	report
}

func (c *contention) run() report {
	c.Served, c.last = make([]int, soakGoroutines), time.Now()
	var all sync.WaitGroup
	for i := range soakGoroutines {
		all.Go(func() { c.contend(i) })
	}
	all.Wait()
	return c.report
}

func (c *contention) contend(i int) {
	for turn := i; time.Now().Before(c.end); turn++ {
		began := time.Now()
		var waited time.Duration
		writes, err := c.hold(turn, func() { waited = time.Since(began) })
		c.mu.Lock()
		if err != nil {
			c.Errors = append(c.Errors, err.Error())
		} else {
			c.Served[i]++
			c.Written += writes
			c.LongestMicros = max(c.LongestMicros, waited.Microseconds())
			c.PauseMicros = max(c.PauseMicros, time.Since(c.last).Microseconds())
			c.last = time.Now()
		}
		c.mu.Unlock()
	}
}

// hold locks once, and calls entered when it has the lock. It reports whether it was the
// side that writes.
func (c *contention) hold(turn int, entered func()) (writes int, err error) {
	ctx := context.Background()
	m, rw := c.locks.Mutex(c.name), c.locks.RWMutex(c.name)
	switch {
	case !c.rw:
		return 1, m.Do(ctx, func(ctx context.Context) error {
			entered()
			return c.inside(ctx, m.FencingToken())
		})
	case turn%4 == 0:
		return 1, rw.Do(ctx, func(ctx context.Context) error {
			entered()
			return c.inside(ctx, rw.FencingToken())
		})
	default:
		return 0, rw.RDo(ctx, func(ctx context.Context) error {
			entered()
			return c.noWriter(ctx)
		})
	}
}

// inside is what a contender does under the lock: it checks that it is alone, and does what
// loses updates if it is not. Its token, if it has one, has to be higher than the token of the
// holder before.
func (c *contention) inside(ctx context.Context, token int64) error {
	if n, err := c.rdb.Incr(ctx, c.name+":inside").Result(); err != nil {
		return err
	} else if n != 1 {
		return fmt.Errorf("%d holders at once", n)
	}
	total, err := c.get(ctx, ":total")
	if err != nil {
		return err
	}
	if err := c.rdb.Set(ctx, c.name+":total", total+1, 0).Err(); err != nil {
		return err
	}
	if token > 0 {
		last, err := c.get(ctx, ":token")
		if err != nil {
			return err
		}
		if token <= last {
			return fmt.Errorf("token %d after %d", token, last)
		}
		if err := c.rdb.Set(ctx, c.name+":token", token, 0).Err(); err != nil {
			return err
		}
	}
	return c.rdb.Decr(ctx, c.name+":inside").Err()
}

// noWriter is what a reader checks under the lock.
func (c *contention) noWriter(ctx context.Context) error {
	n, err := c.get(ctx, ":inside")
	if err == nil && n != 0 {
		err = fmt.Errorf("%d writers beside a reader", n)
	}
	return err
}

func (c *contention) get(ctx context.Context, counter string) (int64, error) {
	n, err := c.rdb.Get(ctx, c.name+counter).Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return n, err
}
