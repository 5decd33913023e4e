package scenario

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/stage"
)

// probe is a lock of the director, held by a client without a relay. It shows whether a lock survives the faults of the
// servers.
type probe struct {
	act     *stage.Act
	name    string
	rdb     redis.UniversalClient
	locks   *relock.Client
	m       *relock.Mutex
	token   int64
	renewed chan relock.Event
}

// newProbe locks next to one of the locks, in the same slot.
func newProbe(a *stage.Act) (*probe, error) {
	lock := a.Lock()
	name := "{" + lock + "}:probe"
	if strings.Contains(lock, "{") {
		name = lock + ":probe"
	}
	rdb := deployment.Connect(a.Deployment.Kind, a.Deployment.Entrances(), nil, 0)
	p := &probe{act: a, name: name, rdb: rdb, renewed: make(chan relock.Event, 1000)}
	var err error
	p.locks, err = relock.New(p.rdb, relock.WithTTL(10*time.Second), relock.WithRenewInterval(200*time.Millisecond),
		relock.WithFencing(), relock.WithHooks(relock.Hooks{Renewed: func(e relock.Event) { p.renewed <- e }}))
	if err != nil {
		return nil, err
	}
	p.m = p.locks.Mutex(p.name, relock.WithOwner("probe"))
	ctx, cancel := context.WithTimeout(a, 10*time.Second)
	defer cancel()
	for err = p.m.Lock(ctx); err != nil; err = p.m.Lock(ctx) {
		if ctx.Err() != nil {
			p.close()
			return nil, err
		}
		a.Lasts(20 * time.Millisecond)
	}
	p.token = p.m.FencingToken()
	return p, nil
}

// replicated waits until every server has the lock.
func (p *probe) replicated() error {
	return await(p.act, p.name+" to be replicated", func() (bool, error) {
		for _, s := range p.act.Deployment.Servers {
			n, err := p.act.Deployment.Ask(p.act, s, "exists", p.name)
			if err != nil || n.(int64) == 0 {
				return false, err
			}
		}
		return true, nil
	})
}

// await polls cond until it holds.
func await(a *stage.Act, what string, cond func() (bool, error)) error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		ok, err := cond()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("gave up waiting for %s", what)
		}
		a.Lasts(5 * time.Millisecond)
		if a.Err() != nil {
			return a.Err()
		}
	}
}

// survives judges that the hold is valid and renewed, with its token, and can be unlocked.
func (p *probe) survives(what string) error {
	for len(p.renewed) > 0 {
		<-p.renewed
	}
	select {
	case <-p.renewed:
	case <-time.After(10 * time.Second):
		p.act.Breach("%s: %s was not renewed after it", what, p.name)
	case <-p.act.Done():
		return p.act.Err()
	}
	if n := p.m.HoldCount(); n != 1 {
		p.act.Breach("%s: %s did not survive it: %d levels, not 1", what, p.name, n)
	}
	if token := p.m.FencingToken(); token != p.token {
		p.act.Breach("%s: the token of %s was %d, and is %d after it", what, p.name, p.token, token)
	}
	if err := p.m.Unlock(); err != nil {
		p.act.Breach("%s: %s could not be unlocked after it: %v", what, p.name, err)
	}
	return nil
}

func (p *probe) close() {
	if p.locks != nil {
		_ = p.locks.Close() // survives has judged the hold
	}
	_ = p.rdb.Close()
}
