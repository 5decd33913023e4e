package redistest_test

import (
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	. "github.com/relock-go/relock/internal/redistest"
)

func TestRelay_LatencyDelaysCommandsInParallel(t *testing.T) {
	Slow(t)
	Each(t, func(t *testing.T, b *Backend) {
		relay, through, _ := relayed(t, b, 3)
		through.Ping(t.Context())
		const commands, each = 100, 30 * time.Millisecond
		relay.Latency(each)
		start := time.Now()
		pipe := through.Pipeline()
		for i := range commands {
			pipe.Echo(t.Context(), i)
		}
		replies, err := pipe.Exec(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, reply := range replies {
			if got := reply.(*redis.StringCmd).Val(); got != strconv.Itoa(i) {
				t.Fatalf("reply %d is %q: out of order", i, got)
			}
		}
		if took := time.Since(start); took < 2*each || took > commands*each/2 {
			t.Fatalf("%d pipelined commands took %v with %v each way", commands, took, each)
		}
	})
}

func TestRelay_CutShowsEOFAndTheNextConnectionWorks(t *testing.T) {
	Each(t, func(t *testing.T, b *Backend) {
		relay, through, _ := relayed(t, b, 3)
		rule := relay.Block(Named("ping"))
		defer rule.Release()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := through.Ping(t.Context()).Err(); !errors.Is(err, io.EOF) {
				t.Errorf("error is %v, want EOF", err)
			}
		})
		rule.Wait(t)
		relay.Cut()
		wg.Wait()
		if err := through.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRelay_RefuseConcernsNewConnectionsOnly(t *testing.T) {
	Each(t, func(t *testing.T, b *Backend) {
		relay, through, _ := relayed(t, b, 3)
		through.Ping(t.Context())
		if err := relay.Refuse(true); err != nil {
			t.Fatal(err)
		}
		if err := through.Ping(t.Context()).Err(); err != nil {
			t.Fatalf("existing connection: %v", err)
		}
		relay.Cut()
		var dial *net.OpError // Windows has another number for a refusal
		if err := through.Ping(t.Context()).Err(); !errors.As(err, &dial) || dial.Op != "dial" {
			t.Fatalf("error is %v, want a refused connection", err)
		}
		if err := relay.Refuse(false); err != nil {
			t.Fatal(err)
		}
		if err := through.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRelay_BlackHoleStaysOneAndOtherConnectionsWork(t *testing.T) {
	t.Parallel()
	Slow(t)
	Each(t, func(t *testing.T, b *Backend) {
		relay, through, _ := relayed(t, b, 3)
		through.Ping(t.Context())
		relay.ResetLog()
		cut := relay.BlackHoleCurrent()
		wantTimeout(t, through.WithTimeout(shortly).Ping(t.Context()).Err())
		if n := relay.Count(Named("ping")); n != 0 {
			t.Fatalf("%d commands passed", n)
		}
		if err := through.Ping(t.Context()).Err(); err != nil { // on a new connection
			t.Fatal(err)
		}
		cut()
		if err := through.Ping(t.Context()).Err(); err != nil { // that one is not cut
			t.Fatal(err)
		}
	})
}

func TestRelay_BlackHoleSwallowsNewConnectionsUntilItsEnd(t *testing.T) {
	t.Parallel()
	Slow(t)
	Each(t, func(t *testing.T, b *Backend) {
		relay, through, _ := relayed(t, b, 3)
		relay.BlackHole(true)
		wantTimeout(t, through.WithTimeout(shortly).Ping(t.Context()).Err())
		relay.BlackHole(false)
		if err := through.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRelay_CountsConnections(t *testing.T) {
	Each(t, func(t *testing.T, b *Backend) {
		relay, through, _ := relayed(t, b, 3)
		through.Ping(t.Context())
		if relay.Conns() != 1 || relay.Accepted() != 1 {
			t.Fatalf("%d open, %d accepted; want 1, 1", relay.Conns(), relay.Accepted())
		}
		through.Close()
		poll(t, func() bool { return relay.Conns() == 0 })
	})
}

func TestRelay_ClosedLeavesNothingRunning(t *testing.T) {
	b := Mini(t)
	relay, through, _ := relayed(t, b, 3)
	rule := relay.Block(Named("ping"))
	var wg sync.WaitGroup
	wg.Go(func() {
		if through.Ping(t.Context()).Err() == nil {
			t.Error("a blocked command was answered")
		}
	})
	rule.Wait(t)
	relay.Close() // returns although a command is blocked; Main looks for goroutines
	relay.Close()
	wg.Wait()
	if relay.Refuse(false) == nil {
		t.Error("a closed relay accepts again")
	}
}
