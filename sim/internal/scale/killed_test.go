package scale

import (
	"context"
	"sync"
	"testing"
	"time"

	mini "github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/linktest"
)

// deployed is what is seen of a line whose first processes are killed while they wait, as by a rolling
// deployment. The others hold the lock once each.
type deployed struct {
	Idle  time.Duration // the longest time in which no one held the lock, though some waited
	Steps float64       // commands for each hold, including the commands that scripts call
}

// deploy lets processes wait in line, kills the first of them, and has the lock go round.
func deploy(killed, live int) (res deployed, err error) {
	const hold = 20 * time.Millisecond
	w, err := newWorld(killed+live+1, time.Millisecond)
	if err != nil {
		return res, err
	}
	defer w.close()
	steps := 0
	var mu sync.Mutex
	w.server.Server().SetPreHook(func(*mini.Peer, string, ...string) bool {
		mu.Lock()
		defer mu.Unlock()
		steps++
		return false
	})
	ctx, over := context.WithCancel(context.Background())
	defer over()
	keeper := w.processes[killed+live].locks.FairMutex(name)
	if err := keeper.Lock(ctx); err != nil {
		return res, err
	}
	var free time.Time
	var all, gone sync.WaitGroup
	for i, p := range w.processes[:killed+live] {
		wait := func() {
			m := p.locks.FairMutex(name)
			if m.Lock(ctx) != nil {
				return
			}
			mu.Lock()
			res.Idle = max(res.Idle, time.Since(free))
			mu.Unlock()
			time.Sleep(hold)
			mu.Lock()
			free = time.Now()
			mu.Unlock()
			_ = m.Unlock()
		}
		if i < killed {
			gone.Go(wait)
		} else {
			all.Go(wait)
		}
		time.Sleep(10 * time.Millisecond) // in virtual time, so that they come one after the other
	}
	time.Sleep(settles)
	for _, p := range w.processes[:killed] {
		p.link.Refuse(time.Hour)
		p.link.Cut(linktest.Reply, 0)
	}
	time.Sleep(10 * time.Millisecond) // Redis has noticed
	mu.Lock()
	steps, free = 0, time.Now()
	mu.Unlock()
	if err := keeper.Unlock(); err != nil {
		return res, err
	}
	all.Wait()
	res.Steps = float64(steps) / float64(live)
	over()
	gone.Wait()
	return res, nil
}

func TestLine_KilledWaitersNeitherStallItNorCostEachRelease(t *testing.T) {
	calm := inBubble(t, func() (deployed, error) { return deploy(0, 40) })
	after := inBubble(t, func() (deployed, error) { return deploy(40, 40) })
	t.Logf("without %+v, with %+v", calm, after)
	require.LessOrEqual(t, after.Idle, 50*time.Millisecond)
	require.LessOrEqual(t, after.Steps, 1.25*calm.Steps+12, "each of the dead is paid for once")
}
