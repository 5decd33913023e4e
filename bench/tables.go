package main

import (
	"fmt"
	"strings"

	"github.com/relock-go/relock/bench/draw"
)

// The tables that are written into pages.

// shown is a row: a figure of a load of a scenario.
type shown struct {
	text, scenario, load, figure string
	digits                       int
}

// pageTable is a table in a page, between two markers.
type pageTable struct {
	file, name string
	contenders []string
	rows       []shown
}

var tables = []pageTable{
	{"bench/README.md", "results", apart, []shown{
		{"lock and unlock: µs", "seq", "1 goroutine", "us", 0},
		{"allocations", "seq", "1 goroutine", "allocs", 0},
		{"512 goroutines, a name each: per s", "par", "512 goroutines", "ops", 0},
		{"64 goroutines, one name: per s", "contended", "64 goroutines", "rate", 0},
		{"Jain's index", "contended", "64 goroutines", "jain", 3},
		{"commands per hand-over", "contended", "64 goroutines", "commands", 2},
		{"4 processes of 16: per s", "processes", "4 processes", "rate", 0},
		{"Jain's index", "processes", "4 processes", "jain", 3},
		{"wake: µs", "wake", "idle for 30 ms before", "p50", 0},
		{"hold: bytes per lock", "hold", "10000 locks", "bytes", 0},
	}},
	{"docs/scale.md", "idle", renewing, []shown{
		{"10 000 goroutines of one process: commands per s", "idle", "10000 waiters", "rate", 1},
	}},
	{"docs/scale.md", "queue", inOrder, []shown{
		{"2 waiters in 2 processes: hand-overs per s", "queue", "2 waiters in 2 processes", "rate", 0},
		{"the same: commands per hand-over", "queue", "2 waiters in 2 processes", "commands", 2},
		{"500 waiters in 4 processes: hand-overs per s", "queue", "500 waiters in 4 processes", "rate", 0},
		{"the same: commands per hand-over", "queue", "500 waiters in 4 processes", "commands", 2},
		{"the same: the longest wait, ms", "queue", "500 waiters in 4 processes", "max", 1},
	}},
	{"docs/scale.md", "sides", sides, []shown{
		{"95 of 100 only read: holds per s", "read-mostly", "64 goroutines", "rate", 0},
		{"the same: longest wait of a reader, ms", "read-mostly", "64 goroutines", "reader", 1},
		{"the same: of a writer, ms", "read-mostly", "64 goroutines", "writer", 1},
		{"20 of 100 only read: holds per s", "write-mostly", "64 goroutines", "rate", 0},
		{"the same: longest wait of a reader, ms", "write-mostly", "64 goroutines", "reader", 1},
		{"the same: of a writer, ms", "write-mostly", "64 goroutines", "writer", 1},
	}},
	{"docs/scale.md", "far", []string{relockName, "rueidislock", "redsync", "redsync 2ms", "redislock", plainFloor}, []shown{
		{"one goroutine: µs for a lock and its unlock", "slow-seq", "1 goroutine", "us", 0},
		{"64 goroutines, a name each: locks per s", "slow-par", "64 goroutines", "ops", 0},
		{"64 goroutines, one name: hand-overs per s", "slow-contended", "64 goroutines", "rate", 0},
		{"the same: round trips per hand-over", "slow-contended", "64 goroutines", "trips", 2},
	}},
	{"docs/scale.md", "quorum", voting, []shown{
		{"one goroutine: µs for a lock and its unlock", "quorum-seq", "1 goroutine", "us", 0},
		{"16 goroutines, one name: hand-overs per s", "quorum", "1 process", "rate", 0},
		{"4 processes of 16, one name: hand-overs per s", "quorum", "4 processes", "rate", 0},
		{"the same: Jain's index, 1 is best", "quorum", "4 processes", "jain", 3},
	}},
}

// block is what stands between the markers.
func (r *report) block(t pageTable) string {
	var b strings.Builder
	if t.file == "bench/README.md" { // other pages say it elsewhere, or need not
		fmt.Fprintf(&b, "%s, with %s:\n\n", r.source(), strings.Join(r.versions, ", "))
	}
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(t.contenders, " | "), strings.Repeat("--:|", len(t.contenders)))
	for _, row := range t.rows {
		fmt.Fprintf(&b, "| %s |", row.text)
		for _, name := range t.contenders {
			b.WriteString(r.cellText(row.scenario, row.load, name, row.figure, row.digits))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// cellText is a cell of a table: a median, nothing if that was not measured, or that all rounds were void.
func (r *report) cellText(scenario, load, name, figure string, n int) string {
	f, ok := r.figure(scenario, load, name, figure)
	switch {
	case ok && n == 0:
		return " " + draw.Thousands(f.median) + " |"
	case ok:
		return " " + digits(n)(f.median) + " |"
	case len(r.samples[key(scenario, load, name)]) > 0:
		return " void |"
	default:
		return " |"
	}
}

// growthBlock is the picture and the table of docs/scale.md.
func (r *report) growthBlock() string {
	var b strings.Builder
	b.WriteString("![Lines: holds per second and commands per hold, by the number of processes](pictures/growth.svg)\n\n")
	fmt.Fprintf(&b, "`%s` on %s. Processes of one goroutine, one name, kept for 1 ms. Holds per second, and commands per hold:\n\n", publishCommand, r.source())
	fmt.Fprintf(&b, "| | %s |\n|---|%s\n", strings.Join(apart, " | "), strings.Repeat("--:|", len(apart)))
	for _, load := range growthLoads() {
		name, _, _ := strings.Cut(load, ",")
		fmt.Fprintf(&b, "| %s |", name)
		for _, who := range apart {
			rate := strings.TrimSuffix(r.cellText("fleet", load, who, "rate", 0), " |")
			if commands, ok := r.figure("fleet", load, who, "commands"); ok {
				rate += "; " + digits(1)(commands.median)
			}
			b.WriteString(rate + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}
