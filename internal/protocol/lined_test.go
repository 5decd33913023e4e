package protocol

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/keys"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// linedBench is the protocol of a fair lock on its own.
type linedBench struct {
	*bench
	lined   *Lined
	on      *keys.Set
	terms   *Terms
	tickets uint64
}

func eachLinedBench(t *testing.T, fn func(b *linedBench)) {
	eachBench(t, func(t *testing.T, b *bench) {
		on := b.target(1)
		fn(&linedBench{bench: b, lined: NewLined(b.Plain, "p"), on: on, terms: termsOf()})
	})
}

// enqueue has field ask, and requires that it waits.
func (b *linedBench) enqueue(field string) {
	b.t.Helper()
	b.tickets++
	g, out := b.lined.Enqueue(b.t.Context(), once, b.on, field, b.terms, b.tickets)
	require.NoError(b.t, out.Err)
	require.False(b.t, g.Held)
}

// take has field take the lock, which is free.
func (b *linedBench) take(field string) {
	b.t.Helper()
	g, out := b.lined.Acquire(b.t.Context(), once, b.on, field, b.terms)
	require.NoError(b.t, out.Err)
	require.True(b.t, g.Held)
}

func (b *linedBench) release(field string) Released {
	b.t.Helper()
	r, out := b.lined.Release(b.t.Context(), once, b.on, field, []int{0})
	require.NoError(b.t, out.Err)
	return r
}

func (b *linedBench) poll(fields ...string) []EntryState {
	b.t.Helper()
	var waiters []Waiter
	for _, field := range fields {
		waiters = append(waiters, Waiter{Field: field, Terms: b.terms})
	}
	all, _, out := b.lined.Poll(b.t.Context(), once, b.on, waiters)
	require.NoError(b.t, out.Err)
	var states []EntryState
	for _, s := range all {
		states = append(states, s.State)
	}
	return states
}

func (b *linedBench) holder() string {
	b.t.Helper()
	for field := range b.look(b.on.Keys[0]).Hash {
		return field
	}
	return ""
}

// queue are those who wait, in order.
func (b *linedBench) queue() []string {
	b.t.Helper()
	fields, err := b.rdb.ZRange(b.t.Context(), keys.LineOf(b.on.Keys[0]).Queue, 0, -1).Result()
	require.NoError(b.t, err)
	return fields
}

// requireFree requires that nothing is left of the lock.
func (b *linedBench) requireFree() {
	b.t.Helper()
	require.Zero(b.t, b.rdb.Exists(b.t.Context(), b.on.Keys[0], keys.LineOf(b.on.Keys[0]).Queue, keys.LineOf(b.on.Keys[0]).Entries).Val())
}

func TestFair_ReleaseGrantsToTheFirstAndNotifiesItsProcessAlone(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		grants := b.rdb.Subscribe(b.t.Context(), keys.GrantsPrefix(b.on.Keys[0])+"p")
		defer grants.Close()
		all := b.rdb.Subscribe(b.t.Context(), b.on.Channels[0])
		defer all.Close()
		for _, s := range []interface {
			Receive(context.Context) (any, error)
		}{grants, all} {
			_, err := s.Receive(b.t.Context())
			require.NoError(b.t, err)
		}
		b.take(me)
		b.enqueue(you)
		b.enqueue(them)
		require.Equal(b.t, Released{Ours: true, Granted: true, Receivers: 1}, b.release(me))
		require.Equal(b.t, you, b.holder())
		require.Equal(b.t, "1 0", redistest.Receive(b.t, grants.Channel()).Payload)
		require.Equal(b.t, Released{Ours: true, Granted: true, Receivers: 1}, b.release(you))
		require.Equal(b.t, them, b.holder())
		require.Equal(b.t, "2 0", redistest.Receive(b.t, grants.Channel()).Payload)
		require.Equal(b.t, Released{Ours: true, Receivers: 1}, b.release(them))
		require.NoError(b.t, b.rdb.Publish(b.t.Context(), b.on.Channels[0], "the end").Err())
		require.Equal(b.t, "0", redistest.Receive(b.t, all.Channel()).Payload, "no one waits: any that listen may try")
		require.Equal(b.t, "the end", redistest.Receive(b.t, all.Channel()).Payload, "all were woken for one")
		b.requireFree()
	})
}

// Lua's string.format ends a text that is shorter than 100 bytes at a NUL.
func TestFair_GrantIsPublishedWhateverTheName(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.on = keysOf(b.t, rand.Text()[:8]+"\x00 %s\n\xff")
		grants := b.rdb.Subscribe(b.t.Context(), keys.GrantsPrefix(b.on.Keys[0])+"p")
		defer grants.Close()
		_, err := grants.Receive(b.t.Context())
		require.NoError(b.t, err)
		b.take(me)
		b.enqueue(you)
		require.Equal(b.t, Released{Ours: true, Granted: true, Receivers: 1}, b.release(me))
		require.Equal(b.t, "1 0", redistest.Receive(b.t, grants.Channel()).Payload)
		b.enqueue(them)
		b.enqueue("x:1") // behind another one, which has a way of its own
		require.Equal(b.t, Released{Ours: true, Granted: true, Receivers: 1}, b.release(you))
		require.Equal(b.t, "2 0", redistest.Receive(b.t, grants.Channel()).Payload)
		require.Equal(b.t, Released{Ours: true, Granted: true, Receivers: 1}, b.release(them))
		require.Equal(b.t, "3 0", redistest.Receive(b.t, grants.Channel()).Payload)
		b.release("x:1")
	})
}

func TestFair_RepeatedScriptFindsItsWorkDone(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.take(me)
		b.take(me)
		b.enqueue(you)
		b.enqueue(them)
		b.enqueue(you)
		require.Equal(b.t, []string{you, them}, b.queue(), "it still has its queue entry")
		require.Equal(b.t, []EntryState{EntryWaiting, EntryWaiting, EntryGranted, EntryGone}, b.poll(you, them, me, "x:1"))
		require.True(b.t, b.release(me).Ours)
		require.False(b.t, b.release(me).Ours)
		require.Equal(b.t, you, b.holder(), "the second copy has hit another owner")
		require.Equal(b.t, []EntryState{EntryGranted, EntryWaiting}, b.poll(you, them))
		require.False(b.t, b.release(them).Ours, "it has left the queue")
		require.Equal(b.t, []EntryState{EntryGone}, b.poll(them))
		require.True(b.t, b.release(you).Ours)
		b.requireFree()
	})
}

func TestFair_ExpiredEntryIsSkipped(t *testing.T) {
	t.Parallel()
	eachLinedBench(t, func(b *linedBench) {
		b.take(me)
		b.enqueue(you)
		b.enqueue(them)
		// Not by a short lease: the key of the line would end with it, if the second entry came late.
		_, rest, _ := strings.Cut(b.rdb.HGet(b.t.Context(), b.entries(), you).Val(), " ")
		b.rdb.HSet(b.t.Context(), b.entries(), you, fmt.Sprint(b.now()+100, " ", rest))
		throughout(b.t, 150*time.Millisecond, func() bool {
			return len(b.queue()) == 2
		}, "it is dropped when its turn comes")
		b.release(me)
		require.Equal(b.t, them, b.holder())
		require.Equal(b.t, []EntryState{EntryGone}, b.poll(you))
		b.release(them)
	})
}

// listen subscribes the process of the waiters until unsubscribe is called.
func (b *linedBench) listen() (unsubscribe func()) {
	b.t.Helper()
	channel := keys.GrantsPrefix(b.on.Keys[0]) + "p"
	grants := b.rdb.Subscribe(b.t.Context(), channel)
	_, err := grants.Receive(b.t.Context())
	require.NoError(b.t, err)
	return func() {
		require.NoError(b.t, grants.Close())
		require.Eventually(b.t, func() bool {
			return b.rdb.PubSubNumSub(b.t.Context(), channel).Val()[channel] == 0
		}, 5*time.Second, time.Millisecond)
	}
}

func TestFair_EntryOfAnUnsubscribedProcessIsSkippedUntilItPolls(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		unsubscribe := b.listen()
		b.take(me)
		b.enqueue(you)
		unsubscribe()
		process := b.lined
		b.lined = NewLined(b.Plain, "q")
		b.enqueue(them)
		b.lined = process
		b.release(me)
		require.Equal(b.t, them, b.holder(), "it has only just come, and need not listen yet")
		require.Empty(b.t, b.queue(), "no later release walks over it")
		b.release(them)
		require.Empty(b.t, b.holder(), "there is only one, which is passed over")
		b.take(me)
		require.Equal(b.t, []EntryState{EntryWaiting}, b.poll(you))
		b.enqueue(them)
		b.release(me)
		require.Equal(b.t, you, b.holder(), "it has said that it waits, and need not be subscribed")
		b.release(you)
		b.release(them)
		b.requireFree()
	})
}

func TestFair_EntriesOfAGoneProcessWaitAndKeepTheirOrder(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		unsubscribe := b.listen()
		b.take(me)
		b.enqueue(you)
		b.enqueue(them)
		unsubscribe()
		b.release(me)
		require.Empty(b.t, b.holder())
		require.Equal(b.t, []EntryState{EntryGranted, EntryWaiting}, b.poll(you, them))
		b.release(you)
		require.Equal(b.t, them, b.holder())
		b.release(them)
		b.requireFree()
	})
}

func TestFair_DisconnectedWaiterIsServedInTurnIfItPolls(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		unsubscribe := b.listen()
		b.take(me)
		b.enqueue(you)
		unsubscribe()
		require.Equal(b.t, []EntryState{EntryWaiting}, b.poll(you))
		b.release(me)
		require.Equal(b.t, you, b.holder(), "it has said that it waits, though it does not listen")
		b.release(you)
		b.requireFree()
	})
}

func TestFair_FirstWaiterIsServedIfALaterOneOfItsProcessIsAlive(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		unsubscribe := b.listen()
		b.take(me)
		b.enqueue(you)
		unsubscribe()
		b.release(me)
		require.Empty(b.t, b.holder(), "it is passed over")
		b.take(me)
		b.enqueue(them)
		b.release(me)
		require.Equal(b.t, you, b.holder(), "and is served before the one that came later")
		b.release(you)
		require.Equal(b.t, them, b.holder())
		b.release(them)
		b.requireFree()
	})
}

func TestFair_PollServesAnUnsubscribedProcess(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		unsubscribe := b.listen()
		b.take(me)
		b.enqueue(you)
		unsubscribe()
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.on.Keys[0]).Err())
		require.Equal(b.t, []EntryState{EntryGranted}, b.poll(you))
		b.release(you)
		b.requireFree()
	})
}

func TestFair_SubscribedPollerIsSkippedOnceItIsGone(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.take(me)
		b.enqueue(you)
		unsubscribe := b.listen()
		b.poll(you)
		unsubscribe()
		b.release(me)
		require.Empty(b.t, b.holder())
		b.release(you)
		b.requireFree()
	})
}

// Without the permission to count, or on a Cluster, where other nodes may have the listeners.
func TestFair_FirstIsServedWhereSubscribersCannotBeCounted(t *testing.T) {
	limited, full := asUser(t, "~*", "&*", "+@all", "-pubsub")
	on := full.target(1)
	b := &linedBench{bench: full, lined: NewLined(full.Plain, "p"), on: on, terms: termsOf()}
	unsubscribe := b.listen()
	for _, fencing := range []bool{false, true} { // by the quick way of the script, and by the other
		b.take(me)
		b.terms.Fencing = fencing
		b.enqueue(you)
		b.terms.Fencing = false
	}
	unsubscribe()
	r, out := NewLined(limited.Plain, "p").Release(t.Context(), once, on, me, []int{0})
	require.NoError(t, out.Err)
	require.True(t, r.Ours)
	require.Equal(t, you, b.holder())
}

func TestFair_GrantHasTheLeaseOfTheEntry(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.take(me)
		b.enqueue(you)
		b.release(me)
		require.InDelta(b.t, entryLeaseMax, b.ttl(b.on.Keys[0]), float64(2*time.Second))
		require.NoError(b.t, b.rdb.PExpire(b.t.Context(), b.on.Keys[0], time.Second).Err())
		b.poll(you)
		require.InDelta(b.t, entryLeaseMax, b.ttl(b.on.Keys[0]), float64(2*time.Second), "that a poll reports to it")
		k := keys.LineOf(b.on.Keys[0])
		require.Equal(b.t, -2*time.Nanosecond, b.rdb.PTTL(b.t.Context(), k.Queue).Val(), "an empty queue is no key")
		b.enqueue(them)
		for _, key := range []string{k.Queue, k.Entries} {
			require.InDelta(b.t, entryLeaseMax, b.ttl(key), float64(2*time.Second), "left alone it goes away")
		}
		b.release(them)
		b.release(you)
	})
}

func TestFair_OwnersOfAnyNameMayWait(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		names := []string{"u:job 17", "u:%s-%d", "u:\n\x00\xff", "u:1 2 3", "u:" + fmt.Sprint(int64(1<<53))}
		b.take(me)
		for _, name := range names {
			b.enqueue(name)
		}
		b.release(me)
		for _, name := range names {
			require.Equal(b.t, name, b.holder())
			b.release(name)
		}
		b.requireFree()
	})
}

// An undo of an earlier request of the same owner may still be on its way.
func TestFair_ReleaseRemovesTheOwnersEntry(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		for _, score := range []float64{0, 9e15} { // before and behind who waits
			b.take(me)
			b.enqueue(you)
			b.enqueue(them)
			k := keys.LineOf(b.on.Keys[0])
			require.NoError(b.t, b.rdb.ZAdd(b.t.Context(), k.Queue, redis.Z{Score: score, Member: me}).Err())
			require.NoError(b.t, b.rdb.HSet(b.t.Context(), k.Entries, me, "9999999999999 10000 -1 99 0 p").Err())
			require.True(b.t, b.release(me).Ours)
			require.Equal(b.t, you, b.holder())
			require.Equal(b.t, []string{them}, b.queue())
			require.NotContains(b.t, b.rdb.HGetAll(b.t.Context(), k.Entries).Val(), me)
			b.release(you)
			b.release(them)
			b.requireFree()
		}
	})
}

func TestFair_ReleaseServesNobodyWhileAnotherFieldIsThere(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		b.take(me)
		b.enqueue(you)
		require.NoError(b.t, b.rdb.HSet(b.t.Context(), b.on.Keys[0], them, 1).Err())
		require.True(b.t, b.release(me).Ours)
		require.Equal(b.t, them, b.holder())
		require.Equal(b.t, []EntryState{EntryWaiting}, b.poll(you))
		b.release(them)
		b.release(you)
	})
}

func TestFair_GrantThatCannotExpireIsTakenBack(t *testing.T) {
	limited, full := asUser(t, "~*", "&*", "+@all", "-pexpire")
	on := full.target(1)
	b := &linedBench{bench: full, lined: NewLined(full.Plain, "p"), on: on, terms: termsOf()}
	b.take(me)
	b.enqueue(you)
	all := b.rdb.Subscribe(t.Context(), on.Channels[0])
	defer all.Close()
	_, err := all.Receive(t.Context())
	require.NoError(t, err)

	r, out := NewLined(limited.Plain, "p").Release(t.Context(), once, on, me, []int{0})
	require.NoError(t, out.Err)
	require.Equal(t, Released{Ours: true, Receivers: 1}, r)
	require.Equal(t, absent, full.look(on.Keys[0]))
	require.Equal(t, "0", redistest.Receive(t, all.Channel()).Payload, "any that listen may try")
}

func TestFair_UnreadableEntryIsSkipped(t *testing.T) {
	eachLinedBench(t, func(b *linedBench) {
		for _, nonsense := range []string{"", "x", "1", "9999999999999 x y z 0 p", "9999999999999 10000 -1 1 3 p", "-1 10000 -1 1 0 p"} {
			b.take(me)
			b.enqueue(you)
			b.enqueue(them)
			require.NoError(b.t, b.rdb.HSet(b.t.Context(), keys.LineOf(b.on.Keys[0]).Entries, you, nonsense).Err())
			b.release(me)
			require.Equal(b.t, them, b.holder(), "%q", nonsense)
			b.release(them)
			b.requireFree()
		}
	})
}

// Whatever a server answers is an answer or an error, and never a panic.
func TestFair_ScriptsSurviveAnyReply(t *testing.T) {
	p, reply := hostile(t, usualTTL)
	on := keysOf(t, redistest.Key(t))
	f := NewLined(p, "p")
	calls := map[string]func() (bool, redisexec.Outcome){
		"acquire": func() (bool, redisexec.Outcome) {
			g, out := f.Acquire(context.Background(), once, on, me, termsOf())
			return g != Grant{}, out
		},
		"enqueue": func() (bool, redisexec.Outcome) {
			g, out := f.Enqueue(context.Background(), once, on, me, termsOf(), 1)
			return g != Grant{}, out
		},
		"poll": func() (bool, redisexec.Outcome) {
			all, g, out := f.Poll(context.Background(), once, on, []Waiter{{Field: me, Terms: termsOf()}, {Field: you, Terms: termsOf()}})
			return all != nil || g != Grant{}, out
		},
		"release": func() (bool, redisexec.Outcome) {
			r, out := f.Release(context.Background(), once, on, me, []int{0})
			return r.Ours, out
		},
	}
	anyway := []string{
		list(), list(7), list(0), list(-1), list(-5, 1), list(-1, 0), list(-1, 2), ":-7\r\n", "+OK\r\n", "$-1\r\n",
		list(0, bulk("x"), 0, 0, 0, 0), list(bulk("1"), 1),
	}
	// To a release these say whether the lock was ours.
	granting := []string{
		":7\r\n", list(0, -3, 1, bulk("x")), list(0, 5, 2, bulk("x")), list(0, 5, bulk("x"), 0, 0), list(0, 5, bulk("x"), 3, 0, 0, 0),
	}
	for name, call := range calls {
		nonsense := anyway
		if name != "release" {
			nonsense = append(nonsense[:len(nonsense):len(nonsense)], granting...)
		}
		for _, raw := range nonsense {
			reply(raw)
			answered, out := call()
			require.Error(t, out.Err, "%s: %q", name, raw)
			require.False(t, answered, "%s: %q", name, raw)
		}
	}
}
