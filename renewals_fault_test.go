package relock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/clock"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

func TestHoldsAreRenewedThoughRedisRefusesTheirBatch(t *testing.T) {
	t.Parallel()
	for name, refused := range redistest.BatchReplies {
		t.Run(name, func(t *testing.T) {
			onFleet(t, 4, func(t *testing.T, w *fleet) {
				id := w.c.ID()
				refusals := w.relay.ReplyWith(refused.Text, runsOf(protocol.RenewManyScript)).Always()
				w.together()
				refusals.Wait(t)
				w.requireRenewed(0, 1, 2, 3)
				alone, batches := w.sent()
				require.Equal(t, [2]int{1 + 3, 0}, [2]int{alone, batches}, "the relay has answered the batch")
				require.Len(t, w.events.of("renewed"), 4)
				require.Empty(t, w.events.of("renew failed"))
				require.Equal(t, !refused.Doubt, w.c.ID() == id)
			})
		})
	}
}

func TestAHoldWhoseKeyTheUserMayNotUseFailsAlone(t *testing.T) {
	t.Parallel()
	redistest.RequireServer(t)
	server := redistest.NewServer(t)
	admin := server.Client(t)
	for _, s := range allScripts {
		require.NoError(t, admin.ScriptLoad(t.Context(), s.Source).Err())
	}
	user := func(keys string) {
		require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "app", "on", ">secret", "resetkeys", keys, "allchannels", "+@all").Err())
	}
	user("~*")
	relay := redistest.NewRelay(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr, Username: "app", Password: "secret", ReadTimeout: fleetPatience})
	t.Cleanup(func() { _ = rdb.Close() })
	w := newFleetOn(t, rdb, relay, admin, kindNamed("plain"), 5)
	forbidden := w.locks[3].Name()
	user("~*-[0124]")
	id := w.c.ID()
	w.together()
	require.Equal(t, id, w.c.ID(), "nothing was executed that is not known")
	require.Len(t, w.events.of("renewed"), 4)
	failed := w.events.of("renew failed")
	require.Len(t, failed, 1)
	require.Equal(t, forbidden, failed[0].Name)
	require.ErrorContains(t, failed[0].Err, "NOPERM")
	require.LessOrEqual(t, ttlOf(admin, forbidden), worn)
	user("~*")
	w.holds[3].renew()
	w.requireRenewed(0, 1, 2, 3, 4)
	w.clocks.set(batchPause + time.Second)
	_, before := w.sent()
	w.together()
	_, after := w.sent()
	require.Greater(t, after, before, "batches are sent again")
	w.requireRenewed(0, 1, 2, 3, 4)
}

// Each hold tries again by itself, on a connection of its own.
func TestALostReplyToABatchLosesNoHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		t.Parallel()
		for name, lose := range map[string]func(*redistest.Relay, redistest.Match) *redistest.Rule{
			"silently": (*redistest.Relay).LoseReply, "and its connection cut": (*redistest.Relay).DropReply,
		} {
			t.Run(name, func(t *testing.T) {
				relay, rdb := relayedTo(t, b)
				events := &chronicle{}
				c := locksOn(t, rdb, WithTTL(4*time.Second), WithRenewInterval(slowly), WithHooks(events.hooks()))
				id := c.ID()
				lost := lose(relay, runsOf(protocol.RenewManyScript))
				var locks []*Mutex
				for i := range 20 {
					locks = append(locks, c.Mutex(redistest.Key(t), WithOwner("job-"+string(rune('a'+i)))))
					requireLocked(t, locks[i])
				}
				lost.Wait(t)
				eventually(t, "a renewal that failed", func() bool { return len(events.of("renew failed")) > 0 })
				require.NotEqual(t, id, c.ID(), "who knows what may still be executed")
				fails := func() (owners map[string]bool) {
					owners = map[string]bool{}
					for _, e := range events.of("renew failed") {
						owners[e.Owner] = true
					}
					return owners
				}
				eventually(t, "renewals of all", func() bool {
					renewed := map[string]bool{}
					for _, e := range events.since("renew failed", "renewed") {
						renewed[e.Owner] = true
					}
					for owner := range fails() {
						if !renewed[owner] {
							return false
						}
					}
					return true
				})
				for _, m := range locks {
					require.Equal(t, 1, m.HoldCount())
					requireUnlocked(t, m)
				}
				require.Empty(t, events.of("lost"))
			})
		}
	})
}

// since returns the events of a hook that came after the first one of another.
func (r *chronicle) since(first, hook string) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var events []Event
	begun := false
	for _, e := range r.events {
		begun = begun || e.hook == first
		if begun && e.hook == hook {
			events = append(events, e.Event)
		}
	}
	return events
}

func TestAnUnlockDoesNotWaitForTheBatchThatRenewsIt(t *testing.T) {
	onFleet(t, 2, func(t *testing.T, w *fleet) {
		late := w.relay.HoldBackSilently(runsOf(protocol.RenewManyScript))
		proceed, renewed := w.gather()
		proceed()
		late.Wait(t)
		m := w.locks[1]
		requireUnlocked(t, m)
		requireFree(t, w.direct, m.target.Keys...)

		next := w.c.Mutex(m.target.Keys[0], WithOwner("job-1"), WithTTL(worn), WithoutRenewal())
		requireLocked(t, next)
		reply, err := late.Deliver(t.Context())
		require.NoError(t, err)
		require.Equal(t, "*1\r\n:1\r\n", reply, "it is lost")
		require.LessOrEqual(t, ttlOf(w.direct, next.target.Keys[0]), worn, "it is another life")
		requireUnlocked(t, next)
		receives(t, renewed)
		w.relay.Cut() // or Close would wait for a time-out of that connection
		w.requireRenewed(0)
	})
}

func TestCloseDoesNotWaitForABatchUnderWay(t *testing.T) {
	onFleet(t, 4, func(t *testing.T, w *fleet) {
		late := w.relay.HoldBackSilently(runsOf(protocol.RenewManyScript))
		proceed, renewed := w.gather()
		proceed()
		late.Wait(t)
		closed := make(chan error, 1)
		go func() { closed <- w.c.Close() }()
		receives(t, renewed)
		w.relay.Cut() // or Close would wait for a time-out of that connection
		require.NoError(t, outcomeOf(t, closed))
		for _, m := range w.locks {
			requireFree(t, w.direct, m.target.Keys...)
		}
	})
}

// whileABatchGathers runs test in a bubble, in which a batch of all holds of plain locks but the first gathers,
// and is not sent before the first is answered, which proceed lets happen.
func whileABatchGathers(t *testing.T, n int, test func(t *testing.T, w *fleet, sent *atomic.Int64, proceed func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		defer m.Close()
		m.ClockTTL(true)
		rdb := redis.NewClient(redistest.MiniDialer(m))
		defer rdb.Close()
		w := &fleet{t: t, direct: rdb, events: &chronicle{}}
		w.c = locksOn(t, rdb, WithHooks(w.events.hooks()))
		defer w.c.Close()
		for i := range n {
			w.locks = append(w.locks, w.c.Mutex(fmt.Sprint("lock:", i), WithOwner(fmt.Sprint("job-", i)), WithTTL(fleetTTL)))
			requireLocked(t, w.locks[i])
			w.holds = append(w.holds, holdsOn(w.c.session, w.locks[i].Name())[0])
			require.NoError(t, rdb.PExpire(t.Context(), w.locks[i].Name(), worn).Err())
		}
		loadScripts(t, rdb)
		first, free := make(chan struct{}), make(chan struct{})
		begins := sync.OnceFunc(func() { close(first) })
		var sent atomic.Int64 // keys of others that were in batches
		// A command that is kept back keeps others of its connection back, too.
		m.Server().SetPreHook(func(_ *server.Peer, command string, args ...string) bool {
			switch {
			case command == "EVALSHA" && args[0] == protocol.RenewScript.Digest.(string):
				begins()
				<-free
			case command == "EVALSHA" && args[0] == protocol.RenewManyScript.Digest.(string):
				keys, _ := strconv.Atoi(args[1])
				sent.Add(int64(keys))
			}
			return false
		})
		var all sync.WaitGroup
		all.Go(w.holds[0].renew)
		<-first
		for _, h := range w.holds[1:] {
			all.Go(h.renew)
		}
		synctest.Wait() // no time has passed
		require.Zero(t, sent.Load())
		proceed := sync.OnceFunc(func() {
			close(free)
			all.Wait()
		})
		defer proceed()
		test(t, w, &sent, proceed)
	})
}

func TestAnUnlockTakesARenewalOutOfTheBatchThatGathers(t *testing.T) {
	whileABatchGathers(t, 4, func(t *testing.T, w *fleet, sent *atomic.Int64, proceed func()) {
		id := w.c.ID()
		unlocked := make(chan error, 1)
		go func() { unlocked <- w.locks[2].Unlock() }() // which may come through behind the first
		synctest.Wait()
		require.Equal(t, id, w.c.ID(), "nothing was sent")
		proceed()
		require.NoError(t, <-unlocked)
		require.EqualValues(t, 2, sent.Load())
		w.requireRenewed(0, 1, 3)
	})
}

func TestCloseDoesNotWaitForABatchThatGathers(t *testing.T) {
	whileABatchGathers(t, 4, func(t *testing.T, w *fleet, _ *atomic.Int64, proceed func()) {
		closed := make(chan error, 1)
		go func() { closed <- w.c.Close() }()
		synctest.Wait() // all have left it, or it is sent because the first has left
		proceed()
		require.NoError(t, <-closed)
		for _, m := range w.locks {
			requireFree(t, w.direct, m.Name())
		}
	})
}

// A batch is waited for as long as its most patient member waits: each leaves in its own time.
func TestAHoldIsLostInTimeThoughItsBatchIsUnderWay(t *testing.T) {
	onFleet(t, 4, func(t *testing.T, w *fleet) {
		rule := w.relay.Block(runsOf(protocol.RenewManyScript))
		short := w.holds[3]
		short.mu.Lock()
		short.lease.Shorten(w.clocks.now().After(time.Second))
		short.mu.Unlock()
		ctx := w.locks[3].Context(t.Context())
		proceed, renewed := w.gather()
		proceed()
		short.mu.Lock()
		short.replan() // which is what its own watchdog would have done
		short.mu.Unlock()
		receives(t, ctx.Done())
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		failed := w.events.of("renew failed")
		require.NotEmpty(t, failed)
		require.NotErrorIs(t, failed[0].Err, errNotRenewed, "it has tried once more before the end")
		rule.Release()
		receives(t, renewed)
	})
}

// What it asks for it asked for before it was executed, however late the answer is.
func TestTheLeasesOfABatchCountFromBeforeItWasSent(t *testing.T) {
	onFleet(t, 3, func(t *testing.T, w *fleet) {
		rule := w.relay.Block(runsOf(protocol.RenewManyScript))
		before := make([]clock.Instant, len(w.holds))
		for i, h := range w.holds {
			before[i] = h.lease.Renewed()
		}
		proceed, renewed := w.gather()
		proceed()
		rule.Wait(t)
		sent := w.clocks.now()
		throughout(t, 20*time.Millisecond, func() bool { return true }, "time to pass")
		rule.Release()
		receives(t, renewed)
		for i, h := range w.holds[1:] {
			require.Greater(t, h.lease.Renewed().Mono, before[i+1].Mono)
			require.LessOrEqual(t, h.lease.Renewed().Mono, sent.Mono)
			require.Equal(t, clock.Deadline(h.lease.Renewed(), fleetTTL), h.lease.Deadline())
		}
		w.requireRenewed(0, 1, 2)
	})
}

// Many holds that are renewed at once by a slow machine look like this to each of them.
func TestARenewalWaitsForItsTurnInAPipelineThatIsBusy(t *testing.T) {
	t.Parallel()
	redistest.NeedsPipelining(t)
	relay := redistest.NewRelay(t, redistest.NewServer(t).Addr)
	rdb, events := faultRedis(t, relay.Addr), &chronicle{}
	dawdle := redisexec.NewScript("return 1") // of no effect
	for _, s := range []*redisexec.Script{dawdle, protocol.RenewScript} {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source).Err())
	}
	c := locksOn(t, rdb, WithTTL(16*time.Second), WithHooks(events.hooks()))
	m := c.Mutex(redistest.Key(t), WithRenewInterval(500*time.Millisecond))
	requireLocked(t, m)
	relay.Delay(120*time.Millisecond, redistest.Script(dawdle.Source)).Always() // and all that follow

	var busy sync.WaitGroup
	defer busy.Wait()
	for range 30 { // together longer than a command is usually waited for
		busy.Go(func() {
			e := redisexec.CallOptions{Attempts: 1, Patience: time.Minute}
			_, _ = c.session.execs[0].Run(context.WithoutCancel(t.Context()), e, dawdle, []any{m.Name()})
		})
	}
	eventually(t, "a renewal in a busy pipeline", func() bool {
		return slices.ContainsFunc(events.of("renewed"), func(e Event) bool { return e.Elapsed > c.session.patience })
	})
	require.Empty(t, events.of("renew failed"), "a second copy would have followed")
	requireUnlocked(t, m)
}
