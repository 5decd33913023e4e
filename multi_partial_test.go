package relock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// The hand-over finds that one key is gone, and changes nothing. The other one is not to be left to its lease.
func TestMultiOverlap_UnlockThatFindsOneNameGoneFreesTheOther(t *testing.T) {
	eachPartly(t, func(b *partly) {
		me, you := locktest.NewActor(b.t), locktest.NewActor(b.t)
		me.Locks(b.t, b.both())
		followed := you.Lock(b.t.Context(), b.both())
		AwaitWaiters(b.t, b.c, b.names[1], 1)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[0]).Err())
		require.ErrorIs(b.t, me.Call(b.both().Unlock), ErrLost)
		require.NoError(b.t, locktest.OutcomeOf(b.t, followed))
		you.Unlocks(b.t, b.both())
		locktest.RequireLocked(b.t, b.rivalOfTwo)
		locktest.RequireUnlocked(b.t, b.rivalOfTwo)
	})
}

// The first copy of the hand-over is lost, on the way or on the way back. The second one finds that one key is gone.
func TestMultiOverlap_UnansweredHandOverThatFindsOneNameGoneFreesTheOther(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(relay *redistest.Relay, match redistest.Match, del func()){
		"not executed": func(relay *redistest.Relay, match redistest.Match, del func()) {
			relay.HoldBack(match)
			del()
		},
		"executed": func(relay *redistest.Relay, match redistest.Match, del func()) {
			relay.After(match, func(redistest.Command, string) { del() })
			relay.DropReply(match)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachPartly(t, func(b *partly) {
				me, you := locktest.NewActor(b.t), locktest.NewActor(b.t)
				me.Locks(b.t, b.both())
				followed := you.Lock(b.t.Context(), b.both())
				AwaitWaiters(b.t, b.c, b.names[1], 1)
				lose(b.relay, locktest.RunsOf(protocol.RenameScript), func() {
					require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[0]).Err())
				})
				require.NoError(b.t, me.Call(b.both().Unlock), "its outcome is in doubt")
				require.NoError(b.t, locktest.OutcomeOf(b.t, followed))
				you.Unlocks(b.t, b.both())
				locktest.RequireLocked(b.t, b.rivalOfTwo)
				locktest.RequireUnlocked(b.t, b.rivalOfTwo)
			}, WithTTL(time.Minute))
		})
	}
}

func TestMultiOverlap_MinHoldKeepsAPart(t *testing.T) {
	const minHold = 600 * time.Millisecond
	eachPartly(t, func(b *partly) {
		me, you, both := locktest.NewActor(b.t), locktest.NewActor(b.t), b.both(WithMinHold(minHold))
		earliest := time.Now()
		me.Locks(b.t, both)
		me.Locks(b.t, b.one())
		me.Unlocks(b.t, both)
		require.Equal(b.t, 1, levelsOf(me, b.one()))
		require.False(b.t, you.Tries(b.t, b.rivalOfTwo))
		you.Locks(b.t, b.rivalOfTwo)
		require.GreaterOrEqual(b.t, time.Since(earliest), minHold)
		require.Equal(b.t, 1, levelsOf(me, b.one()))
		you.Unlocks(b.t, b.rivalOfTwo)
		me.Unlocks(b.t, b.one())
		redistest.Eventually(b.t, "free", func() bool { return b.rdb.Exists(b.t.Context(), b.names...).Val() == 0 })
	})
}

func TestMultiOverlap_LossOfANameKeepsNoMinHold(t *testing.T) {
	eachPartly(t, func(b *partly) {
		me, you, both := locktest.NewActor(b.t), locktest.NewActor(b.t), b.both(WithMinHold(time.Hour))
		me.Locks(b.t, both)
		require.NoError(b.t, b.rdb.Del(b.t.Context(), b.names[0]).Err())
		require.ErrorIs(b.t, me.Call(both.Unlock), ErrLost)
		redistest.Eventually(b.t, "the second name", func() bool { return you.Tries(b.t, b.rivalOfTwo) })
		you.Unlocks(b.t, b.rivalOfTwo)
	})
}

func TestMultiOverlap_FailedLockKeepsNoMinHold(t *testing.T) {
	eachPartly(t, func(b *partly) {
		locktest.HeldByAnother(b.t, b.rdb, b.names[1], time.Minute)
		me, you := locktest.NewActor(b.t), locktest.NewActor(b.t)
		me.Locks(b.t, b.one())
		require.False(b.t, me.Tries(b.t, b.both(WithMinHold(time.Hour))))
		me.Unlocks(b.t, b.one())
		other := b.rival.Mutex(b.names[0])
		require.True(b.t, you.Tries(b.t, other))
		you.Unlocks(b.t, other)
	})
}

func TestMulti_LostReplyToAPartialUnlockLosesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, b *redistest.Backend) {
		relay := redistest.NewRelay(t, b.Addr)
		c := LocksOn(t, redistest.NewClient(t, relay.Addr))
		one, two := redistest.Key(t)+"{x}", redistest.Key(t)+"{y}"
		both, single := c.MultiMutex([]string{one, two}), c.Mutex(two)
		require.NoError(t, both.Lock(t.Context()))
		require.NoError(t, single.Lock(t.Context()))
		require.NoError(t, b.Client(t).ScriptLoad(t.Context(), protocol.ReleaseScript.Source()).Err())

		drop := relay.DropReply(locktest.RunsOf(protocol.ReleaseScript))
		require.NoError(t, both.Unlock())
		drop.Wait(t)
		require.Equal(t, 1, single.HoldCount())
		require.NoError(t, single.Context(t.Context()).Err())
		require.NoError(t, single.Unlock())
		require.Zero(t, b.Client(t).Exists(t.Context(), one, two).Val())
	})
}

func TestMulti_PartialUnlockMayOutliveItsHold(t *testing.T) {
	b := redistest.Mini(t)
	relay := redistest.NewRelay(t, b.Addr)
	c := LocksOn(t, redistest.NewClient(t, relay.Addr))
	one, two := redistest.Key(t)+"1", redistest.Key(t)+"2"
	both := c.MultiMutex([]string{one, two}, WithOwner("job"))
	single := c.Mutex(two, WithOwner("job"))
	require.NoError(t, both.Lock(t.Context()))
	require.NoError(t, single.Lock(t.Context()))

	answer := relay.Block(locktest.RunsOf(protocol.ReleaseScript))
	unlocked := make(chan error)
	go func() { unlocked <- both.Unlock() }()
	answer.Wait(t)
	holdOf(single).lose(errForced)
	require.ErrorIs(t, single.Unlock(), ErrLost)
	answer.Release()
	<-unlocked // it panicked here
	require.Zero(t, both.HoldCount())
}

func TestMulti_LevelIsNeverAddedIfNoNameIsLeft(t *testing.T) {
	b := redistest.Mini(t)
	c := LocksOn(t, b.Client(t))
	one, two := redistest.Key(t)+"1", redistest.Key(t)+"2"
	both := c.MultiMutex([]string{one, two}, WithOwner("job"))
	first, second := c.Mutex(one, WithOwner("job")), c.Mutex(two, WithOwner("job"))
	require.NoError(t, both.Lock(t.Context()))
	require.NoError(t, second.Lock(t.Context()))
	h := holdOf(first) // as found by a Lock that then waits for the Unlock under way
	require.NoError(t, both.Unlock())
	require.ErrorIs(t, h.enter(t.Context(), openLock{settings: &first.settings, target: first.target}), errAgain)
	require.NoError(t, second.Unlock())
	require.Zero(t, b.Client(t).Exists(t.Context(), one, two).Val())
}
