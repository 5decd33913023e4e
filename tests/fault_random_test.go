package tests

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/protocol"
	"github.com/relock-go/relock/internal/redistest"
)

// critical is a section that at most one valid holder is in. It checks that: a holder that comes
// finds the hold of the one before ended, also by its Unlock.
type critical struct {
	owner   atomic.Pointer[context.Context]
	entered atomic.Int64
	doubled atomic.Int64
}

// visit is called under the lock, with the context of the hold. It looks while nobody else
// may be there; a hold that is lost meanwhile proves nothing.
func (c *critical) visit(hold context.Context) {
	c.entered.Add(1)
	if before := c.owner.Swap(&hold); before != nil && (*before).Err() == nil {
		c.doubled.Add(1)
	}
	for range 20 {
		if c.owner.Load() != &hold && hold.Err() == nil {
			c.doubled.Add(1)
		}
		runtime.Gosched()
	}
}

// crowd is goroutines of several clients that want one lock while the network is at fault.
type crowd struct {
	t       *testing.T
	relays  []*redistest.Relay
	rules   []*redistest.Rule // the last one of each relay
	mutexes []*relock.Mutex
	section critical
}

const (
	crowdClients    = 4
	crowdGoroutines = 4
	crowdTime       = 2500 * time.Millisecond
	crowdAtLeast    = 30 // holds that come through the storm
)

func newCrowd(t *testing.T, addr string) *crowd {
	t.Helper()
	c := &crowd{t: t, rules: make([]*redistest.Rule, crowdClients)}
	key := redistest.Key(t)
	for range crowdClients {
		relay := redistest.NewRelay(t, addr)
		c.relays = append(c.relays, relay)
		c.mutexes = append(c.mutexes, locksOn(t, redistest.NewClient(t, relay.Addr), relock.WithTTL(time.Second)).Mutex(key))
	}
	return c
}

// work locks and unlocks until over. Faults may cost it a Lock or a hold, never exclusion.
func (c *crowd) work(m *relock.Mutex, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		default:
		}
		if m.Lock(c.t.Context()) == nil {
			c.section.visit(m.Context(c.t.Context()))
			_ = m.Unlock()
		}
	}
}

// harm puts one client's network at fault, once. What it was to suffer before, and has not
// met, it is spared.
func (c *crowd) harm(r *rand.Rand, held chan<- *redistest.Held) {
	i := r.IntN(len(c.relays))
	relay := c.relays[i]
	c.spare(i)
	switch r.IntN(6) {
	case 0:
		relay.Cut()
	case 1:
		c.rules[i] = relay.DropReply(redistest.Scripts)
	case 2:
		c.rules[i] = relay.LoseReply(redistest.Scripts)
	case 3:
		c.rules[i] = relay.Delay(time.Duration(r.IntN(400))*time.Millisecond, redistest.Scripts)
	case 4:
		h := relay.HoldBack(redistest.Scripts)
		c.rules[i] = h.Rule
		held <- h
	case 5:
		c.rules[i] = relay.DropReply(redistest.Script(protocol.RenameScript.Source()))
	}
}

func (c *crowd) spare(i int) {
	if c.rules[i] != nil {
		c.rules[i].Remove()
	}
}

// deliver has what was held back executed, some time later.
func (c *crowd) deliver(held <-chan *redistest.Held) {
	for h := range held {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, _ = h.Deliver(ctx) // nothing was held back yet: then it is lost
		cancel()
	}
}

// A bounded storm. Whatever happens, no two holds are valid at once; and when it is over
// everybody is served.
func TestRandomFaults_ExclusionHolds(t *testing.T) {
	t.Parallel()
	redistest.Slow(t)
	c := newCrowd(t, redistest.Redis(t).Addr)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))

	over := make(chan struct{})
	var workers, postman sync.WaitGroup
	for _, m := range c.mutexes {
		for range crowdGoroutines {
			workers.Go(func() { c.work(m, over) })
		}
	}
	held := make(chan *redistest.Held, 1024)
	postman.Go(func() { c.deliver(held) })
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	began := time.Now()
	stormy := func() bool { // a busy machine gets longer to show that some come through
		d := time.Since(began)
		return d < crowdTime || c.section.entered.Load() <= crowdAtLeast && d < locktest.SoonEnough
	}
	for stormy() {
		c.harm(r, held)
		<-ticker.C
	}
	close(held)
	postman.Wait()
	close(over)
	for i := range c.relays {
		c.spare(i)
	}
	workers.Wait()
	require.Zero(t, c.section.doubled.Load(), "two valid holders at once")
	require.Greater(t, c.section.entered.Load(), int64(crowdAtLeast), "the storm let hardly anybody through")
	c.requireCalm()
}

// requireCalm asserts that everybody is served now that nothing is at fault, and that
// nothing is left.
func (c *crowd) requireCalm() {
	var served sync.WaitGroup
	var failed atomic.Int64
	ctx, cancel := context.WithTimeout(c.t.Context(), locktest.SoonEnough)
	defer cancel()
	for _, m := range c.mutexes {
		for range crowdGoroutines {
			served.Go(func() {
				for ctx.Err() == nil {
					if m.Lock(ctx) == nil && m.Unlock() == nil {
						return
					}
				}
				failed.Add(1)
			})
		}
	}
	served.Wait()
	require.Zero(c.t, failed.Load(), "not served")
	require.Zero(c.t, c.section.doubled.Load())
	server := redistest.NewClient(c.t, redistest.Redis(c.t).Addr)
	require.Eventually(c.t, func() bool {
		return server.Exists(c.t.Context(), c.mutexes[0].Name()).Val() == 0
	}, locktest.SoonEnough, locktest.LookEvery)
}
