package tests

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/redistest"
)

// A slot is on the move, its keys still at their source. One that went away there and came back
// in the same script would be refused half-way.

func TestSlots_HandOverDuringAMoveIsWhole(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	for name, lock := range map[string]func(c *relock.Client, names []string) *relock.Mutex{
		"plain":             func(c *relock.Client, names []string) *relock.Mutex { return c.Mutex(names[0]) },
		"plain with tokens": func(c *relock.Client, names []string) *relock.Mutex { return c.Mutex(names[0], relock.WithFencing()) },
		"multi":             func(c *relock.Client, names []string) *relock.Mutex { return c.MultiMutex(names) },
		"multi with tokens": func(c *relock.Client, names []string) *relock.Mutex { return c.MultiMutex(names, relock.WithFencing()) },
		// Without tokens not all of its keys exist: Redis executes none of its scripts meanwhile.
		"fair with tokens": func(c *relock.Client, names []string) *relock.Mutex {
			return c.FairMutex(names[0], relock.WithFencing())
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := redistest.NewWard(t, cluster)
			events := &chronicle{}
			c := locksOn(t, cluster.Client(t), relock.WithHooks(events.Hooks()))
			m, holder, waiter := lock(c, p.Names("k")), locktest.NewActor(t), locktest.NewActor(t)
			holder.Locks(t, m)
			waiting := waiter.Lock(t.Context(), m)
			events.Await(t, "contended", 1)
			if strings.HasPrefix(name, "fair") {
				locktest.AwaitFairQueue(t, p.Admin, m.Name(), 1)
			}
			p.BeginMove()
			err := holder.Call(m.Unlock)
			p.EndMove()
			require.NoError(t, err)
			require.NoError(t, locktest.OutcomeOf(t, waiting))
			waiter.Unlocks(t, m)
		})
	}
}

// Of a wake-up by classic pub/sub Redis counts only the receivers at that node.
func TestSlots_OtherProcessesHaveTheirTurnWhereverSubscribed(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	name := func(node int) string {
		for i := 0; ; i++ {
			name := fmt.Sprintf("%s-%d", redistest.Key(t), i)
			if master, err := cluster.Master(t.Context(), name); err == nil && master == cluster.Nodes[node] {
				return name
			}
		}
	}
	const inRow = 4
	us, them := locksOn(t, cluster.Client(t), relock.WithLocalHandoffs(inRow)), locksOn(t, cluster.Client(t), relock.WithLocalHandoffs(inRow))
	elsewhere, busy := name(1), name(0)
	locktest.HeldByAnother(t, cluster.Client(t), elsewhere, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	listening := locktest.NewActor(t).Lock(ctx, them.Mutex(elsewhere)) // their connection is to that node from now on
	locktest.AwaitSubscribed(t, cluster.Nodes[1].Client(t), elsewhere, them)

	var turns atomic.Int64
	var all []<-chan error
	for range inRow {
		all = append(all, locktest.NewActor(t).Begin(func() error {
			for {
				if err := us.Mutex(busy).Lock(ctx); err != nil {
					return err
				}
				turns.Add(1)
				time.Sleep(time.Millisecond) // the work
				if err := us.Mutex(busy).Unlock(); err != nil {
					return err
				}
			}
		}))
	}
	other, m := locktest.NewActor(t), them.Mutex(busy)
	other.Locks(t, m)
	before := turns.Load()
	const visits = 10
	for range visits {
		other.Unlocks(t, m)
		other.Locks(t, m)
	}
	cancel()
	require.Less(t, turns.Load()-before, int64(visits*50), "ours for each of theirs are about 15, and 100 and more if they count for nothing")
	other.Unlocks(t, m)
	for _, result := range append(all, listening) {
		require.ErrorIs(t, locktest.OutcomeOf(t, result), context.Canceled)
	}
}
