package scenario

import (
	"time"

	"github.com/relock-go/relock/chaos/internal/stage"
	"github.com/relock-go/relock/internal/redistest"
)

// master returns the master of a lock that is chosen at random.
func master(a *stage.Act) (*redistest.Server, error) { return a.Deployment.Master(a, a.Lock()) }

// aim returns a random process, and its relay to the master of a lock.
func aim(a *stage.Act) (*stage.Process, *redistest.Relay, error) {
	p := a.Victim()
	s, err := master(a)
	if err != nil {
		return nil, nil, err
	}
	return p, p.RelayTo(s), nil
}

// do sends one command to a server, without a relay.
func do(a *stage.Act, s *redistest.Server, args ...any) error {
	return a.Deployment.Do(a, s, args...)
}

// shareOfTTL returns a random duration between two fractions of the lease.
func shareOfTTL(a *stage.Act, least, most float64) time.Duration {
	return a.Between(time.Duration(least*float64(a.Work.TTL)), time.Duration(most*float64(a.Work.TTL)))
}

// part returns a random duration of a fraction of the lease, or a little less.
func part(a *stage.Act, share float64) time.Duration {
	d := time.Duration(share * float64(a.Work.TTL))
	return a.Between(d*3/4, d)
}

// rarely waits after a fault, for its consequences.
func rarely(f stage.Fault) stage.Fault {
	return stage.Fault{Name: f.Name, Inject: func(a *stage.Act) error {
		err := f.Inject(a)
		a.Lasts(2 * a.Work.TTL)
		return err
	}}
}

// nothing is for scenarios without a fault.
var nothing = stage.Fault{Name: "nothing", Inject: func(a *stage.Act) error {
	a.Lasts(a.Work.TTL / 4)
	a.Hit()
	return nil
}}
