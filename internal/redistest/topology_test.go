package redistest_test

import (
	"testing"

	. "github.com/relock-go/relock/internal/redistest"
)

func TestCluster_SurvivesAKilledMasterAndTakesItBack(t *testing.T) {
	t.Parallel()
	c := NewCluster(t)
	rdb, key := c.Client(t), Key(t)
	if err := rdb.Set(t.Context(), key, "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old, err := c.Master(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	heir, err := c.Failover(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitReady(t.Context()); err != nil { // the old master is its replica now
		t.Fatal(err)
	}
	heir.Kill()
	if err := c.AwaitMaster(t.Context(), key, old); err != nil {
		t.Fatal(err)
	}
	if err := heir.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := rdb.Get(t.Context(), key).Val(); got != "v" {
		t.Fatalf("value is %q", got)
	}
	replica, err := c.Replica(t.Context(), key)
	if err != nil || replica != heir {
		t.Fatalf("replica is %v, %v; want the restarted node", replica, err)
	}
}

func TestSentinel_ReplacesAPausedMaster(t *testing.T) {
	t.Parallel()
	s := NewSentinel(t)
	old, err := s.Master(t.Context())
	if err != nil || old != s.Nodes[0] {
		t.Fatalf("master is %v, %v; want the first node", old, err)
	}
	if err := old.Pause(); err != nil {
		t.Fatal(err)
	}
	master, err := s.AwaitFailover(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Client(t).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	wantValue(t, master.Client(t), "k", "v")
}

func TestSentinel_ReplacesTheMasterOnRequest(t *testing.T) {
	t.Parallel()
	s := NewSentinel(t)
	if master, err := s.Failover(t.Context()); err != nil || master == s.Nodes[0] {
		t.Fatalf("new master is %v, %v", master, err)
	}
}
