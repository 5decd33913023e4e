package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// limits bound one run.
type limits struct {
	time   time.Duration
	memory int // MB
}

// verdict is what Spin found.
type verdict struct {
	states int64
	took   time.Duration
	part   bool     // of a large size: its limits were reached before the end of the search
	broken string   // the promise that is broken; empty: none
	story  []string // how
}

// verify runs one check in a directory of its own. The promises of a whole model are checked by a search
// in depth. A broken one is searched for in breadth: so its story is the shortest.
func verify(ctx context.Context, c check, most limits) (verdict, error) {
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		return verdict{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.CopyFS(dir, models); err != nil {
		return verdict{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most.time, fmt.Errorf("not done within %v", most.time))
	defer cancel()
	s := spin{ctx: ctx, dir: dir, check: c}

	began := time.Now()
	out, err := s.search(most.memory)
	if err != nil {
		return verdict{}, err
	}
	v := verdict{took: time.Since(began)}
	if m := stored.FindStringSubmatch(out); m != nil {
		v.states, _ = strconv.ParseInt(m[1], 10, 64)
	}
	switch {
	case strings.Contains(out, "errors: 0") && (c.long || !incomplete.MatchString(out)):
		v.part = incomplete.MatchString(out)
		return v, nil
	case !failed.MatchString(out) || strings.Contains(out, "errors: 0"):
		return v, fmt.Errorf("the search is not complete:\n%s", out)
	}
	v.broken, v.story, err = s.replay()
	return v, err
}

var (
	stored     = regexp.MustCompile(`(?m)^\s*(\d+) states, stored`)
	incomplete = regexp.MustCompile(`(?i)max search depth too small|out of memory|reached -DMEMLIM|interrupted|search not completed`)
	failed     = regexp.MustCompile(`assertion violated|acceptance cycle|invalid end state`)
	chatter    = regexp.MustCompile(`^(spin:|ltl |Never claim|never claim|starting claim|using statement merging|#processes|\s*\d+ processes created|\s*\d+:\s+proc|\t\t|\s*$|-{5,})`)
)

// spin is one run of it.
type spin struct {
	ctx   context.Context
	dir   string
	check check
}

// flags are those of the preprocessor.
func (s *spin) flags() []string {
	c := s.check
	flags := append([]string{}, c.flags...)
	if c.rule != "" {
		flags = append(flags, "-D"+c.rule)
		if !c.live() {
			flags = append(flags, "-DONLY="+c.promise)
		}
	}
	return flags
}

// search makes the verifier and runs it.
func (s *spin) search(memory int) (string, error) {
	if _, err := s.run("spin", append(s.flags(), "-a", s.check.model)...); err != nil {
		return "", err
	}
	build := []string{"-w", "-o", "pan", "pan.c", "-DMEMLIM=" + strconv.Itoa(memory)}
	search := []string{"-m1000000"}
	switch {
	case s.check.live():
		build = append(build, "-O1", "-DNFAIR=4", "-DCOLLAPSE")
		search = []string{"-m1000000", "-a", "-f"}
		if s.check.rule != "" {
			search[0] = "-m10000" // for a short story
		}
	case s.check.rule != "":
		build = append(build, "-O0", "-DSAFETY", "-DBFS")
	default:
		build = append(build, "-O2", "-DSAFETY", "-DCOLLAPSE")
	}
	if _, err := s.run("gcc", build...); err != nil {
		return "", err
	}
	return s.run(filepath.Join(s.dir, "pan"), search...)
}

// replay replays the trail of an error, and returns the promise that is broken and the steps that lead there.
func (s *spin) replay() (broken string, story []string, err error) {
	out, err := s.run("spin", append(s.flags(), "-t", "-T", s.check.model)...)
	if err != nil {
		return "", nil, err
	}
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, " \n")
		if name, found := strings.CutPrefix(line, "BROKEN: "); found {
			return name, story, nil
		}
		if s.check.live() && strings.Contains(line, "<<<<<START OF CYCLE>>>>>") {
			story = append(story, "from here on for ever:")
		} else if !chatter.MatchString(line) {
			story = append(story, line)
		}
	}
	if s.check.live() {
		return s.check.promise, story, nil
	}
	return "", story, errors.New("an end that is none:\n" + out)
}

func (s *spin) run(name string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.ctx, name, args...)
	cmd.Dir = s.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the verifier reports how far it has come
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if s.check.long && errors.Is(s.ctx.Err(), context.DeadlineExceeded) && stored.Match(out) {
		return string(out), nil
	}
	if s.ctx.Err() != nil {
		return "", context.Cause(s.ctx)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, out)
	}
	return string(out), nil
}
