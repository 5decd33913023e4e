package worker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/chaos/check"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/player"
	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// runBriefly runs a client process' code here, and returns its events.
func runBriefly(t *testing.T, config Config, d time.Duration, orders ...Order) []history.Event {
	t.Helper()
	in, director := io.Pipe()
	recorded, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		defer out.Close()
		ended <- Run(in, out)
	}()
	go func() {
		lines := json.NewEncoder(director)
		lines.Encode(config)
		for _, o := range orders {
			lines.Encode(o)
		}
		<-time.After(d)
		director.Close()
	}()
	var events []history.Event
	require.NoError(t, history.Read(recorded, func(e history.Event) { events = append(events, e) }))
	require.NoError(t, <-ended)
	return events
}

func clientOf(addr string, change func(*Workload), locks ...string) Config {
	work := Workload{
		Habits:    player.Habits{TTL: 2 * time.Second, Fixed: 0.05, Fair: 0.4, Shared: 0.1, Impatient: 0.25, Reads: 0.7, Permits: 0.2, Heavy: 0.5},
		Processes: 3, Workers: 6, Names: 3, Limit: 3, Poll: 250 * time.Millisecond, Impatience: 200 * time.Millisecond, Joint: 0.1, Counts: true,
	}
	if change != nil {
		change(&work)
	}
	return Config{Process: 1, Seed: 1, Kind: deployment.Standalone, Addrs: []string{addr}, Locks: locks, Semaphores: []string{locks[0] + "-permits"}, Work: work}
}

func requireKept(t *testing.T, events []history.Event) check.Report {
	t.Helper()
	report := check.Run(events, check.Rules{TTL: 2 * time.Second, Poll: 250 * time.Millisecond, Slack: time.Second, Lossless: true})
	require.Empty(t, report.Violations)
	return report
}

func count(events []history.Event, kind history.Kind, outcome history.Outcome) int {
	n := 0
	for _, e := range events {
		if e.Kind == kind && e.Outcome == outcome {
			n++
		}
	}
	return n
}

// seeAll runs longer and longer until it has seen everything that is wanted: what workers do
// is a matter of chance.
func seeAll(t *testing.T, d time.Duration, run func(d time.Duration, see func(what string)), wanted ...string) {
	t.Helper()
	missing := slices.Clone(wanted)
	for ; len(missing) > 0; d *= 2 {
		require.Less(t, d, 20*time.Second, "not seen: %v", missing)
		run(d, func(what string) {
			missing = slices.DeleteFunc(missing, func(m string) bool { return m == what })
		})
	}
}

func TestWorker_ReportsAllThatItDoesAndLeavesNothing(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		key := redistest.Key(t)
		config := clientOf(b.Addr, nil, "{"+key+"}:a", "{"+key+"}:b", key+"-c")
		if b.Real {
			config.Resource = "redis://" + redistest.NewServer(t).Addr
		}
		wanted := []string{"many holds", "levels compared with Redis'", "a MultiMutex", "a shared owner", "a re-entry", "a heavy permit", "a permit compared with Redis'"}
		if b.Real {
			wanted = append(wanted, "a write")
		}
		seeAll(t, 700*time.Millisecond, func(d time.Duration, see func(string)) {
			events := runBriefly(t, config, d)
			report := requireKept(t, events)
			require.Equal(t, count(events, history.LockCall, ""), report.Operations-count(events, history.UnlockCall, ""))
			require.Equal(t, history.Bye, events[len(events)-1].Kind)
			if report.Holds > 10 {
				see("many holds")
			}
			if count(events, history.Counted, "") > 0 {
				see("levels compared with Redis'")
			}
			if count(events, history.WriteReturn, history.OK) > 0 {
				require.True(t, b.Real, "there is nothing to write to")
				see("a write")
			}
			for _, e := range events {
				if e.Weight > 1 {
					see("a heavy permit")
				}
				if e.Kind == history.Counted && e.Lock == config.Semaphores[0] {
					see("a permit compared with Redis'")
				}
				if e.Kind == history.LockReturn && e.Outcome == history.OK {
					if e.Lock == "{"+key+"}:a,{"+key+"}:b" {
						see("a MultiMutex")
					}
					if e.Worker >= player.Helper {
						see("a shared owner")
					}
					if e.Depth > 1 {
						see("a re-entry")
					}
				}
			}
		}, wanted...)
	})
}

func TestWorker_MisuseHasTheRightErrors(t *testing.T) {
	redistest.EachInRealTime(t, func(t *testing.T, b *redistest.Backend) {
		config := clientOf(b.Addr, func(w *Workload) { w.Misuse, w.Workers = 1, 4 }, redistest.Key(t), redistest.Key(t))
		seeAll(t, time.Second, func(d time.Duration, see func(string)) {
			events := runBriefly(t, config, d)
			requireKept(t, events)
			require.Zero(t, count(events, history.Misused, history.Failed))
			for _, e := range events {
				if e.Kind == history.Misused {
					see(e.Note)
				}
			}
		}, "Unlock of a lock that is not held", "a second Unlock", "Unlock by another goroutine", "Lock inside a lost hold", "Unlock after Close", "Lock after Close")
	})
}

func TestWorker_BlocksItsWholePoolOnRequest(t *testing.T) {
	b := redistest.Redis(t)
	config := clientOf(b.Addr, func(w *Workload) { w.PoolSize = 1 }, redistest.Key(t))
	before := blocked(t, b)
	events := runBriefly(t, config, 500*time.Millisecond, Order{Hog: 300 * time.Millisecond})
	require.Equal(t, before+1, blocked(t, b), "its pool is one connection")
	requireKept(t, events)
}

// blocked counts the requests to block a connection.
func blocked(t *testing.T, b *redistest.Backend) (n int) {
	t.Helper()
	info, err := b.Client(t).Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	if _, calls, ever := strings.Cut(info, "cmdstat_blpop:calls="); ever {
		_, err = fmt.Sscanf(calls, "%d", &n)
		require.NoError(t, err)
	}
	return n
}

func TestWorker_WithoutAConfigurationReportsIt(t *testing.T) {
	require.ErrorContains(t, Run(bytes.NewReader(nil), io.Discard), "no configuration")
	require.ErrorContains(t, Run(bytes.NewReader([]byte("{\n")), io.Discard), "configuration")
}

func TestWorker_CountsConnectionsUntilTheyAreClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	d := &dialer{relays: map[string]string{"elsewhere:1": l.Addr().String()}}
	a, err := d.dial(t.Context(), "tcp", "elsewhere:1")
	require.NoError(t, err)
	b, err := d.dial(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	require.Equal(t, 2, d.open())
	require.Zero(t, d.subscribers())

	w := bufio.NewWriter(a)
	io.WriteString(w, "*2\r\n$9\r\nsubscribe\r\n$25\r\nredisson_lock__channel:{a}\r\n")
	require.NoError(t, w.Flush())
	io.WriteString(b, "*3\r\n$7\r\npublish\r\n$25\r\nredisson_lock__channel:{a}\r\n$1\r\n0\r\n")
	require.Equal(t, 1, d.subscribers())
	require.NoError(t, a.Close())
	require.Zero(t, d.subscribers())
	require.Equal(t, 1, d.open())
	require.NoError(t, b.Close())
	require.Zero(t, d.open())
}
