package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// A scenario is one way to use locks, under one or several loads.
type scenario struct {
	name       string
	title      string
	loads      []load
	contenders []string
	measure    measurement

	// columns are the figures to be shown. The first is what the scenario is about: it
	// comes with its minimum, its maximum, and its ratio to that of the contender base.
	columns []column
	base    string
	higher  bool // more of the first figure is better

	times int // how many durations a measurement takes, if it is no loop
}

// measurement measures a cell. An error makes it void.
type measurement func(ctx context.Context, c *cell) (figures, error)

// figures are the results of one cell, by the key of a column.
type figures map[string]float64

// of returns a figure, NaN if it was not measured.
func (f figures) of(key string) float64 {
	if v, ok := f[key]; ok {
		return v
	}
	return math.NaN()
}

// load is how much is going on at once.
type load struct {
	label      string
	processes  int
	goroutines int           // of each process
	hold       time.Duration // how long each keeps the lock, at least
	limit      int           // how many may have the name of a semaphore at a time
}

// crowds are loads of one process with so many of what is named.
func crowds(what string, sizes ...int) []load {
	var loads []load
	for _, n := range sizes {
		loads = append(loads, load{label: fmt.Sprintf("%d %s", n, what), processes: 1, goroutines: n})
	}
	return loads
}

// several are loads of so many processes with as many goroutines each.
func several(goroutines int, sizes ...int) []load {
	var loads []load
	for _, n := range sizes {
		label := fmt.Sprintf("%d processes", n)
		if n == 1 {
			label = "1 process"
		}
		loads = append(loads, load{label: label, processes: n, goroutines: goroutines})
	}
	return loads
}

// fleets are processes of one goroutine, under each of the times for which they keep a lock.
func fleets(holds ...time.Duration) []load {
	var loads []load
	for _, hold := range holds {
		for _, l := range several(1, 1, 2, 8, 32, 64) {
			l.label, l.hold = fmt.Sprintf("%s, %d ms", l.label, hold.Milliseconds()), hold
			loads = append(loads, l)
		}
	}
	return loads
}

// column is a figure and how it is shown.
type column struct {
	key    string
	head   string
	format func(float64) string
}

func (s *scenario) brief(f figures, err error) string {
	if err != nil {
		return "VOID: " + err.Error()
	}
	text := ""
	for _, c := range s.columns {
		if v, ok := f[c.key]; ok {
			text += fmt.Sprintf("%s %s  ", c.format(v), c.head)
		}
	}
	return text
}

const permitsLoad = "32 processes, limit 4, 1 ms"

var (
	libraries  = []string{relockName, "rueidislock", "redsync", "redsync 2ms", "redislock"}
	everyone   = slices.Insert(slices.Clone(libraries), 1, fairName)
	alone      = []string{relockName, apartName, "rueidislock", "redsync", "redislock", plainFloor, pipeFloor} // a retry delay does not matter
	free       = []string{relockName, asyncName, "rueidislock", "redsync", "redislock", plainFloor}
	again      = []string{relockName, lingerName, "rueidislock", "redsync", "redislock"}
	reentrant  = []string{relockName, plainFloor, pipeFloor}
	inOrder    = []string{relockName, fairName}
	renewing   = []string{relockName, "rueidislock"}
	sides      = []string{rwName, relockName}
	limits     = []string{permitsName, "counter", "counter 2ms"}
	voting     = []string{quorumName, "redsync quorum", "rueidislock quorum"}
	apart      = []string{relockName, fairName, "rueidislock", "redsync", "redislock"}
	one        = crowds("goroutine", 1)
	crowd      = crowds("goroutines", 64)
	inParallel = crowds("goroutines", 64, 512)
	waking     = []load{{label: "idle for 30 ms before", processes: 2, goroutines: 1}}
	fleet      = fleets(0, time.Millisecond, 5*time.Millisecond)

	pairColumns = []column{
		{"us", "µs per lock + unlock", digits(1)},
		{"allocs", "allocs", digits(0)},
		{"bytes", "bytes", digits(0)},
		clientColumn, serverColumn,
	}
	parallelColumns = []column{{"ops", "locks + unlocks per s", digits(0)}, clientColumn, serverColumn}
	clientColumn    = column{"client", "client CPU, µs", digits(1)}
	serverColumn    = column{"server", "Redis CPU, µs", digits(1)}
	rateColumn      = column{"rate", "hand-offs per s", digits(0)}
	holdsColumn     = column{"rate", "holds per s", digits(0)}
	sharedColumns   = []column{
		rateColumn,
		{"commands", "commands per hand-off", digits(2)},
		{"jain", "Jain's index", digits(3)},
		{"p50", "wait p50, ms", digits(1)},
		{"p99", "p99, ms", digits(1)},
		{"max", "max, ms", digits(1)},
		clientColumn, serverColumn,
	}
	fleetColumns = []column{
		holdsColumn,
		{"commands", "commands per hold", digits(2)},
		sharedColumns[2],
		{"unserved", "never served", digits(0)},
		{"mean", "wait mean, ms", digits(1)},
		sharedColumns[4], sharedColumns[5],
		clientColumn, serverColumn,
	}
	votingColumns = append(slices.Clone(sharedColumns[:6]), clientColumn) // what the servers do is not measured
	sidesColumns  = []column{
		holdsColumn,
		{"reads", "reads per s", digits(0)},
		{"writes", "writes per s", digits(0)},
		{"reader", "longest wait of a reader, ms", digits(1)},
		{"writer", "of a writer, ms", digits(1)},
		clientColumn, serverColumn,
	}
	permitColumns = []column{
		{"rate", "permits per s", digits(0)},
		{"commands", "commands per permit", digits(2)},
		sharedColumns[2],
		{"max", "longest wait, ms", digits(1)},
		{"over", "over the limit", digits(0)},
		clientColumn, serverColumn,
	}
	wakeColumns = []column{{"p50", "p50, µs", digits(0)}, {"p99", "p99, µs", digits(0)}, {"n", "times", digits(0)}}
	tripsColumn = column{"trips", "round trips", digits(2)}
)

// scenarios are all of them, in the order of the report.
var scenarios = []*scenario{
	{name: "seq", title: "One goroutine, one name, with context.Background()", loads: one, contenders: alone,
		measure: measurePairs(order{OwnNames: true, Background: true}), columns: pairColumns, base: plainFloor},
	{name: "request", title: "One goroutine, one name, with the context of a request: cancellable, with a deadline", loads: one, contenders: alone,
		measure: measurePairs(order{OwnNames: true}), columns: pairColumns, base: plainFloor},
	{name: "names", title: "One goroutine, a new name each time", loads: one, contenders: free,
		measure: measurePairs(order{NewNames: true}), columns: pairColumns, base: "redsync"},
	{name: "again", title: "One goroutine, one name, again and again", loads: one, contenders: again,
		measure: measurePairs(order{OwnNames: true}), columns: append(slices.Clone(pairColumns), column{"sent", "commands", digits(3)}), base: "redsync"},
	{name: "nested", title: "A lock inside a lock that is held, and its unlock, with context.Background()", loads: one, contenders: reentrant,
		measure: measurePairs(order{OwnNames: true, Background: true, Nested: true}), columns: pairColumns, base: plainFloor},
	{name: "par", title: "Many goroutines, a name each", loads: inParallel, contenders: alone,
		measure: measureParallel, base: plainFloor, higher: true,
		columns: parallelColumns},
	{name: "contended", title: "One name, one process", loads: crowds("goroutines", 4, 16, 64), contenders: everyone,
		measure: measureShared, columns: sharedColumns, base: relockName, higher: true},
	{name: "processes", title: "One name, several processes of 16 goroutines", contenders: everyone,
		loads:   several(16, 1, 2, 4, 8, 16, 32),
		measure: measureShared, columns: sharedColumns, base: relockName, higher: true},
	{name: "fleet", title: "One name, several processes of one goroutine, which keep it for a while", loads: fleet, contenders: apart,
		measure: measureShared, columns: fleetColumns, base: relockName, higher: true},
	{name: "queue", title: "One name, several processes, few or many who wait in order",
		loads: []load{{label: "2 waiters in 2 processes", processes: 2, goroutines: 1},
			{label: "500 waiters in 4 processes", processes: 4, goroutines: 125}},
		contenders: inOrder, measure: measureShared, columns: sharedColumns, base: relockName, higher: true},
	{name: "readers", title: "Goroutines that read one name, or write a name each", loads: append(slices.Clone(one), crowd...), contenders: sides,
		measure: measureReaders, columns: parallelColumns, base: relockName, higher: true},
	{name: "read-mostly", title: "One name that is kept for 0.2 ms, read by 95 of 100", loads: crowd, contenders: sides,
		measure: measureReadWrite(0.95), columns: sidesColumns, base: relockName, higher: true},
	{name: "write-mostly", title: "One name that is kept for 0.2 ms, read by 20 of 100", loads: crowd, contenders: sides,
		measure: measureReadWrite(0.20), columns: sidesColumns, base: relockName, higher: true},
	{name: "permits", title: "One semaphore, several processes of 4 goroutines, which keep a permit for a while",
		loads:      []load{{label: permitsLoad, processes: 32, goroutines: 4, hold: time.Millisecond, limit: 4}},
		contenders: limits, measure: measurePermits, columns: permitColumns, base: permitsName, higher: true},
	{name: "wake", title: "From the holder's call of Unlock to the return of the waiter's Lock in another process",
		loads: waking, contenders: append(slices.Clone(everyone), plainFloor, notifiedFloor),
		measure: measureWake, base: relockName, columns: wakeColumns, times: 5},
	{name: "wake-clients", title: "The same, from one client of a process to another",
		loads: []load{{label: "idle for 30 ms before", processes: 1, goroutines: 1}}, contenders: []string{relockName, fairName, "rueidislock", plainFloor, notifiedFloor},
		measure: measureWake, base: relockName, columns: wakeColumns, times: 5},
	{name: "wanted", title: "A Lock of another process while a lock lingers: from its call to its return",
		loads: waking, contenders: []string{lingerName, askedFloor},
		measure: measureWanted, base: lingerName, columns: wakeColumns, times: 5},
	{name: "idle", title: "Waiters of one process for a lock that stays held by another", contenders: libraries,
		loads:   crowds("waiters", 64, 1000, 10_000),
		measure: measureIdle, base: relockName, times: 5,
		columns: []column{{"rate", "commands per s", digits(1)}, {"sent", "commands", digits(0)}, {"window", "in s", digits(1)}}},
	{name: "hold", title: "10 000 locks that are held and renewed", loads: crowds("locks", 10_000),
		contenders: renewing, measure: measureHold, base: relockName, times: 10,
		columns: []column{
			{"bytes", "bytes per lock", digits(0)},
			{"goroutines", "goroutines per lock", digits(2)},
			{"rate", "renewals per s", digits(0)},
			{"cpu", "client CPU, % of a core", digits(1)},
			{"late", "latest renewal, s", digits(3)},
			{"share", "in intervals", digits(3)},
		}},
	{name: "slow-seq", title: "One goroutine, 1 ms each way to Redis", loads: one, contenders: alone,
		measure: slowly(measurePairs(order{OwnNames: true})), base: plainFloor,
		columns: []column{pairColumns[0], tripsColumn, clientColumn, serverColumn}},
	{name: "slow-names", title: "One goroutine, a new name each time, 1 ms each way to Redis", loads: one, contenders: free,
		measure: slowly(measurePairs(order{NewNames: true})), base: "redsync",
		columns: []column{pairColumns[0], tripsColumn, clientColumn, serverColumn}},
	{name: "slow-par", title: "Many goroutines, a name each, 1 ms each way to Redis", loads: inParallel,
		contenders: alone, measure: slowly(measureParallel), base: plainFloor, higher: true,
		columns: parallelColumns},
	{name: "slow-contended", title: "One name, one process, 1 ms each way to Redis", loads: crowd,
		contenders: libraries, measure: slowly(measureShared), base: relockName, higher: true,
		columns: append([]column{rateColumn, {"trips", "round trips per hand-off", digits(2)}}, sharedColumns[1:]...)},
	{name: "quorum-seq", title: "One goroutine, one name, a majority of 3 servers", loads: one, contenders: voting,
		measure: onSeveral(measurePairs(order{OwnNames: true})), base: quorumName,
		columns: append(slices.Clone(pairColumns[:3]), clientColumn)},
	{name: "quorum", title: "One name, several processes of 16 goroutines, a majority of 3 servers", contenders: voting,
		loads:   several(16, 1, 4),
		measure: onSeveral(measureShared), base: quorumName, higher: true, columns: votingColumns},
}

func scenarioNames() []string {
	names := make([]string, len(scenarios))
	for i, s := range scenarios {
		names[i] = s.name
	}
	return names
}

func scenarioNamed(name string) *scenario {
	for _, s := range scenarios {
		if s.name == name {
			return s
		}
	}
	return nil
}

// digits formats with so many digits after the point.
func digits(n int) func(float64) string {
	return func(v float64) string {
		if math.IsNaN(v) {
			return "–"
		}
		return strconv.FormatFloat(v, 'f', n, 64)
	}
}
