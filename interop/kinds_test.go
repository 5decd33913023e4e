package interop

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

// Redisson's fair lock notifies only the first waiter of a release, on a channel of that
// waiter's own; its spin lock sends no message. So a Mutex of the name is notified by neither: exclusion
// holds, and waiting ends by polling. A Mutex notifies the fair lock's waiter as that lock does.

func TestJavaFair_ExcludesAMutex(t *testing.T) {
	t.Parallel()
	const poll = 300 * time.Millisecond
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t, relock.WithSafetyPoll(poll))
		thread, g := java.thread(), newActor(t)
		name := redistest.Key(t)
		fair, m := java.lock("fair", name), locks.Mutex(name)

		thread.locks(t, fair)
		require.False(t, g.tries(t, m), "both hold it")
		coming := g.waits(t, m)
		unlocked := time.Now()
		thread.unlocks(t, fair)
		require.NoError(t, outcomeOf(t, coming))
		took := time.Since(unlocked)
		require.Less(t, took, 2*poll+overhead, "Go did not poll")
		t.Logf("Go came after %v, its safety poll is %v", took.Round(time.Millisecond), poll)

		require.False(t, thread.tries(t, fair), "both hold it")
		g.unlocks(t, m)
		for _, m := range []goLock{m, locks.FairMutex(name)} {
			g.locks(t, m)
			returned := thread.waits(t, fair)
			unlocked = time.Now()
			g.unlocks(t, m)
			took = thread.comes(t, returned).ended().Sub(unlocked)
			require.Less(t, took, overhead, "Java waited for the lease")
			t.Logf("Java came after %v", took.Round(time.Millisecond))
			thread.unlocks(t, fair)
		}
		d.requireFree(t, append(fairQueueOf(name), name)...)
	})
}

// Each of them notifies the next: Java's unlock the thread that is first in the queue, and Go's, too.
func TestJavaFair_UnlockInGoWakesThreadsInOrder(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks, rdb := d.redisson(t), d.locks(t), d.client(t)
		g := newActor(t)
		for _, name := range namesOf(t) {
			fair, m := java.lock("fair", name), locks.Mutex(name)
			g.locks(t, m)
			var threads []*javaThread
			var all []<-chan answer
			for i := range 3 {
				threads = append(threads, java.thread())
				all = append(all, threads[i].begin("lock", fair))
				eventually(t, "its place", func() bool { return rdb.LLen(t.Context(), fairQueueOf(name)[0]).Val() == int64(i+1) })
			}
			g.unlocks(t, m)
			for i, returned := range all {
				began := time.Now()
				threads[i].comes(t, returned)
				require.Less(t, time.Since(began), overhead)
				threads[i].unlocks(t, fair)
			}
			d.requireFree(t, append(fairQueueOf(name), name)...)
		}
	})
}

// Java's fair waiters respect the queue, also the place of one that has died, which they wait
// out for five minutes; a Mutex takes the lock when it is free.
func TestJavaFair_MutexTakesNoTurnInTheQueue(t *testing.T) {
	t.Parallel()
	d := single(t)
	doomed := newPeer(t)
	java, locks, rdb := d.redisson(t), d.locks(t), d.client(t)
	holder, g := java.thread(), newActor(t)
	name := redistest.Key(t)
	fair, m := java.lock("fair", name), locks.Mutex(name)
	queue := fairQueueOf(name)

	holder.locks(t, fair)
	dies := doomed.opened(t, d, 0)
	dies.thread().begin("lock", dies.lock("fair", name))
	eventually(t, "Java stands in the queue", func() bool { return rdb.LLen(t.Context(), queue[0]).Val() == 1 })
	doomed.die(t)
	holder.unlocks(t, fair)

	require.False(t, holder.tries(t, fair), "the queue does not count for Java")
	require.True(t, g.tries(t, m), "the queue counts for Go")
	g.unlocks(t, m)
	require.NoError(t, rdb.Del(t.Context(), queue...).Err())
	d.requireFree(t, name)
}

// fairQueueOf returns the other keys of Redisson's fair lock.
func fairQueueOf(name string) []string {
	var keys []string
	for _, part := range []string{"lock_queue", "lock_timeout"} {
		keys = append(keys, strings.Replace(channelOf(name), "lock__channel", part, 1))
	}
	return keys
}

func TestJavaSpin_ExcludesAMutex(t *testing.T) {
	t.Parallel()
	const poll = 300 * time.Millisecond
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t, relock.WithSafetyPoll(poll))
		thread, g := java.thread(), newActor(t)
		name := redistest.Key(t)
		spin, m := java.lock("spin", name), locks.Mutex(name)

		thread.locks(t, spin)
		require.False(t, g.tries(t, m), "both hold it")
		coming := g.waits(t, m)
		unlocked := time.Now()
		thread.unlocks(t, spin)
		require.NoError(t, outcomeOf(t, coming))
		require.Less(t, time.Since(unlocked), 2*poll+overhead, "Go did not poll")

		require.False(t, thread.tries(t, spin), "both hold it")
		returned := thread.waits(t, spin)
		unlocked = time.Now()
		g.unlocks(t, m)
		require.Less(t, thread.comes(t, returned).ended().Sub(unlocked), overhead)
		thread.unlocks(t, spin)
		d.requireFree(t, name)
	})
}

func TestJavaReadWrite_MutexOnItsNameIsRefused(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t)
		thread, g := java.thread(), newActor(t)
		for _, kind := range []string{"read", "write"} {
			name := kind + redistest.Key(t)
			lock, m := java.lock(kind, name), locks.Mutex(name)
			thread.locks(t, lock)
			require.ErrorIs(t, outcomeOf(t, g.begin(func() error { return m.Lock(t.Context()) })), relock.ErrInvalidName)
			require.ErrorIs(t, outcomeOf(t, g.begin(func() error {
				_, err := m.TryLock(t.Context())
				return err
			})), relock.ErrInvalidName)
			_, err := m.ForceUnlock(t.Context())
			require.ErrorIs(t, err, relock.ErrInvalidName)
			_, err = m.State(t.Context())
			require.ErrorIs(t, err, relock.ErrInvalidName)
			require.True(t, valueOf[bool](t, thread.call(t, "isHeldByCurrentThread", lock)), "Go changed Java's lock")
			thread.unlocks(t, lock)
			d.requireFree(t, name)
		}
	})
}

// The other way round nobody looks: Redisson takes a hash without its mode for a free lock.
func TestJavaReadWrite_DoesNotSeeAMutexOfItsName(t *testing.T) {
	t.Parallel()
	d := single(t)
	java, locks := d.redisson(t), d.locks(t)
	thread, g := java.thread(), newActor(t)
	for _, kind := range []string{"read", "write"} {
		name := kind + redistest.Key(t)
		lock, m := java.lock(kind, name), locks.Mutex(name)
		g.locks(t, m)
		require.True(t, thread.tries(t, lock), "Redisson looks by now: say so in docs/java.md")
		g.unlocks(t, m)
		require.True(t, valueOf[bool](t, thread.call(t, "isHeldByCurrentThread", lock)), "Go took Java's lock away")
		thread.unlocks(t, lock)
		d.requireFree(t, name)
	}
}
