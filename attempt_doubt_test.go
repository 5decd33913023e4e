package relock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/lockerr"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
)

// What an error means for a waiter, and what is undone after it.

// waitsAlready has h wait for its key, which another client has, and ask again.
func (b *trial) waitsAlready(h *asker, ctx context.Context) <-chan result {
	b.t.Helper()
	ended := h.locks(ctx)
	b.taken(h, -1)
	time.Sleep(4 * time.Second) // its safety poll
	b.asks(h)
	return ended
}

// tryAgain is an error of Redis that passes when the slot has moved.
type tryAgain struct{}

func (tryAgain) Error() string { return "TRYAGAIN Multiple keys request during rehashing of slot" }
func (tryAgain) RedisError()   {}

// The table of which error ends an attempt at once.
func TestAttempt_ErrorEndsItUnlessItMayPassWhileWaiting(t *testing.T) {
	type begins = func(b *trial, h *asker) <-chan result
	newcomer := func(b *trial, h *asker) <-chan result { return h.locks(b.t.Context()) }
	waiter := func(b *trial, h *asker) <-chan result { return b.waitsAlready(h, b.t.Context()) }
	try := func(_ *trial, h *asker) <-chan result { return h.tries() }
	for name, c := range map[string]struct {
		begins begins
		out    redisexec.Outcome
		ends   bool
	}{
		"a waiter, and Redis does not answer":     {waiter, redisexec.Outcome{Err: errMissed}, false},
		"a waiter, and Redis refuses it for good": {waiter, redisexec.Outcome{Err: errMissed, Permanent: true}, true},
		"one that has just come":                  {newcomer, redisexec.Outcome{Err: errMissed}, true},
		"one that has just come, as a slot moves": {newcomer, redisexec.Outcome{Err: tryAgain{}}, false},
		"a TryLock":                                {try, redisexec.Outcome{Err: errMissed}, true},
		"a TryLock, as a slot moves":               {try, redisexec.Outcome{Err: tryAgain{}}, true},
		"a waiter whose replicas are out of reach": {waiter, redisexec.Outcome{Err: lockerr.ErrNotReplicated}, false},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "key")
				ended := c.begins(b, h)
				b.fails(h, c.out)
				if c.ends {
					b.gets(ended, false, c.out.Err)
					h.nothingLeft()
					return
				}
				b.goesOn(ended)
				b.sleeps() // a pause comes first
				time.Sleep(16 * time.Millisecond)
				b.granted(h)
				b.gets(ended, true)
			})
		})
	}
}

func TestAttempt_PausesGrowAfterConsecutiveErrors(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := b.waitsAlready(h, b.t.Context())
		for _, most := range []time.Duration{16, 32, 64, 128} {
			most *= time.Millisecond
			b.fails(h, redisexec.Outcome{})
			time.Sleep(most/2 - 1)
			b.sleeps()
			time.Sleep(most/2 + 1)
		}
		b.taken(h, -1) // Redis is back
		time.Sleep(4 * time.Second)
		b.fails(h, redisexec.Outcome{})
		time.Sleep(16 * time.Millisecond)
		b.granted(h)
		b.gets(ended, true)
	})
}

// All that waited through an outage of a TTL get its error together; one that came later waits on.
func TestAttempt_OutageOfOneTTLEndsEveryWaitThatSpansIt(t *testing.T) {
	begin(t, func(b *trial) {
		first, second, late := b.wants("1", "key"), b.wants("2", "key"), b.wants("3", "key")
		ofFirst := b.waitsAlready(first, b.t.Context())
		ofSecond := second.locks(b.t.Context())
		began := b.session.now()
		b.fails(first, redisexec.Outcome{})
		time.Sleep(time.Second)
		late.started = b.session.now()
		ofLate := late.locks(b.t.Context())
		b.fails(first, redisexec.Outcome{})
		time.Sleep(trialTTL - time.Second - 1)
		b.goesOn(ofFirst)
		b.fails(first, redisexec.Outcome{})
		b.goesOn(ofFirst)
		time.Sleep(time.Second)
		require.GreaterOrEqual(t, b.session.now().Since(began), trialTTL)
		b.fails(first, redisexec.Outcome{})
		for _, ended := range []<-chan result{ofFirst, ofSecond} {
			r := <-ended
			require.False(t, r.granted)
			require.ErrorIs(t, r.err, errMissed)
			require.ErrorContains(t, r.err, "requests to Redis have been failing for 1")
		}
		b.goesOn(ofLate)
		b.granted(late)
		b.gets(ofLate, true)
	})
}

// A copy of the request may be executed at any time.
func TestAttempt_UndoesAnUncertainRequestBeforeTheNext(t *testing.T) {
	for name, unobserved := range map[string]bool{"that a waiter may have seen": false, "that no waiter can have seen": true} {
		t.Run(name, func(t *testing.T) {
			begin(t, func(b *trial) {
				h := b.wants("me", "key")
				ended := b.waitsAlready(h, b.t.Context())
				first := b.fails(h, redisexec.Outcome{Ambiguous: true, Unobserved: unobserved})
				h.undoes(undone{first, trialTTL, unobserved})
				time.Sleep(16 * time.Millisecond)
				require.NotEqual(t, first, b.granted(h), "another name")
				b.gets(ended, true)
				h.undoes(undone{first, trialTTL, unobserved})
			})
		})
	}
}

func TestAttempt_UndoesAnUncertainRefusal(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := h.tries()
		field := b.answers(h, answer{protocol.Grant{Holder: "other:1", TTL: time.Second}, redisexec.Outcome{Ambiguous: true}})
		b.gets(ended, false)
		h.nothingLeft(undone{field, trialTTL, false})
		require.False(t, b.session.identities.Current().Begins(field))
	})
}

func TestAttempt_GrantWithAnUncertainCopyRetiresItsName(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := h.locks(b.t.Context())
		field := b.answers(h, answer{protocol.Grant{Held: true}, redisexec.Outcome{Ambiguous: true}})
		b.gets(ended, true)
		require.Equal(t, field, h.name.Field)
		h.undoes()
		require.False(t, b.session.identities.Current().Begins(field), "its next hold has another")
	})
}

func TestAttempt_EndOfContextDuringARequestLeavesNothing(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ctx, stop := context.WithCancel(b.t.Context())
		ended := b.waitsAlready(h, ctx)
		field := b.asks(h).field
		stop()
		b.gets(ended, false, context.Canceled)
		h.nothingLeft(undone{field, trialTTL, false})
		require.False(t, b.session.identities.Current().Begins(field))
	})
}

// The last word of Redis stays readable.
func TestAttempt_ContextThatEndsAsARequestFailsIsTheReason(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ctx, stop := context.WithCancel(b.t.Context())
		h.onAnswer = stop
		ended := h.locks(ctx)
		b.fails(h, redisexec.Outcome{})
		require.EqualError(t, b.gets(ended, false, context.Canceled, errMissed), "context canceled; last attempt: connection reset")
		h.nothingLeft()
	})
}

func TestAttempt_AfterCloseEveryErrorIsErrClosed(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := h.locks(b.t.Context())
		b.asks(h)
		close(b.session.closing)
		b.goesOn(ended) // the answer is still waited for
		b.fails(h, redisexec.Outcome{})
		require.Equal(t, lockerr.ErrClosed, b.gets(ended, false, lockerr.ErrClosed))
		h.nothingLeft()
	})
}

// A grant that is past its deadline is no outage: Redis did answer.
func TestAttempt_GrantThatComesTooLateIsATransientFailure(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		h.late = true
		ended := h.locks(b.t.Context())
		field := b.granted(h)
		b.goesOn(ended)
		h.undoes(undone{field, trialTTL, false})
		time.Sleep(16 * time.Millisecond)
		b.asks(h)
		h.late = false
		b.granted(h)
		b.gets(ended, true)
	})
}

func TestTryLock_GrantThatComesTooLateIsItsError(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		h.late = true
		ended := h.tries()
		field := b.granted(h)
		b.gets(ended, false, errLate)
		h.nothingLeft(undone{field, trialTTL, false})
	})
}

// A failover could forget it.
func TestAttempt_UndoesAGrantThatTooFewReplicasConfirm(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := b.waitsAlready(h, b.t.Context())
		field := b.answers(h, answer{protocol.Grant{Held: true}, redisexec.Outcome{Unconfirmed: lockerr.ErrNotReplicated}})
		b.gets(ended, false, lockerr.ErrNotReplicated)
		h.nothingLeft(undone{field, trialTTL, false})
		require.False(t, b.session.identities.Current().Begins(field))
	})
}

func TestTryLock_TriesAgainAfterSplitVotes(t *testing.T) {
	split := answer{grant: protocol.Grant{Split: true, TTL: -1}}
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := h.tries()
		for n := range trySplits {
			b.answers(h, split)
			b.goesOn(ended)
			time.Sleep(4 * time.Millisecond << n)
		}
		b.answers(h, split)
		b.gets(ended, false)
		h.nothingLeft()
	})
}

func TestTryLock_MayGetTheLockAfterASplitVote(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := h.tries()
		b.answers(h, answer{grant: protocol.Grant{Split: true, TTL: -1}})
		time.Sleep(4 * time.Millisecond)
		b.granted(h)
		b.gets(ended, true)
	})
}

// The first to come back wins, whose votes the others' are no longer in the way of.
func TestAttempt_WaiterTriesSoonAgainAfterASplitVote(t *testing.T) {
	begin(t, func(b *trial) {
		h := b.wants("me", "key")
		ended := h.locks(b.t.Context())
		for _, most := range []time.Duration{4, 8, 16, 32, 64, 128, 256, 256} {
			b.answers(h, answer{grant: protocol.Grant{Split: true, TTL: -1}})
			b.goesOn(ended)
			time.Sleep(most * time.Millisecond)
		}
		b.granted(h)
		b.gets(ended, true)
	})
}
