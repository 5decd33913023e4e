package main

import "time"

// scenario is what is locked, by how many processes, and for how long.
type scenario struct {
	name, title string
	processes   int
	names       int           // 0: a new name each time
	hold        time.Duration // of each lock
	closed      int           // goroutines or threads of the closed loop, of all processes
	same        float64       // arrivals per second of the load that is the same for all
	long        int           // the window of that load, in windows: its p99 needs some hundred arrivals
}

// skew is the exponent of the distribution of names, as in YCSB: the first of 1 000 names has an eighth of the arrivals.
const skew = 0.99

var scenarios = []scenario{
	{name: "free", title: "A free name", processes: 1, closed: 64, same: 500, long: 1},
	{name: "skewed", title: "1 000 names, skewed", processes: 1, names: 1000, closed: 64, same: 500, long: 1},
	{name: "hot", title: "One hot name, held for 1 ms", processes: 1, names: 1, hold: time.Millisecond, closed: 64, same: 100, long: 4},
	{name: "fleet", title: "A fleet: 16 processes, one name, held for 1 ms", processes: 16, names: 1, hold: time.Millisecond, closed: 64, same: 100, long: 4},
}

// level is a load: a share of the contender's own limit, or the same rate for all.
type level struct {
	name  string
	share float64 // 0: the same rate for all
}

var levels = []level{{"20 %", 0.2}, {"50 %", 0.5}, {"80 %", 0.8}, {"95 %", 0.95}, {sameLoad, 0}}

const sameLoad = "same"

// patience is how long after the last arrival a lock is waited for. An arrival that has none by then counts as unserved,
// with the time that it has waited.
const patience = time.Second
