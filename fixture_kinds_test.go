package relock_test

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redisexec"
	"github.com/relock-go/relock/internal/redistest"
)

// lockKind is a kind of lock under test.
type lockKind struct {
	name  string
	mutex func(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex
	// against makes the lock that is excluded by it, if that is another.
	against func(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex
	// scripts are the scripts that replace a plain lock's; more than one if it depends.
	scripts map[*redisexec.Script][]*redisexec.Script
	// nodes is how many Redis servers it takes; 0 is one that is no quorum.
	nodes int
	// opts are options of its clients.
	opts []relock.ClientOption
}

// client returns a client for locks of the kind, on as many servers as it takes.
func (k lockKind) client(t *testing.T, rdbs []redis.UniversalClient, opts ...relock.ClientOption) *relock.Client {
	t.Helper()
	opts = slices.Concat(k.opts, opts)
	if k.nodes > 0 {
		return relock.QuorumOn(t, rdbs, opts...)
	}
	return relock.LocksOn(t, rdbs[0], opts...)
}

// quorumKinds are those on a quorum. Faults of a single server are no faults of them.
var quorumKinds = []lockKind{
	{
		name: "quorum",
		mutex: func(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
			return c.Mutex(key, opts...)
		},
		nodes: 3,
	},
	{
		name: "quorum multi",
		mutex: func(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
			return c.MultiMutex([]string{key, key + "-too"}, opts...)
		},
		nodes: 3,
	},
}

// unpipelinedKinds are the kinds of clients without the pipeline. With RELOCK_WITHOUT_PIPELINING=1 all are.
var unpipelinedKinds = []lockKind{
	{
		name: "unpipelined",
		mutex: func(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
			return c.Mutex(key, opts...)
		},
		opts:    []relock.ClientOption{relock.WithoutPipelining()},
		scripts: locktest.InLine,
	},
}

// lockKinds are those on one Redis.
var lockKinds = []lockKind{
	{
		name: "plain",
		mutex: func(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
			return c.Mutex(key, opts...)
		},
		scripts: locktest.InLine,
	},
	{
		name: "multi",
		mutex: func(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
			return c.MultiMutex([]string{key, key + "-too"}, opts...)
		},
		scripts: map[*redisexec.Script][]*redisexec.Script{
			protocol.AcquireScript: {protocol.AcquireScript, protocol.LineAcquireScript},
			protocol.ReleaseScript: {protocol.ReleaseScript, protocol.LineReleaseScript},
		},
	},
	{
		name: "fair",
		mutex: func(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
			return c.FairMutex(key, opts...)
		},
		scripts: locktest.InLine,
	},
	{
		name:  "write",
		mutex: writeSideOf,
		scripts: map[*redisexec.Script][]*redisexec.Script{
			protocol.AcquireScript:     {protocol.RWWriteScript},
			protocol.ReleaseScript:     {protocol.RWWriteReleaseScript},
			protocol.ForceScript:       {protocol.RWForceScript},
			protocol.StateScript:       {protocol.RWStateScript},
			protocol.PlaceholderScript: {protocol.RWPlaceholderScript},
		},
	},
	{
		name:    "read",
		mutex:   readSideOf,
		against: writeSideOf,
		scripts: map[*redisexec.Script][]*redisexec.Script{
			protocol.AcquireScript:     {protocol.RWReadScript, protocol.RWWriteScript},
			protocol.ReenterScript:     {protocol.RWReadReenterScript},
			protocol.RenewScript:       {protocol.RWReadRenewScript},
			protocol.ReleaseScript:     {protocol.RWReadReleaseScript},
			protocol.ForceScript:       {protocol.RWForceScript},
			protocol.StateScript:       {protocol.RWStateScript},
			protocol.PlaceholderScript: {protocol.RWPlaceholderScript},
		},
	},
}

func writeSideOf(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
	return c.RWMutex(key, opts...).Write()
}

func readSideOf(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
	return c.RWMutex(key, opts...).Read()
}

// rival makes a lock that k excludes.
func (k lockKind) rival(c *relock.Client, key string, opts ...relock.MutexOption) *relock.Mutex {
	if k.against != nil {
		return k.against(c, key, opts...)
	}
	return k.mutex(c, key, opts...)
}

// runs chooses the runs of what the kind has in the place of s.
func (k lockKind) runs(s *redisexec.Script) redistest.Match {
	scripts := k.scripts[s]
	if scripts == nil {
		return redistest.Script(s.Source())
	}
	return func(command redistest.Command) bool {
		for _, s := range scripts {
			if redistest.Script(s.Source())(command) {
				return true
			}
		}
		return false
	}
}

// allKinds are what is promised of locks is promised of.
var allKinds = slices.Concat(lockKinds, unpipelinedKinds, quorumKinds)

// exclusiveKinds are the kinds that one owner has at a time.
var exclusiveKinds = slices.DeleteFunc(slices.Clone(allKinds), func(k lockKind) bool { return k.against != nil })

// named returns the kinds of these names, or all if names is nil.
func named(kinds []lockKind, names []string) []lockKind {
	return slices.DeleteFunc(slices.Clone(kinds), func(k lockKind) bool {
		return names != nil && !slices.Contains(names, k.name)
	})
}

// eachKind runs fn as a subtest for each kind on each backend.
func eachKind(t *testing.T, fn func(t *testing.T, b *redistest.Backend, k lockKind)) {
	t.Helper()
	eachOf(t, allKinds, fn)
}

// eachKindOf is eachKind for the kinds on one Redis that are named, or for all of those if none is.
func eachKindOf(t *testing.T, names []string, fn func(t *testing.T, b *redistest.Backend, k lockKind)) {
	t.Helper()
	eachOf(t, named(lockKinds, names), fn)
}

// eachOf runs fn as a subtest for each of these kinds on each backend.
func eachOf(t *testing.T, kinds []lockKind, fn func(t *testing.T, b *redistest.Backend, k lockKind)) {
	t.Helper()
	for _, k := range tested(kinds) {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, b *redistest.Backend) { fn(t, b, k) })
		})
	}
}

// tested are the kinds that a run tests: with -short a few.
func tested(kinds []lockKind) []lockKind {
	if testing.Short() {
		return named(kinds, []string{"plain", "write"})
	}
	return kinds
}

// kindNamed returns the row of that name.
func kindNamed(name string) lockKind {
	i := slices.IndexFunc(lockKinds, func(k lockKind) bool { return k.name == name })
	return lockKinds[i]
}

// eachExclusiveKindOnRedis runs fn for the exclusive kinds on one real server.
func eachExclusiveKindOnRedis(t *testing.T, fn func(t *testing.T, b *redistest.Backend, k lockKind)) {
	t.Helper()
	for _, k := range lockKinds {
		if k.against != nil {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			fn(t, redistest.Redis(t), k)
		})
	}
}
