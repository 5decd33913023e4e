package interop

import (
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

const (
	permitTime  = 3 * time.Second
	permitHold  = time.Millisecond
	permitLimit = 4
	permitUsers = 128
)

// permitsReport is what the users of a semaphore in one process did.
type permitsReport struct {
	Served        []int `json:"served"` // permits of each
	LongestMicros int64 `json:"longestMicros"`
	Most          int   `json:"most"` // permits in use at once
}

// clientCommands matches the statistics of commands that no script calls.
var clientCommands = regexp.MustCompile(`cmdstat_(?:eval|evalsha|subscribe|unsubscribe):calls=(\d+)`)

// log prints the figures, with how many commands the clients have sent since the statistics were reset.
func (r permitsReport) log(t *testing.T, rdb *redis.Client, who string) {
	t.Helper()
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	commands, permits := 0, 0
	for _, m := range clientCommands.FindAllStringSubmatch(info, -1) {
		n, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		commands += n
	}
	for _, n := range r.Served {
		permits += n
	}
	t.Logf("%s: %.0f permits per s, %.2f commands for each; %d to %d of one user; longest wait %v; at most %d in use", who,
		float64(permits)/permitTime.Seconds(), float64(commands)/float64(permits), slices.Min(r.Served), slices.Max(r.Served),
		time.Duration(r.LongestMicros)*time.Microsecond, r.Most)
}

// Redisson's semaphore is another one, with other keys: it is here to be compared. Its permits have leases that nothing
// renews, and its waiters have no order.
func TestPermits_KeepTheirLimitAsThoseOfJava(t *testing.T) {
	server := redistest.NewServer(t) // its statistics are of this test alone
	d := deploymentOn(server)
	rdb := server.Client(t)
	t.Run("Java", func(t *testing.T) {
		java := d.redisson(t)
		thread := java.thread()
		use := func(duration time.Duration) permitsReport {
			using := thread.begin("permits", java.lock("", redistest.Key(t)), func(c *command) {
				c.Threads, c.Duration, c.Hold, c.Limit = permitUsers, duration.Milliseconds(), permitHold.Milliseconds(), permitLimit
				c.LeaseTime = (30 * time.Second).Milliseconds()
			})
			return valueOf[permitsReport](t, java.peer.receive(t, using, duration+soonEnough))
		}
		use(permitTime / 3) // its first use takes long
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		r := use(permitTime)
		r.log(t, rdb, "Java")
		require.LessOrEqual(t, r.Most, permitLimit)
	})
	t.Run("Go", func(t *testing.T) {
		s := d.locks(t).Semaphore(redistest.Key(t), permitLimit)
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		r := permitsReport{Served: make([]int, permitUsers)}
		end, inUse := time.Now().Add(permitTime), 0
		var mu sync.Mutex // guards r and inUse
		var all sync.WaitGroup
		for me := range permitUsers {
			all.Go(func() {
				for time.Now().Before(end) {
					began := time.Now()
					p, err := s.Acquire(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					r.Served[me]++
					r.LongestMicros = max(r.LongestMicros, time.Since(began).Microseconds())
					inUse++
					r.Most = max(r.Most, inUse)
					mu.Unlock()
					time.Sleep(permitHold)
					mu.Lock()
					inUse--
					mu.Unlock()
					if err := p.Release(); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		r.log(t, rdb, "Go")
		require.LessOrEqual(t, r.Most, permitLimit)
		require.Positive(t, slices.Min(r.Served), "a waiter starved")
	})
}
