package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// filled returns results with loads of two contenders: the second one is slower by a factor in all rounds.
func filled(factor int64) *results {
	r := newResults(config{rounds: 6, command: "go run -C bench/open ."})
	for i, name := range []string{relockName, "redislock"} {
		for _, l := range levels {
			c := &cell{}
			for round := range int64(6) {
				one := loadResult{waits: newHistogram(), arrivals: 1000, served: 1000, clientCPU: time.Second, bytes: 1000}
				for n := range int64(1000) {
					wait := 1000 + n + 10*round
					if i == 1 {
						wait *= factor
					}
					_ = one.waits.RecordValue(wait)
				}
				c.add(5000, time.Second, one)
			}
			r.Load[cellKey("hot", name, l.name)] = c
		}
	}
	r.Recovery[relockName] = map[string][]outcome{"holder": {{First: 100, Last: 200}, {First: 120, Last: never}, {First: 110, Last: 210}}}
	return r
}

func TestResults_FileKeepsWhatTheTablesShow(t *testing.T) {
	r := filled(3)
	page, picture := r.page(), r.picture()
	file := filepath.Join(t.TempDir(), "results.json")
	require.NoError(t, r.save(file))
	again, err := loadResults(file)
	require.NoError(t, err)
	require.Equal(t, page, again.page())
	require.Equal(t, picture, again.picture())
}

func TestTables_DifferenceInsideTheIntervalIsNone(t *testing.T) {
	row := func(r *results) string {
		_, same, found := strings.Cut(r.scenario("hot"), "The same load for all")
		require.True(t, found)
		for line := range strings.Lines(same) {
			if strings.HasPrefix(line, "| redislock |") {
				return line
			}
		}
		return ""
	}
	require.Contains(t, row(filled(3)), "| **3.00** |")
	require.Contains(t, row(filled(1)), "| none |")
}

func TestTables_IntervalNeedsSixRounds(t *testing.T) {
	require.Equal(t, "3.00 (1.00–5.50)", intervalOf([]float64{1, 2, 3, 3, 4, 5.5}).print(1))
	require.Equal(t, "2.00", intervalOf([]float64{1, 2, 3}).print(1))
	require.Empty(t, intervalOf(nil).print(1))
}

func TestTables_QuantilesAreOfAllRounds(t *testing.T) {
	c := filled(1).Load[cellKey("hot", relockName, sameLoad)]
	require.Equal(t, "1.52 · 2.02 · 2.04 · 2.05", c.waits())
	c.Unserved, c.Lost, c.Overlaps = 6, 2, 1
	require.Contains(t, c.waits(), "(0.10 % unserved) (2 failed, **1 holds overlapped**)")
}

func TestRecovery_WhatNeverCameIsMoreThanTheObservation(t *testing.T) {
	r := filled(1)
	require.Contains(t, r.recovery(false), "| relock | 0.11 (0.10–0.12); 0.21 (0.20–> 10) |")
	require.Equal(t, "no notice", outcomes([]outcome{{Note: noNotice}}, true))
	require.Equal(t, "–", outcomes([]outcome{{Note: errNotHere.Error()}}, true))
	require.Equal(t, "1.50", outcomes([]outcome{{Learned: 1500}}, true))
}

func TestPublish_NoisyRunWritesNoPage(t *testing.T) {
	r := filled(2)
	r.Noise = noise{Before: 0.001, Rounds: []float64{0.01, 0.2}}
	file, root := filepath.Join(t.TempDir(), "results.json"), t.TempDir() // without a page: writing it would be another error
	require.NoError(t, r.save(file))
	var out strings.Builder
	err := run(t.Context(), []string{"-from", file, "-publish", root}, &out, &out)
	require.ErrorContains(t, err, "the machine was not quiet: no page is written")
	require.NoFileExists(t, filepath.Join(root, "docs"))
	require.Contains(t, out.String(), "**The machine was not quiet**, so these numbers are no result: other processes, and the hypervisor, had 0.1 % of the processors before the run, and at most 20.0 %")
}

func TestPlan_WindowsKeepToTheBudget(t *testing.T) {
	c, err := parse(nil, &strings.Builder{})
	require.NoError(t, err)
	p, err := c.plan()
	require.NoError(t, err)
	require.GreaterOrEqual(t, p.window, 700*time.Millisecond, "the whole run within an hour: some hundred arrivals at the same load for all")

	c.budget = time.Minute
	_, err = c.plan()
	require.ErrorContains(t, err, "-budget 1m0s is too short")
}

func TestParse_UnknownNamesAreErrors(t *testing.T) {
	for args, want := range map[string]string{
		"-scenarios hot,cold":       `there is no "cold"`,
		"-contenders mutex":         `there is no "mutex"`,
		"-publish . -scenarios hot": "all scenarios and contenders",
		"-rounds 0":                 "at least 1",
		"more":                      "unexpected argument",
	} {
		_, err := parse(strings.Fields(args), &strings.Builder{})
		require.ErrorContains(t, err, want)
	}
}
