package worker

import (
	"context"
	"sync"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/history"
	"github.com/relock-go/relock/chaos/player"
)

// players returns what the players of the process share.
func (c *client) players(life context.Context, stopping <-chan struct{}) *player.Process {
	return &player.Process{
		World: world{c}, Number: c.Process,
		Locks: c.locks, Names: c.Locks, Sided: c.Sided, Semaphores: c.Semaphores, Limit: c.Work.Limit, Life: life, Stopping: stopping,
		Try: 0.2, Impatience: c.Work.Impatience, Step: [2]time.Duration{2 * time.Millisecond, 10 * time.Millisecond},
		Quorum: c.Kind.Votes(), Protected: c.resource != nil, Kept: c.Work.Kept, Counted: c.Work.Counts, Outlives: true,
	}
}

// world is the environment of players: real time, and real servers.
type world struct{ *client }

// Now implements [player.World], as the methods below do.
func (w world) Now() int64             { return history.Now() }
func (w world) Record(e history.Event) { w.record(e) }
func (w world) Gate()                  {} // a process that is stopped does not get here

// Shown knows nothing, because time passes between two readings of a clock.
func (w world) Shown(time.Time) (at int64, known bool) { return 0, false }

// Choose returns the first two names if it returns two, because they have a common tag.
func (w world) Choose(d player.Drawer) []string {
	i := d.IntN(len(w.Locks))
	joint := len(w.Locks) > 1 && d.Chance(w.Work.Joint)
	if w.Work.Torn {
		i, joint = 0, w.Process == 2
		if w.Process == 1 {
			i = 1
		}
	}
	if joint {
		return w.Locks[:2]
	}
	return w.Locks[i : i+1]
}

func (w world) Length(d player.Drawer) time.Duration {
	if d.Chance(w.Work.Long) || w.Work.Torn && w.Process == 1 {
		ttl, lasting := float64(w.Work.TTL), w.Work.Lasting
		return d.Between(time.Duration(lasting[0]*ttl), time.Duration(lasting[1]*ttl))
	}
	return d.Between(0, 20*time.Millisecond)
}

func (w world) Pause(d player.Drawer) time.Duration {
	if w.Work.Moments {
		return 0
	}
	return d.Between(0, 10*time.Millisecond)
}

func (w world) Write(_ player.Drawer, lock string, token int64, by string) (accepted bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return w.resource.Write(ctx, lock, token, by)
}

func (w world) NewLocks() (locks *relock.Client, closed func() error, err error) {
	locks, err = w.newLocks()
	if err != nil {
		return nil, nil, err
	}
	return locks, sync.OnceValue(locks.Close), nil
}

// Trust checks the context again and again.
func (w world) Trust(ctx context.Context) (last func() int64) {
	over := make(chan struct{})
	var trusting sync.WaitGroup
	var valid int64
	trusting.Go(func() {
		for {
			at := history.Now()
			if ctx.Err() != nil {
				return
			}
			valid = at
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() int64 {
		close(over)
		trusting.Wait()
		return valid
	}
}
