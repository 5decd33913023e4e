package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/relock-go/relock/chaos/internal/check"
	"github.com/relock-go/relock/chaos/internal/deployment"
	"github.com/relock-go/relock/chaos/internal/random"
	"github.com/relock-go/relock/chaos/internal/resource"
	"github.com/relock-go/relock/chaos/internal/scripts"
	"github.com/relock-go/relock/internal/redistest"
)

// stage is what scenarios are played on. Deployments are started when they are first
// needed, and used again.
type stage struct {
	seed uint64
	out  io.Writer // what -v prints; nil without

	scripts     map[scripts.Verb]redistest.Match // by verb
	resources   []*resource.Server               // what the locks protect; the rounds take turns
	deployments map[deployment.Kind]*deployment.Deployment
	rounds      int // played so far: every round has locks of its own
}

func newStage(seed uint64, out io.Writer) (*stage, error) {
	s := &stage{seed: seed, out: out, deployments: map[deployment.Kind]*deployment.Deployment{}}
	var err error
	if s.scripts, err = scripts.Learn(); err != nil {
		return nil, err
	}
	var without error
	if s.resources, without, err = resource.Start(context.Background()); without != nil {
		s.logf("a resource is missing: %v", without)
	}
	return s, err
}

func (s *stage) close() {
	for _, d := range s.deployments {
		d.Close()
	}
	for _, r := range s.resources {
		r.Close()
	}
}

// logf prints what -v shows.
func (s *stage) logf(format string, args ...any) {
	if s.out != nil {
		fmt.Fprintf(s.out, format+"\n", args...)
	}
}

// deploy returns a deployment that is as good as new.
func (s *stage) deploy(ctx context.Context, k deployment.Kind) (*deployment.Deployment, error) {
	if d := s.deployments[k]; d != nil {
		if err := d.AwaitReady(ctx); err == nil {
			return d, nil
		}
		d.Close() // what was done to it was too much
		delete(s.deployments, k)
	}
	d, err := deployment.Start(k)
	if err != nil {
		return nil, err
	}
	s.deployments[k] = d
	return d, nil
}

// result is what became of a scenario.
type result struct {
	scenario *scenario
	check.Report
	faults    int
	histories []string // files, of rounds with violations
}

// roundAtMost bounds a round: its history has to be judged as a whole.
const roundAtMost = 12 * time.Second

// replays is how often a round is played again in which nothing was tested: whom the faults
// meet is a matter of chance.
const replays = 3

// play plays a scenario, in rounds, each with new client processes and new locks.
func (s *stage) play(ctx context.Context, sc *scenario, duration time.Duration) (*result, error) {
	res := &result{scenario: sc}
	rounds := max(len(sc.casts), int((duration+roundAtMost-1)/roundAtMost))
	for i := range rounds {
		var untested, err error
		for again := range 1 + replays {
			number := i + again*rounds*len(sc.casts) // a new one, of the same cast
			if untested, err = s.playRound(ctx, res, number, duration/time.Duration(rounds)); untested == nil {
				break
			}
			s.logf("    round %d: %v", number, untested)
		}
		if errors.Is(err, deployment.ErrNoCompiler) {
			return nil, err
		}
		if err := errors.Join(err, untested); err != nil {
			return res, fmt.Errorf("%s: %w", sc.name, err)
		}
	}
	if res.faults == 0 {
		return res, fmt.Errorf("%s: not one fault hit: nothing was tested", sc.name)
	}
	return res, nil
}

// playRound plays a round of the scenario and adds to res what it shows.
func (s *stage) playRound(ctx context.Context, res *result, number int, duration time.Duration) (untested, err error) {
	sc := res.scenario
	cast := sc.casts[number%len(sc.casts)]
	if cast.draw != nil {
		cast = cast.draw(random.New(s.seed, uint64(sc.number), uint64(number)))
	}
	d, err := s.deploy(ctx, cast.kind)
	if err != nil {
		return nil, err
	}
	s.rounds++
	round := newRound(s, sc, cast, d, number)
	if err := round.run(ctx, duration); err != nil {
		return nil, err
	}
	return round.judge(res), nil
}
