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

// bothCosts stands for two figures: the processor time of clients, and of Redis, for each lock.
const bothCosts = "client; server"

const costsText = "the same: CPU of clients; of Redis, µs"

var tables = []pageTable{
	{"bench/README.md", "free", []string{relockName, "rueidislock", "redsync", "redislock", plainFloor}, []shown{
		{"one goroutine, one name: µs", "request", "1 goroutine", "us", 0},
		{"the same: allocations", "request", "1 goroutine", "allocs", 0},
		{costsText, "request", "1 goroutine", bothCosts, 0},
		{"64 goroutines, a name each: locks per s", "par", "64 goroutines", "ops", 0},
		{costsText, "par", "64 goroutines", bothCosts, 1},
		{"512 goroutines, a name each: locks per s", "par", "512 goroutines", "ops", 0},
		{costsText, "par", "512 goroutines", bothCosts, 1},
		{"10 000 locks, held and renewed: bytes per lock", "hold", "10000 locks", "bytes", 0},
		{"the same: CPU of the client, % of a core", "hold", "10000 locks", "cpu", 1},
	}},
	{"bench/README.md", "busy", apart, []shown{
		{"64 goroutines, one name: hand-overs per s", "contended", "64 goroutines", "rate", 0},
		{"the same: Jain's index", "contended", "64 goroutines", "jain", 3},
		{"the same: commands per hand-over", "contended", "64 goroutines", "commands", 2},
		{costsText, "contended", "64 goroutines", bothCosts, 1},
		{"4 processes of 16, one name: hand-overs per s", "processes", "4 processes", "rate", 0},
		{"the same: Jain's index", "processes", "4 processes", "jain", 3},
		{"the same: commands per hand-over", "processes", "4 processes", "commands", 2},
		{costsText, "processes", "4 processes", bothCosts, 1},
		{"from Unlock to a waiter in another process: µs", "wake", "idle for 30 ms before", "p50", 0},
		{"the same: to another client of the process", "wake-clients", "idle for 30 ms before", "p50", 0},
	}},
	{"bench/README.md", "options", []string{relockName, asyncName, lingerName, "rueidislock", "redsync", "redislock", plainFloor}, []shown{
		{"a new name each time: µs", "names", "1 goroutine", "us", 0},
		{costsText, "names", "1 goroutine", bothCosts, 0},
		{"the same, with Redis 1 ms away: µs", "slow-names", "1 goroutine", "us", 0},
		{"the same: round trips", "slow-names", "1 goroutine", "trips", 2},
		{"one name again and again: µs", "again", "1 goroutine", "us", 1},
		{"the same: commands", "again", "1 goroutine", "sent", 3},
		{costsText, "again", "1 goroutine", bothCosts, 1},
	}},
	{"bench/README.md", "wanted", []string{relockName, lingerName, notifiedFloor, askedFloor}, []shown{
		{"the lock is held, and is unlocked: from Unlock, µs", "wake", "idle for 30 ms before", "p50", 0},
		{"the lock lingers: from the call of Lock, µs", "wanted", "idle for 30 ms before", "p50", 0},
	}},
	{"bench/README.md", "permits", limits, []shown{
		{"permits per s", "permits", permitsLoad, "rate", 0},
		{"commands per permit", "permits", permitsLoad, "commands", 2},
		{"Jain's index", "permits", permitsLoad, "jain", 3},
		{"longest wait, ms", "permits", permitsLoad, "max", 0},
		{"grants over the limit", "permits", permitsLoad, "over", 0},
		{"CPU of clients; of Redis, for each permit, µs", "permits", permitsLoad, bothCosts, 0},
	}},
	{"docs/scale.md", "idle", renewing, []shown{
		{"10 000 goroutines of one process: commands per s", "idle", "10000 waiters", "rate", 1},
	}},
	{"docs/scale.md", "queue", inOrder, []shown{
		{"2 waiters in 2 processes: hand-overs per s", "queue", "2 waiters in 2 processes", "rate", 0},
		{"the same: commands per hand-over", "queue", "2 waiters in 2 processes", "commands", 2},
		{costsText, "queue", "2 waiters in 2 processes", bothCosts, 0},
		{"500 waiters in 4 processes: hand-overs per s", "queue", "500 waiters in 4 processes", "rate", 0},
		{"the same: commands per hand-over", "queue", "500 waiters in 4 processes", "commands", 2},
		{costsText, "queue", "500 waiters in 4 processes", bothCosts, 0},
		{"the same: the longest wait, ms", "queue", "500 waiters in 4 processes", "max", 1},
	}},
	{"docs/scale.md", "sides", sides, []shown{
		{"95 of 100 only read: holds per s", "read-mostly", "64 goroutines", "rate", 0},
		{costsText, "read-mostly", "64 goroutines", bothCosts, 0},
		{"the same: longest wait of a reader, ms", "read-mostly", "64 goroutines", "reader", 1},
		{"the same: of a writer, ms", "read-mostly", "64 goroutines", "writer", 1},
		{"20 of 100 only read: holds per s", "write-mostly", "64 goroutines", "rate", 0},
		{costsText, "write-mostly", "64 goroutines", bothCosts, 0},
		{"the same: longest wait of a reader, ms", "write-mostly", "64 goroutines", "reader", 1},
		{"the same: of a writer, ms", "write-mostly", "64 goroutines", "writer", 1},
	}},
	{"docs/scale.md", "far", []string{relockName, asyncName, "rueidislock", "redsync", "redislock", plainFloor}, []shown{
		{"one goroutine, a new name each time: µs for a lock and its unlock", "slow-names", "1 goroutine", "us", 0},
		{costsText, "slow-names", "1 goroutine", bothCosts, 0},
		{"64 goroutines, a name each: locks per s", "slow-par", "64 goroutines", "ops", 0},
		{costsText, "slow-par", "64 goroutines", bothCosts, 0},
		{"64 goroutines, one name: hand-overs per s", "slow-contended", "64 goroutines", "rate", 0},
		{"the same: round trips per hand-over", "slow-contended", "64 goroutines", "trips", 2},
		{costsText, "slow-contended", "64 goroutines", bothCosts, 0},
	}},
	{"docs/scale.md", "quorum", voting, []shown{
		{"one goroutine: µs for a lock and its unlock", "quorum-seq", "1 goroutine", "us", 0},
		{"the same: CPU of the client, µs", "quorum-seq", "1 goroutine", "client", 0},
		{"16 goroutines, one name: hand-overs per s", "quorum", "1 process", "rate", 0},
		{"the same: CPU of the client, µs", "quorum", "1 process", "client", 0},
		{"4 processes of 16, one name: hand-overs per s", "quorum", "4 processes", "rate", 0},
		{"the same: Jain's index, 1 is best", "quorum", "4 processes", "jain", 3},
		{"the same: CPU of the clients, µs", "quorum", "4 processes", "client", 0},
	}},
}

// block is what stands between the markers. It leaves out rows that were not measured.
func (r *report) block(t pageTable) string {
	var rows strings.Builder
	for _, row := range t.rows {
		cells := ""
		for _, name := range t.contenders {
			cells += r.cellText(row.scenario, row.load, name, row.figure, row.digits)
		}
		if strings.Trim(cells, " |") != "" {
			fmt.Fprintf(&rows, "| %s |%s\n", row.text, cells)
		}
	}
	if rows.Len() == 0 {
		return "This run did not measure it.\n"
	}
	return header(t.contenders) + rows.String()
}

// header is that of a table with a column for each name.
func header(names []string) string {
	return fmt.Sprintf("| | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("--:|", len(names)))
}

// cellText is a cell of a table: a median, nothing if that was not measured, or that all rounds were void.
func (r *report) cellText(scenario, load, name, figure string, n int) string {
	if figure == bothCosts {
		client, ok1 := r.figure(scenario, load, name, "client")
		server, ok2 := r.figure(scenario, load, name, "server")
		if ok1 && ok2 {
			return fmt.Sprintf(" %s; %s |", number(client.median, n), number(server.median, n))
		}
	}
	f, ok := r.figure(scenario, load, name, figure)
	switch {
	case ok:
		return " " + number(f.median, n) + " |"
	case r.void(scenario, load, name):
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
	r.growthTable(&b, func(load, who string) string {
		cell := r.cellText("fleet", load, who, "rate", 0)
		if commands, ok := r.figure("fleet", load, who, "commands"); ok {
			cell = fmt.Sprintf("%s; %s |", strings.TrimSuffix(cell, " |"), digits(1)(commands.median))
		}
		return cell
	})
	b.WriteString("\nProcessor time of clients, and of Redis, for each hold, µs:\n\n")
	r.growthTable(&b, func(load, who string) string { return r.cellText("fleet", load, who, bothCosts, 0) })
	return b.String()
}

// growthTable writes a table with a row for each size of the fleet.
func (r *report) growthTable(b *strings.Builder, cell func(load, who string) string) {
	b.WriteString(header(apart))
	for _, load := range growthLoads() {
		processes, _, _ := strings.Cut(load, ",")
		fmt.Fprintf(b, "| %s |", processes)
		for _, who := range apart {
			b.WriteString(cell(load, who))
		}
		b.WriteString("\n")
	}
}

// number prints a whole number in groups of three digits, or so many digits after the point.
func number(v float64, n int) string {
	if n == 0 {
		return draw.Thousands(v)
	}
	return digits(n)(v)
}
