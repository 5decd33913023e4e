package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// smoke measures each load for a moment: arrivals are served, and no two holds overlap.
func smoke(t *testing.T, names ...string) {
	b := newTestBench(t, names...)
	for _, c := range b.contenders {
		for _, s := range []scenario{
			{name: "free", processes: 1, closed: 4},
			{name: "hot", processes: 2, names: 1, hold: time.Millisecond, closed: 4},
		} {
			t.Run(c.name+" "+s.name, func(t *testing.T) {
				b.window = 200 * time.Millisecond
				workers, err := b.workers(c, s.processes)
				require.NoError(t, err)
				t.Cleanup(func() {
					for _, p := range workers {
						p.stop()
					}
				})
				run := &cellRun{c: c, s: s, service: b.services[c.name], workers: workers, seed: 1}
				for limit := 0.0; limit == 0; b.window *= 2 { // how long one lock takes is up to the machine
					limit, _, err = run.limit(b.window)
					require.NoError(t, err)
				}
				r, err := run.load(t.Context(), 50, b.window)
				require.NoError(t, err)
				require.Positive(t, r.arrivals)
				require.Equal(t, r.arrivals, r.served+r.unserved+r.lost)
				require.Equal(t, int64(r.served+r.unserved), r.waits.TotalCount())
				require.Zero(t, r.overlaps)
				require.Zero(t, r.lost)
				require.Positive(t, r.clientCPU)
			})
		}
	}
}

func TestContenders_OnRedisServe(t *testing.T) {
	smoke(t, relockName, "relock fair", "rueidislock", "redsync", "redislock")
}

func TestContenders_InJavaServe(t *testing.T)      { smoke(t, "Redisson", "ZooKeeper") }
func TestContenders_PythonServes(t *testing.T)     { smoke(t, "redis-py") }
func TestContenders_PostgreSQLServes(t *testing.T) { smoke(t, "PostgreSQL") }
func TestContenders_EtcdServes(t *testing.T)       { smoke(t, "etcd") }

func TestContenders_MissingProgramIsNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, c := range contenders {
		if c.server != onEtcd && c.server != onPostgres { // which Debian has outside of the PATH
			require.Regexp(t, "^no (java|python3|redis-server) on the PATH$", c.missing())
		}
	}
}

func TestRecovery_HolderLearnsAndWaitersAreServed(t *testing.T) {
	b := newTestBench(t, relockName)
	c, s := b.contenders[0], b.services[relockName]
	for i, ev := range events {
		switch ev.name {
		case "waiter", "delete":
			o, err := b.playRecovery(t.Context(), c, s, ev, i)
			require.NoError(t, err)
			require.Empty(t, o.Note)
			if ev.learns {
				require.Positive(t, o.Learned)
				continue
			}
			require.Positive(t, o.First)
			require.GreaterOrEqual(t, o.Last, o.First)
		}
	}
}

func TestMemory_LocksAndWaitersTakeSome(t *testing.T) {
	b := newTestBench(t, relockName)
	f, err := b.measureFootprint(t.Context(), b.contenders[0], b.services[relockName], 0)
	require.NoError(t, err)
	require.Positive(t, f.HeldClient)
	require.Positive(t, f.HeldServer)
	require.Positive(t, f.WaitingClient)
	require.Positive(t, f.ProcessClient)
}
