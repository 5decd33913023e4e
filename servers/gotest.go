package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// tally has the results of the tests of a run. A test with subtests is not counted itself.
type tally struct {
	passed, skipped int
	why             map[string]int // how many were skipped for which reason
	failures        []string       // the output of failed tests, and of their packages
}

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// test runs go test with these arguments, without the subtests on miniredis.
func (s *stage) test(ctx context.Context, args ...string) (*tally, error) {
	cmd, complaints := s.command(ctx, ".ci/without-miniredis", append([]string{"-json", "-count=1"}, args...)...)
	lines, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	t, unread := count(lines)
	if err := cmd.Wait(); err != nil || len(t.failures) > 0 {
		return nil, fmt.Errorf("go test: %w\n%s\n%s", err, strings.Join(t.failures, "\n"), complaints)
	}
	if unread == nil && t.passed == 0 {
		unread = errors.New("go test ran no test")
	}
	return t, unread
}

// count reads the lines of go test -json.
func count(lines io.Reader) (*tally, error) {
	t := &tally{why: make(map[string]int)}
	var (
		printed = make(map[event]string) // by each test
		parents = make(map[event]bool)
		ended   = make(map[event]string)
	)
	for read := json.NewDecoder(lines); ; {
		var e event
		if err := read.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			_, _ = io.Copy(io.Discard, lines) // otherwise go test would block
			return t, fmt.Errorf("go test -json: %w", err)
		}
		it := event{Package: e.Package, Test: e.Test}
		switch e.Action {
		case "output":
			printed[it] += e.Output
		case "pass", "fail", "skip":
			ended[it] = e.Action
			if above := strings.LastIndex(e.Test, "/"); above >= 0 {
				parents[event{Package: e.Package, Test: e.Test[:above]}] = true
			}
		}
	}
	for it, action := range ended {
		leaf := it.Test != "" && !parents[it]
		switch {
		case action == "fail":
			t.failures = append(t.failures, fmt.Sprintf("%s %s:\n%s", it.Package, it.Test, printed[it]))
		case action == "pass" && leaf:
			t.passed++
		case action == "skip" && leaf:
			t.skipped++
			t.why[reason(printed[it])]++
		}
	}
	slices.Sort(t.failures)
	return t, nil
}

var whySkipped = regexp.MustCompile(`(?m)^ +\S+\.go:\d+: (?:redistest: )?(.*)$`)

// reason returns the reason of a skipped test.
func reason(printed string) string {
	output := whySkipped.FindStringSubmatch(printed)
	if output == nil {
		return "for no reason that was said"
	}
	return output[1]
}

// reasons describes how many tests were skipped, and why.
func (t *tally) reasons() []string {
	var notes []string
	for _, why := range slices.Sorted(maps.Keys(t.why)) {
		notes = append(notes, fmt.Sprintf("%d times: %s", t.why[why], why))
	}
	return notes
}
