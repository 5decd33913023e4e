package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	. "github.com/relock-go/relock/internal/redistest"
)

// shortly is how long to wait for an answer that does not come. A client for a command that is
// answered waits for longer than any machine stalls.
const shortly = 500 * time.Millisecond

// relayed returns a relay to b, a client through it that never resends, and a client
// beside it.
func relayed(t *testing.T, b *Backend, protocol int) (relay *Relay, through, direct *redis.Client) {
	t.Helper()
	relay = NewRelay(t, b.Addr)
	through = redis.NewClient(Options(relay.Addr, func(o *redis.Options) {
		o.Protocol, o.MaxRetries, o.DialerRetries, o.ReadTimeout = protocol, -1, 1, 20*time.Second
	}))
	t.Cleanup(func() { through.Close() })
	return relay, through, b.Client(t)
}

// eachProtocol runs fn against both backends with RESP2 and RESP3.
func eachProtocol(t *testing.T, fn func(t *testing.T, relay *Relay, through, direct *redis.Client)) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
			Each(t, func(t *testing.T, b *Backend) {
				relay, through, direct := relayed(t, b, protocol)
				fn(t, relay, through, direct)
			})
		})
	}
}

func wantValue(t *testing.T, rdb *redis.Client, key, want string) {
	t.Helper()
	got, err := rdb.Get(t.Context(), key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	if got != want {
		t.Fatalf("value of %s is %q, want %q", key, got, want)
	}
}

func wantTimeout(t *testing.T, err error) {
	t.Helper()
	if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("error is %v, want a timeout", err)
	}
}

func TestRelay_DroppedReplyWasExecutedAndShowsEOF(t *testing.T) {
	eachProtocol(t, func(t *testing.T, relay *Relay, through, direct *redis.Client) {
		key := Key(t)
		rule := relay.DropReply(Named("incr").And(With(key)))
		if err := through.Incr(t.Context(), key).Err(); !errors.Is(err, io.EOF) {
			t.Fatalf("error is %v, want EOF", err)
		}
		rule.Wait(t)
		wantValue(t, direct, key, "1")
		if n := through.Incr(t.Context(), key).Val(); n != 2 {
			t.Fatalf("the next command gave %d, want 2: the rule is used up", n)
		}
		if n := relay.Count(Named("INCR")); n != 2 {
			t.Fatalf("%d commands counted, want 2", n)
		}
	})
}

func TestRelay_LostReplyWasExecutedAndTimesOut(t *testing.T) {
	t.Parallel()
	Slow(t)
	eachProtocol(t, func(t *testing.T, relay *Relay, through, direct *redis.Client) {
		key := Key(t)
		through.Ping(t.Context()) // connect first: that takes the time it takes
		rule := relay.LoseReply(Named("incr"))
		wantTimeout(t, through.WithTimeout(shortly).Incr(t.Context(), key).Err())
		rule.Wait(t)
		wantValue(t, direct, key, "1")
	})
}

func TestRelay_HeldBackCommandIsExecutedOnDelivery(t *testing.T) {
	eachProtocol(t, func(t *testing.T, relay *Relay, through, direct *redis.Client) {
		key := Key(t)
		held := relay.HoldBack(Named("set"))
		if err := through.Set(t.Context(), key, "late", 0).Err(); !errors.Is(err, io.EOF) {
			t.Fatalf("error is %v, want EOF", err)
		}
		held.Wait(t)
		wantValue(t, direct, key, "")
		if err := through.Set(t.Context(), key, "early", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if n := relay.Count(Named("SET")); n != 1 {
			t.Fatalf("%d SETs forwarded before the delivery, want 1", n)
		}
		reply, err := held.Deliver(t.Context())
		if reply != "+OK\r\n" || err != nil {
			t.Fatalf("delivery gave %q, %v", reply, err)
		}
		wantValue(t, direct, key, "late")
	})
}

func TestRelay_SilentlyHeldBackCommandTimesOut(t *testing.T) {
	t.Parallel()
	Slow(t)
	eachProtocol(t, func(t *testing.T, relay *Relay, through, direct *redis.Client) {
		key := Key(t)
		through.Ping(t.Context()) // connect first
		held := relay.HoldBackSilently(Named("incr"))
		wantTimeout(t, through.WithTimeout(shortly).Incr(t.Context(), key).Err())
		wantValue(t, direct, key, "")
		if reply, err := held.Deliver(t.Context()); reply != ":1\r\n" || err != nil {
			t.Fatalf("delivery gave %q, %v", reply, err)
		}
	})
}

func TestRelay_DeliverOfNothingEndsWithItsContext(t *testing.T) {
	held := NewRelay(t, Mini(t).Addr).HoldBack(Any)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := held.Deliver(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("error is %v", err)
	}
}

func TestRelay_BlockedCommandIsExecutedAfterReleaseWithoutItsClient(t *testing.T) {
	t.Parallel()
	Slow(t)
	eachProtocol(t, func(t *testing.T, relay *Relay, through, direct *redis.Client) {
		key := Key(t)
		through.Ping(t.Context()) // connect first
		rule := relay.Block(Named("incr"))
		wantTimeout(t, through.WithTimeout(shortly).Incr(t.Context(), key).Err())
		wantValue(t, direct, key, "")
		rule.Release()
		poll(t, func() bool { return direct.Get(t.Context(), key).Val() == "1" })
	})
}

func poll(t *testing.T, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("waited without success")
		}
	}
}

func TestRelay_DelayHoldsUpOneConnectionAlone(t *testing.T) {
	t.Parallel()
	Slow(t)
	Each(t, func(t *testing.T, b *Backend) {
		relay, through, direct := relayed(t, b, 3)
		// A stall of the machine looks the same, but does not last for ever longer delays.
		for delay := shortly; !overtakesADelay(t, delay, relay, through, direct); delay *= 2 {
			if delay > 5*time.Second {
				t.Fatalf("a delay of %v held up another connection, too", delay)
			}
		}
	})
}

// overtakesADelay reports whether a command on a connection of its own was answered before the
// delay of another one was over. The order is to be right then, the delay always.
func overtakesADelay(t *testing.T, delay time.Duration, relay *Relay, through, direct *redis.Client) bool {
	t.Helper()
	key := Key(t)
	rule := relay.Delay(delay, Named("append").And(With("a")))
	start := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		pipe := through.Pipeline()
		pipe.Append(t.Context(), key, "a")
		pipe.Append(t.Context(), key, "b")
		pipe.Exec(t.Context())
	})
	rule.Wait(t)
	if err := through.Append(t.Context(), key, "c").Err(); err != nil {
		t.Error(err)
	}
	inTime := time.Since(start) < delay // which began later
	wg.Wait()
	if took := time.Since(start); took < delay {
		t.Fatalf("took %v, the delay is %v", took, delay)
	}
	if inTime {
		wantValue(t, direct, key, "cab")
	}
	return inTime
}

func TestRelay_HooksRunBeforeExecutionAndBeforeTheReply(t *testing.T) {
	eachProtocol(t, func(t *testing.T, relay *Relay, through, direct *redis.Client) {
		key := Key(t)
		relay.Before(Named("incr"), func(Command) { direct.Set(t.Context(), key, 41, 0) })
		var seen string
		after := relay.After(Named("incr"), func(c Command, reply string) {
			seen = fmt.Sprint(c.Name(), c.Arg(1), strings.TrimSpace(reply))
			direct.Set(t.Context(), key, "changed", 0)
		})
		if n := through.Incr(t.Context(), key).Val(); n != 42 {
			t.Fatalf("reply is %d, want 42", n)
		}
		<-after.Caught()
		if want := "INCR" + key + ":42"; seen != want {
			t.Fatalf("hook saw %q, want %q", seen, want)
		}
		wantValue(t, direct, key, "changed")
	})
}

func TestRelay_MadeUpReplyComesInTurnWithoutTheServer(t *testing.T) {
	eachProtocol(t, func(t *testing.T, relay *Relay, through, direct *redis.Client) {
		key := Key(t)
		relay.ReplyWith("-LOADING not yet\r\n", Named("incr")).Times(2)
		pipe := through.Pipeline()
		first, a, second, b := pipe.Append(t.Context(), key, "1"), pipe.Incr(t.Context(), key),
			pipe.Append(t.Context(), key, "2"), pipe.Incr(t.Context(), key)
		pipe.Exec(t.Context())
		if first.Val() != 1 || second.Val() != 2 {
			t.Fatalf("replies are %v and %v", first, second)
		}
		for _, cmd := range []*redis.IntCmd{a, b} {
			if !redis.HasErrorPrefix(cmd.Err(), "LOADING") {
				t.Fatalf("error is %v", cmd.Err())
			}
		}
		wantValue(t, direct, key, "12")
	})
}

func TestRelay_PipelinedCommandsPairWithReplies(t *testing.T) {
	eachProtocol(t, func(t *testing.T, relay *Relay, through, direct *redis.Client) {
		key := Key(t)
		direct.HSet(t.Context(), key+"h", "field", "value") // a map in RESP3
		var mu sync.Mutex
		got := map[string]string{}
		relay.After(Any, func(c Command, reply string) {
			mu.Lock()
			defer mu.Unlock()
			got[c.Name()] = reply
		}).Always()
		pipe := through.Pipeline()
		pipe.Set(t.Context(), key, strings.Repeat("x\r\n", 10000), 0)
		pipe.StrLen(t.Context(), key)
		pipe.Get(t.Context(), key)
		pipe.HGetAll(t.Context(), key+"h")
		pipe.Eval(t.Context(), "return {1, {2, false}, 'three'}", nil)
		pipe.Echo(t.Context(), "end")
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for name, want := range map[string]string{
			"SET": "+OK", "STRLEN": ":30000", "GET": "$30000", "EVAL": "*3", "ECHO": "$3",
		} {
			if !strings.HasPrefix(got[name], want+"\r\n") {
				t.Errorf("reply to %s is %.20q, want %q", name, got[name], want)
			}
		}
		if !strings.Contains(got["HGETALL"], "field") {
			t.Errorf("reply to HGETALL is %q", got["HGETALL"])
		}
	})
}

func TestRelay_DroppedReplyInAPipelineLetsEarlierOnesThrough(t *testing.T) {
	eachProtocol(t, func(t *testing.T, relay *Relay, through, direct *redis.Client) {
		key := Key(t)
		through.Ping(t.Context()) // connect first: set-up commands are no part of this
		relay.DropReply(Named("incr"))
		pipe := through.Pipeline()
		first, dropped := pipe.Append(t.Context(), key, "1"), pipe.Incr(t.Context(), key)
		pipe.Exec(t.Context())
		if first.Val() != 1 || !errors.Is(dropped.Err(), io.EOF) {
			t.Fatalf("results are %v and %v", first, dropped)
		}
		wantValue(t, direct, key, "2")
	})
}

func TestRelay_RulesApplyInOrderAndOnce(t *testing.T) {
	Each(t, func(t *testing.T, b *Backend) {
		relay, through, _ := relayed(t, b, 3)
		relay.ReplyWith("-ONE 1\r\n", Named("ping"))
		relay.ReplyWith("-TWO 2\r\n", Named("ping")).Times(2)
		removed := relay.ReplyWith("-THREE 3\r\n", Any).Always()
		removed.Remove()
		var got []string
		for range 4 {
			got = append(got, fmt.Sprint(through.Ping(t.Context()).Err()))
		}
		if want := "ONE 1|TWO 2|TWO 2|<nil>"; strings.Join(got, "|") != want {
			t.Fatalf("got %q, want %s", got, want)
		}
	})
}

func TestRelay_SubscribersMessagesPassAndCommandsStillPair(t *testing.T) {
	eachProtocol(t, func(t *testing.T, relay *Relay, through, direct *redis.Client) {
		one, two := Key(t), Key(t)
		ps := through.Subscribe(t.Context(), one, two)
		defer ps.Close()
		receive := func() string {
			msg, err := ps.ReceiveTimeout(t.Context(), 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(msg)
		}
		for _, want := range []string{"subscribe: " + one, "subscribe: " + two} {
			if got := receive(); got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
		// A message comes in between PING and its reply, and is not taken for it.
		pinged := relay.Before(Named("ping"), func(Command) { direct.Publish(t.Context(), two, "hello") })
		var pong string
		ponged := relay.After(Named("ping"), func(_ Command, reply string) { pong = reply })
		ps.Ping(t.Context(), "payload")
		// miniredis publishes in the background: there the message may come last.
		got := []string{receive(), receive()}
		slices.Sort(got)
		if want := []string{fmt.Sprintf("Message<%s: hello>", two), "Pong<payload>"}; !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		pinged.Wait(t)
		ponged.Wait(t)
		if !strings.Contains(pong, "payload") {
			t.Fatalf("PING was paired with %q", pong)
		}
	})
}

func TestRelay_ConfirmationOfASubscriptionCanBeLost(t *testing.T) {
	eachProtocol(t, func(t *testing.T, relay *Relay, through, direct *redis.Client) {
		channel := Key(t)
		rule := relay.LoseReply(Named("subscribe"))
		ps := through.Subscribe(t.Context(), channel)
		defer ps.Close()
		rule.Wait(t)
		if n := direct.PubSubNumSub(t.Context(), channel).Val()[channel]; n != 1 {
			t.Fatalf("%d subscribers, want 1", n)
		}
		_, err := ps.ReceiveTimeout(t.Context(), 50*time.Millisecond)
		wantTimeout(t, err)
	})
}

func TestMatch_ScriptCoversBothWaysToRunIt(t *testing.T) {
	Each(t, func(t *testing.T, b *Backend) {
		relay, through, direct := relayed(t, b, 3)
		source := "return '" + Key(t) + "'"
		script := redis.NewScript(source)
		for range 3 {
			if err := script.Run(t.Context(), through, nil).Err(); err != nil {
				t.Fatal(err)
			}
		}
		direct.ScriptExists(t.Context(), script.Hash())
		if forwarded, ran := relay.Count(Script(source)), relay.Executed(Script(source)); forwarded != 4 || ran != 3 {
			t.Fatalf("%d forwarded, %d executed; want 4 (one EVALSHA without effect) and 3", forwarded, ran)
		}
		relay.ResetLog()
		if n := len(relay.Log()); n != 0 {
			t.Fatalf("%d entries left", n)
		}
	})
}
