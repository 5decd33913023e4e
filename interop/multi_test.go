package interop

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/redistest"
)

func TestJavaMulti_ExcludesAMultiMutex(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, d *deployment) {
		java, locks := d.redisson(t), d.locks(t)
		thread, g := java.thread(), newActor(t)
		key := redistest.Key(t)
		names := []string{"{" + key + "}:a", "{" + key + "}:b", "{" + key + "}:c"}
		multi := lockOf("multi", java.lock("plain", names[0]), java.lock("plain", names[1]), java.lock("plain", names[2]))
		m, one := locks.MultiMutex(names), locks.Mutex(names[1])

		thread.locks(t, multi)
		require.False(t, g.tries(t, m), "both hold them")
		require.False(t, g.tries(t, one), "both hold one of them")
		coming := g.waits(t, m)
		thread.unlocks(t, multi)
		require.NoError(t, outcomeOf(t, coming))

		require.False(t, thread.tries(t, multi), "both hold them")
		require.False(t, thread.tries(t, java.lock("plain", names[2])), "both hold one of them")
		returned := thread.waits(t, multi)
		g.unlocks(t, m)
		thread.comes(t, returned)
		thread.unlocks(t, multi)

		g.locks(t, one) // one name is enough to keep the other side out
		require.False(t, thread.tries(t, multi))
		require.False(t, thread.tries(t, multi, waitTime(2*aWhile), leaseTime(time.Minute)))
		g.unlocks(t, one)
		require.True(t, thread.tries(t, multi, waitTime(soonEnough), leaseTime(time.Minute)))
		require.False(t, g.tries(t, one))
		thread.unlocks(t, multi)
		d.requireFree(t, names...)
	})
}

// Redisson takes the members of a MultiLock one after the other, in the order that it was
// given. Java threads with different orders wait for each other without success, for seconds.
func TestJavaMulti_OverlappingLocksAreAllServed(t *testing.T) {
	t.Parallel()
	const turns = 5
	d := single(t)
	java, locks := d.redisson(t), d.locks(t)
	key := redistest.Key(t)
	names := []string{key + "a", key + "b", key + "c"}
	pairs := [][]string{{names[0], names[1]}, {names[1], names[2]}, {names[0], names[2]}}

	var inGo []<-chan error
	var inJava []<-chan answer
	for _, pair := range pairs {
		thread, multi := java.thread(), lockOf("multi", java.lock("plain", pair[0]), java.lock("plain", pair[1]))
		g, m := newActor(t), locks.MultiMutex(pair)
		for range turns {
			inJava = append(inJava, thread.begin("lock", multi), thread.begin("unlock", multi))
		}
		inGo = append(inGo, g.begin(func() error {
			for range turns {
				if err := m.Do(t.Context(), func(context.Context) error { return nil }); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	for _, result := range inGo {
		require.NoError(t, outcomeOf(t, result))
	}
	for _, result := range inJava {
		require.NoError(t, java.peer.receive(t, result, soonEnough).err())
	}
	d.requireFree(t, names...)
}

// threeServers are independent Redis servers, and on each a Redisson client
// and a Mutex of one name.
type threeServers struct {
	deployments []*deployment
	members     []javaLock
	thread      *javaThread
	mutexes     []*relock.Mutex
	name        string
}

func onThreeServers(t *testing.T) *threeServers {
	t.Helper()
	peerJar(t)
	redistest.RequireServer(t)
	s := &threeServers{name: redistest.Key(t), thread: sharedPeer(t).thread()}
	for range 3 {
		d := deploymentOn(redistest.NewServer(t))
		s.deployments = append(s.deployments, d)
		s.members = append(s.members, d.redisson(t).lock("plain", s.name))
		s.mutexes = append(s.mutexes, d.locks(t).Mutex(s.name))
	}
	return s
}

func (s *threeServers) requireFree(t *testing.T) {
	t.Helper()
	for _, d := range s.deployments {
		d.requireFree(t, s.name)
	}
}

func TestJavaMulti_OverServersNeedsTheMutexOfEach(t *testing.T) {
	t.Parallel()
	s := onThreeServers(t)
	thread, multi, g := s.thread, lockOf("multi", s.members...), newActor(t)

	thread.locks(t, multi)
	for _, m := range s.mutexes {
		require.False(t, g.tries(t, m), "both hold it on one of the servers")
	}
	coming := g.waits(t, s.mutexes[1])
	thread.unlocks(t, multi)
	require.NoError(t, outcomeOf(t, coming))
	require.False(t, thread.tries(t, multi))
	returned := thread.waits(t, multi)
	g.unlocks(t, s.mutexes[1])
	thread.comes(t, returned)
	thread.unlocks(t, multi)
	s.requireFree(t)
}

func TestJavaRed_NeedsTheMutexesOfTheMajority(t *testing.T) {
	t.Parallel()
	const patience = 10 * time.Second // a third of it goes by where a member is taken
	s := onThreeServers(t)
	thread, red, g := s.thread, lockOf("red", s.members...), newActor(t)

	require.True(t, thread.tries(t, red, waitTime(patience), leaseTime(time.Minute)))
	for _, m := range s.mutexes {
		require.False(t, g.tries(t, m), "both hold it on one of the servers")
	}
	thread.unlocks(t, red)

	g.locks(t, s.mutexes[0])
	require.True(t, thread.tries(t, red, waitTime(patience), leaseTime(time.Minute)), "two of three are a majority")
	require.False(t, g.tries(t, s.mutexes[1]))
	thread.unlocks(t, red)

	g.locks(t, s.mutexes[1])
	require.False(t, thread.tries(t, red, waitTime(2*aWhile), leaseTime(time.Minute)), "one of three is no majority")
	g.unlocks(t, s.mutexes[0])
	g.unlocks(t, s.mutexes[1])
	require.True(t, thread.tries(t, red, waitTime(patience), leaseTime(time.Minute)))
	thread.unlocks(t, red)
	s.requireFree(t)
}
