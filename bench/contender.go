package main

import (
	"context"
	"fmt"

	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/bench/contend"
)

// A contender is a way to lock that takes part. Each is used as its own documentation says
// is best, with its own defaults where that says nothing.
type contender struct {
	name   string
	legend string // how it is set up, for the report
	open   func(setup) (client, error)
}

type (
	setup  = contend.Setup
	client = contend.Client
	mutex  = contend.Mutex
)

// rwMutex is one whose lock many may hold to read.
type rwMutex interface {
	mutex
	RLock(ctx context.Context) error
	RUnlock() error
}

// reading is the read side of an rwMutex.
type reading struct{ rwMutex }

func (r reading) Lock(ctx context.Context) error { return r.RLock(ctx) }
func (r reading) Unlock() error                  { return r.RUnlock() }

// readSide returns what m is read with, and whether others may read meanwhile: m itself if
// it has no such side.
func readSide(m mutex) (side mutex, shared bool) {
	if rw, ok := m.(rwMutex); ok {
		return reading{rw}, true
	}
	return m, false
}

// Names of contenders that ratios refer to.
const (
	relockName    = "relock"
	apartName     = "relock unpipelined"
	asyncName     = "relock async"
	lingerName    = "relock linger"
	fairName      = "relock fair"
	rwName        = "relock rw"
	permitsName   = "relock permits"
	quorumName    = "relock quorum"
	plainFloor    = "floor"
	pipeFloor     = "pipelined floor"
	notifiedFloor = "message"
	askedFloor    = "two messages"
)

// kinds are the contenders of this library, floors are no libraries. None of them is a rival.
var (
	kinds  = []string{relockName, apartName, asyncName, lingerName, fairName, rwName, permitsName, quorumName}
	floors = []string{plainFloor, pipeFloor, notifiedFloor, askedFloor}
	ours   = slices.Concat(kinds, floors)
)

// contenders are all of them, in the order of the tables.
var contenders = []contender{
	{name: relockName, open: contend.Relock(),
		legend: "defaults: lease 30 s, renewed every 10 s by a watchdog; 16 local hand-offs in a row; safety poll 5 s"},
	{name: apartName, open: contend.Relock(relock.WithoutPipelining()),
		legend: "`WithoutPipelining`: each command on a connection of go-redis' pool; else the same defaults"},
	{name: asyncName, open: contend.Relock(relock.WithAsyncUnlock()),
		legend: "`WithAsyncUnlock`: Unlock returns before Redis has answered; else the same defaults"},
	{name: lingerName, open: contend.Relock(relock.WithLinger(time.Second)),
		legend: "`WithLinger(1s)`: the lock stays with the process for its next Lock; else the same defaults"},
	{name: fairName, open: contend.RelockFair,
		legend: "its FairMutex, which serves in order: the same defaults; a place in the queue is a lease of 10 s"},
	{name: rwName, open: openRW,
		legend: "its RWMutex: the same defaults"},
	{name: permitsName, open: openRelockPermits,
		legend: "its Semaphore: the same defaults"},
	{name: "counter", open: openCounter(counterRetry),
		legend: "no library, but what applications write: INCR; EXPIRE if that is within the limit, otherwise DECR, and again after 50 ms; DECR at the end (kortix-ai/suna pull request 2621, without its time-out; liwala/ay-framework issue 404, which does not wait). It renews nothing, and does not notice a holder that dies"},
	{name: "counter 2ms", open: openCounter(counterFast),
		legend: "the same, again after 2 ms"},
	{name: "rueidislock", open: contend.Rueidislock,
		legend: "`KeyMajority: 1`, `NoLoopTracking: true`, as its README recommends for one Redis; `TryNextAfter: 1s`, because with its default of 20 ms waiters were lost in par with 512 goroutines (under contention some are lost with either); lease 5 s, renewed every 2.5 s"},
	{name: "redsync", open: contend.Redsync(),
		legend: "defaults on a go-redis pool: expiry 8 s, retry after 50 to 250 ms; called again after 32 failed tries; it does not renew"},
	{name: "redsync 2ms", open: contend.Redsync(contend.RedsyncFast),
		legend: "the same `WithRetryDelay(2ms)`"},
	{name: quorumName, open: openQuorum,
		legend: "`NewQuorum` on all servers, the same defaults"},
	{name: "redsync quorum", open: contend.RedsyncQuorum,
		legend: "defaults, a pool for each server: its Redlock"},
	{name: "rueidislock quorum", open: contend.RueidislockQuorum,
		legend: "`KeyMajority: 2`, `NoLoopTracking: true`, `TryNextAfter: 1s`: three keys on the first server alone, because it cannot vote on servers that are no Cluster"},
	{name: "redislock", open: contend.Redislock(2 * time.Millisecond),
		legend: "`LinearBackoff(2ms)`, TTL 30 s; called again after 30 s without success; it does not renew"},
	{name: plainFloor, open: openFloor,
		legend: "no library: one EVALSHA that sets a hash field and its expiry, one that deletes and publishes; a plain go-redis client; waits for the message"},
	{name: pipeFloor, open: openPipelinedFloor,
		legend: "the same scripts through go-redis' auto-pipelining, full duplex"},
	{name: notifiedFloor, open: openMessage,
		legend: "no lock: the floor's release, and the waiter takes its message for the lock"},
	{name: askedFloor, open: openAsked,
		legend: "no lock: it lingers, a waiter asks for it by a message, and takes that of the release for the lock"},
}

func contenderNamed(name string) (contender, error) {
	names := make([]string, 0, len(contenders))
	for _, c := range contenders {
		if c.name == name {
			return c, nil
		}
		names = append(names, c.name)
	}
	return contender{}, fmt.Errorf("no contender is called %q; there are %s", name, strings.Join(names, "; "))
}

func openRW(s setup) (client, error) {
	return contend.RelockOf(s, func(c *relock.Client, name string) mutex { return c.RWMutex(name) })
}
