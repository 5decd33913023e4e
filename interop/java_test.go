package interop

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// redisson is a Redisson client in a Java process.
type redisson struct {
	*peer
	id string
}

var clients, threads atomic.Int64

// opened opens a Redisson client on a deployment for the length of a test; watchdog 0 is
// Redisson's default of 30 s.
func (p *peer) opened(t *testing.T, d *deployment, watchdog time.Duration) *redisson {
	t.Helper()
	where := d.java
	where.Client = fmt.Sprintf("client-%d", clients.Add(1))
	where.Watchdog = watchdog.Milliseconds()
	r := &redisson{p, where.Client}
	require.NoError(t, p.call(t, command{Thread: r.id, Op: "open", Deployment: &where}).err())
	t.Cleanup(func() {
		select {
		case <-p.begin(command{Thread: r.id, Op: "close", Deployment: &where}):
		case <-p.over:
		}
	})
	return r
}

// redisson returns a Redisson client in the Java process that tests share.
func (d *deployment) redisson(t *testing.T) *redisson {
	t.Helper()
	return sharedPeer(t).opened(t, d, 0)
}

// A javaLock is one of Redisson's locks.
type javaLock struct {
	kind    string
	members []member
}

func (r *redisson) lock(kind, name string) javaLock {
	return javaLock{kind: kind, members: []member{{Client: r.id, Name: name}}}
}

// lockOf returns a lock that is made of others, "multi" or "red".
func lockOf(kind string, locks ...javaLock) javaLock {
	all := javaLock{kind: kind}
	for _, l := range locks {
		all.members = append(all.members, l.members...)
	}
	return all
}

// A javaThread is a thread in a Java process that executes requests, one after the other.
type javaThread struct {
	peer *peer
	name string
}

func (p *peer) thread() *javaThread {
	return &javaThread{peer: p, name: fmt.Sprintf("thread-%d", threads.Add(1))}
}

// begin has the thread call a method of the lock, with the times that change sets.
func (j *javaThread) begin(op string, l javaLock, change ...func(*command)) <-chan answer {
	c := command{Thread: j.name, Op: op, Kind: l.kind, Members: l.members}
	for _, f := range change {
		f(&c)
	}
	return j.peer.begin(c)
}

func leaseTime(d time.Duration) func(*command) {
	return func(c *command) { c.LeaseTime = d.Milliseconds() }
}

func waitTime(d time.Duration) func(*command) {
	return func(c *command) { c.WaitTime = d.Milliseconds() }
}

// call has the thread call a method of the lock and waits for what it returns.
func (j *javaThread) call(t *testing.T, op string, l javaLock, change ...func(*command)) answer {
	t.Helper()
	return j.peer.receive(t, j.begin(op, l, change...), soonEnough)
}

// does requires that the method returns, and is for methods that return nothing.
func (j *javaThread) does(t *testing.T, op string, l javaLock, change ...func(*command)) {
	t.Helper()
	require.NoError(t, j.call(t, op, l, change...).err())
}

func (j *javaThread) locks(t *testing.T, l javaLock, change ...func(*command)) {
	t.Helper()
	j.does(t, "lock", l, change...)
}

func (j *javaThread) unlocks(t *testing.T, l javaLock) {
	t.Helper()
	j.does(t, "unlock", l)
}

// tries reports what tryLock returns.
func (j *javaThread) tries(t *testing.T, l javaLock, change ...func(*command)) bool {
	t.Helper()
	return valueOf[bool](t, j.call(t, "tryLock", l, change...))
}

// waits has the thread call lock, and requires that it does not return for a while.
func (j *javaThread) waits(t *testing.T, l javaLock) <-chan answer {
	t.Helper()
	result := j.begin("lock", l)
	select {
	case a := <-result:
		require.Fail(t, "Java did not wait", "%+v", a)
	case <-time.After(aWhile):
	}
	return result
}

// comes waits for a method to return.
func (j *javaThread) comes(t *testing.T, result <-chan answer) answer {
	t.Helper()
	a := j.peer.receive(t, result, soonEnough)
	require.NoError(t, a.err())
	return a
}

func valueOf[T any](t *testing.T, a answer) (v T) {
	t.Helper()
	require.NoError(t, a.err())
	require.NoError(t, json.Unmarshal(a.Value, &v), string(a.Value))
	return v
}
