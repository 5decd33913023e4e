package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/random"
	"github.com/relock-go/relock/chaos/internal/resource"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/internal/redistest"
)

// Stage is what plans are played on. Deployments are started when they are first needed, and
// used again. A Stage plays one plan at a time.
type Stage struct {
	seed uint64
	out  io.Writer // the log; nil: none

	scripts     map[scripts.Verb]redistest.Match
	resources   []*resource.Server // what the locks protect; the rounds take turns
	deployments map[deployment.Kind]*deployment.Deployment
	rounds      int // played so far: every round has locks of its own
}

// New returns a stage whose random choices follow from seed. log may be nil.
func New(seed uint64, log io.Writer) (*Stage, error) {
	s := &Stage{seed: seed, out: log, deployments: map[deployment.Kind]*deployment.Deployment{}}
	var err error
	if s.scripts, err = scripts.Find(); err != nil {
		return nil, err
	}
	var without error
	if s.resources, without, err = resource.Start(context.Background()); without != nil {
		s.logf("a resource is missing: %v", without)
	}
	return s, err
}

// Close stops all servers.
func (s *Stage) Close() {
	for _, d := range s.deployments {
		d.Close()
	}
	for _, r := range s.resources {
		r.Close()
	}
}

func (s *Stage) logf(format string, args ...any) {
	if s.out != nil {
		fmt.Fprintf(s.out, format+"\n", args...)
	}
}

// deploy returns a deployment that is complete and healthy.
func (s *Stage) deploy(ctx context.Context, k deployment.Kind) (*deployment.Deployment, error) {
	if d := s.deployments[k]; d != nil {
		if err := d.AwaitReady(ctx); err == nil {
			return d, nil
		}
		d.Close() // it did not recover from the faults
		delete(s.deployments, k)
	}
	d, err := deployment.Start(k)
	if err != nil {
		return nil, err
	}
	s.deployments[k] = d
	return d, nil
}

// roundAtMost bounds a round, because its history is judged as a whole.
const roundAtMost = 12 * time.Second

// replays is how often a round in which nothing was tested is played again, because it is random which process a fault hits.
const replays = 3

// Play plays p in rounds, each with new client processes and new locks. duration is the total time in which faults are
// injected. An error means that the stage failed, or that nothing was tested. There is a result even then, unless the error is
// [deployment.ErrNoCompiler], which means that p cannot be played here.
func (s *Stage) Play(ctx context.Context, p *Plan, duration time.Duration) (*Result, error) {
	res := &Result{}
	rounds := max(len(p.Setups), int((duration+roundAtMost-1)/roundAtMost))
	for i := range rounds {
		var untested, err error
		for again := range 1 + replays {
			number := i + again*rounds*len(p.Setups) // a new one, of the same setup
			if untested, err = s.playRound(ctx, p, res, number, duration/time.Duration(rounds)); untested == nil {
				break
			}
			s.logf("    round %d: %v", number, untested)
		}
		if errors.Is(err, deployment.ErrNoCompiler) {
			return nil, err
		}
		if err := errors.Join(err, untested); err != nil {
			return res, fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	if res.Hits == 0 {
		return res, fmt.Errorf("%s: not one fault hit: nothing was tested", p.Name)
	}
	return res, nil
}

// playRound plays a round of p, and adds its result to res.
func (s *Stage) playRound(ctx context.Context, p *Plan, res *Result, number int, duration time.Duration) (untested, err error) {
	setup := p.Setups[number%len(p.Setups)]
	if setup.Draw != nil {
		setup = setup.Draw(random.New(s.seed, p.Number, uint64(number)))
	}
	d, err := s.deploy(ctx, setup.Kind)
	if err != nil {
		return nil, err
	}
	s.rounds++
	r := newRound(s, p, setup, d, number)
	if err := r.run(ctx, duration); err != nil {
		return nil, err
	}
	return r.judge(res), nil
}
